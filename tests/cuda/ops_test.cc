// The CUDA kernels against those of the CPU, on the same values. The dispatch
// itself takes no CUDA device yet, so the kernels are called by their names.
#include <gtest/gtest.h>

#if TERRACE_HAVE_CUDA
#include <cuda_runtime.h>

#include <thread>
#include <tuple>
#include <vector>

#include "terrace/kernels/cuda/elementwise.h"
#include "terrace/kernels/cuda/layer_norm.h"
#include "terrace/kernels/cuda/matmul.h"
#include "terrace/kernels/cuda/optimizer_update.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using support::Doubles;
using support::kFloatTypes;
using support::Random;
using support::RelativeError;
using support::SameBits;
using support::Tolerance;

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
      GTEST_SKIP() << "no CUDA device: " << cudaGetErrorString(error);
  }

  Context ctx_;
};

// The bytes of a contiguous tensor on the device, one element off alignment.
class OnDevice {
 public:
  explicit OnDevice(const Tensor& host) : host_(host) {
    const size_t nbytes = static_cast<size_t>(host.nbytes());
    const size_t shift = static_cast<size_t>(SizeOf(host.dtype()));
    EXPECT_EQ(cudaMalloc(&bytes_, nbytes + shift), cudaSuccess);
    data_ = static_cast<char*>(bytes_) + shift;
    EXPECT_EQ(cudaMemcpy(data_, host.raw(), nbytes, cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { cudaFree(bytes_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  void* data() const { return data_; }
  MutView mut() const {
    MutView view = host_.mut();
    view.data = data_;
    return view;
  }
  ConstView view() const { return mut(); }
  // What is there now.
  Tensor Back(const Context& ctx) const {
    EXPECT_EQ(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
    const Tensor result = ctx.Empty(host_.shape(), host_.dtype());
    EXPECT_EQ(
        cudaMemcpy(result.raw(), data_, static_cast<size_t>(result.nbytes()),
                   cudaMemcpyDeviceToHost),
        cudaSuccess);
    return result;
  }

 private:
  Tensor host_;
  void* bytes_ = nullptr;
  void* data_ = nullptr;
};

const kernels::UnaryOp kUnaryOps[] = {
#define TERRACE_UNARY(op, name, needs, forward, backward) kernels::UnaryOp::op,
#include "terrace/kernels/elementwise.inc"
};

using CudaElementwiseTest = CudaTest;
TEST_F(CudaElementwiseTest, MatchesTheCpu) {
  for (const DType dtype : kFloatTypes) {
    const Tensor x = Random(ctx_, {1031}, dtype, 1, 0.25, 1.5);
    const Tensor dy = Random(ctx_, {1031}, dtype, 2);
    const OnDevice dx_in(x), ddy(dy);
    for (const kernels::UnaryOp op : kUnaryOps) {
      const Tensor y = ctx_.Empty(x.shape(), dtype);
      const Tensor dx = ctx_.Empty(x.shape(), dtype);
      const OnDevice dy_out(y), ddx(dx);
      kernels::Unary(ctx_, op, x.view(), y.mut());
      kernels::cuda::Unary(ctx_, op, dx_in.view(), dy_out.mut());
      EXPECT_LE(
          RelativeError(Doubles(dy_out.Back(ctx_).view()), Doubles(y.view())),
          Tolerance(dtype))
          << Name(op) << " " << dtype;
      kernels::UnaryGrad(ctx_, op, x.view(), y.view(), dy.view(), dx.mut(),
                         false);
      kernels::cuda::UnaryGrad(ctx_, op, dx_in.view(), dy_out.view(),
                               ddy.view(), ddx.mut(), false);
      EXPECT_LE(
          RelativeError(Doubles(ddx.Back(ctx_).view()), Doubles(dx.view())),
          3 * Tolerance(dtype))
          << Name(op) << " " << dtype;
    }
    const Tensor sum = ctx_.Empty(x.shape(), dtype);
    const OnDevice dsum(sum);
    kernels::Binary(ctx_, kernels::BinaryOp::kDiv, dy.view(), x.view(),
                    sum.mut());
    kernels::cuda::Binary(ctx_, kernels::BinaryOp::kDiv, ddy.view(),
                          dx_in.view(), dsum.mut());
    EXPECT_TRUE(SameBits(dsum.Back(ctx_), sum)) << dtype;
  }
}

using CudaLayerNormTest = CudaTest;

// Without a residual, with one, and with the gradient that arrived before: in a
// place of its own, or where dx goes.
enum class Residual { kNone, kAdded, kGradient, kGradientInPlace };

void CheckLayerNorm(const Context& ctx, Residual kind, DType dtype,
                    DType gamma_dtype, DType beta_dtype) {
  const Tensor x = Random(ctx, {7, 300}, dtype, 1, -1, 3);
  const Tensor residual = Random(ctx, {7, 300}, dtype, 5);
  const Tensor dy = Random(ctx, {7, 300}, dtype, 4);
  const Tensor gamma = Random(ctx, {300}, gamma_dtype, 2, 0.5, 1.5);
  const Tensor beta = Random(ctx, {300}, beta_dtype, 3);
  const Tensor y = ctx.Empty(x.shape(), dtype);
  const Tensor sum = Random(ctx, x.shape(), dtype, 6);
  const Tensor dsum = Random(ctx, x.shape(), dtype, 7);
  const Tensor dx = Random(ctx, x.shape(), dtype, 7);  // dsum's values
  const Tensor mean = ctx.Empty({7}, AccumulatorOf(dtype));
  const Tensor rstd = ctx.Empty({7}, AccumulatorOf(dtype));
  const Tensor dgamma = ctx.Empty({300}, gamma_dtype);
  const Tensor dbeta = ctx.Empty({300}, beta_dtype);
  const OnDevice gx(x), gresidual(residual), gdy(dy), ggamma(gamma),
      gbeta(beta), gy(y), gsum(sum), gdsum(dsum), gdx(dx), gmean(mean),
      grstd(rstd), gdgamma(dgamma), gdbeta(dbeta);
  kernels::LayerNormForwardArgs forward{.x = x.view(),
                                        .gamma = gamma.view(),
                                        .beta = beta.view(),
                                        .y = y.mut(),
                                        .mean = mean.mut(),
                                        .rstd = rstd.mut()};
  kernels::LayerNormForwardArgs gforward{.x = gx.view(),
                                         .gamma = ggamma.view(),
                                         .beta = gbeta.view(),
                                         .y = gy.mut(),
                                         .mean = gmean.mut(),
                                         .rstd = grstd.mut()};
  const bool added = kind == Residual::kAdded;
  if (added) {
    forward.residual = residual.view();
    forward.sum = sum.mut();
    gforward.residual = gresidual.view();
    gforward.sum = gsum.mut();
  }
  kernels::LayerNormForward(ctx, forward);
  kernels::cuda::LayerNormForward(ctx, gforward);
  // What was normalised; rounded once from one addition.
  EXPECT_TRUE(SameBits(gsum.Back(ctx), sum)) << dtype;
  kernels::LayerNormBackwardArgs backward{.x = added ? sum.view() : x.view(),
                                          .gamma = gamma.view(),
                                          .mean = mean.view(),
                                          .rstd = rstd.view(),
                                          .dy = dy.view(),
                                          .dx = dx.mut(),
                                          .dgamma = dgamma.mut(),
                                          .dbeta = dbeta.mut()};
  kernels::LayerNormBackwardArgs gbackward{.x = added ? gsum.view() : gx.view(),
                                           .gamma = ggamma.view(),
                                           .mean = gmean.view(),
                                           .rstd = grstd.view(),
                                           .dy = gdy.view(),
                                           .dx = gdx.mut(),
                                           .dgamma = gdgamma.mut(),
                                           .dbeta = gdbeta.mut()};
  if (kind == Residual::kGradient) {
    backward.dsum = dsum.view();
    gbackward.dsum = gdsum.view();
  } else if (kind == Residual::kGradientInPlace) {
    backward.dsum = dsum.view();  // the values that dx holds
    gbackward.dsum = gdx.view();
  }
  kernels::LayerNormBackward(ctx, backward);
  kernels::cuda::LayerNormBackward(ctx, gbackward);
  for (const auto& [device, host] :
       {std::tie(gy, y), std::tie(gmean, mean), std::tie(grstd, rstd),
        std::tie(gdx, dx), std::tie(gdgamma, dgamma),
        std::tie(gdbeta, dbeta)}) {
    EXPECT_LE(
        RelativeError(Doubles(device.Back(ctx).view()), Doubles(host.view())),
        3 * Tolerance(host.dtype()))
        << dtype << gamma_dtype << beta_dtype << static_cast<int>(kind);
  }
}

TEST_F(CudaLayerNormTest, MatchesTheCpuForEveryMixOfGainTypes) {
  for (const Residual kind :
       {Residual::kNone, Residual::kAdded, Residual::kGradient,
        Residual::kGradientInPlace}) {
    for (const DType dtype : kFloatTypes) {
      for (const DType gamma_dtype : {dtype, DType::kF32}) {
        for (const DType beta_dtype : {dtype, DType::kF32})
          CheckLayerNorm(ctx_, kind, dtype, gamma_dtype, beta_dtype);
      }
    }
  }
}

using CudaMatMulTest = CudaTest;
// Odd sizes and operands off alignment: no kernel may take 256 bytes for
// granted.
TEST_F(CudaMatMulTest, MatchesTheCpuAtAnyAlignment) {
  for (const DType dtype : kFloatTypes) {
    for (const bool transposed : {false, true}) {
      const Tensor a = Random(ctx_, {3, 33, 65}, dtype, 1);
      const Tensor b =
          Random(ctx_, transposed ? Shape{17, 65} : Shape{65, 17}, dtype, 2);
      const Tensor bias = Random(ctx_, {17}, dtype, 3);
      const Tensor c = Random(ctx_, {3, 33, 17}, dtype, 4);
      const OnDevice ga(a), gb(b), gbias(bias), gc(c);
      const auto of = [&](const Tensor& x, void* data) {
        ConstView view = transposed ? x.Transpose(0, 1).view() : x.view();
        view.data = data;
        return view;
      };
      for (const bool accumulate : {false, true}) {
        kernels::MatMul(ctx_, {.a = a.view(),
                               .b = of(b, b.raw()),
                               .bias = bias.view(),
                               .c = c.mut(),
                               .accumulate = accumulate});
        kernels::cuda::MatMul(ctx_, {.a = ga.view(),
                                     .b = of(b, gb.data()),
                                     .bias = gbias.view(),
                                     .c = gc.mut(),
                                     .accumulate = accumulate});
        EXPECT_LE(
            RelativeError(Doubles(gc.Back(ctx_).view()), Doubles(c.view())),
            3 * Tolerance(dtype))
            << dtype << transposed << accumulate;
      }
    }
  }
}

// Each thread has its stream, its handle and its workspace.
TEST_F(CudaMatMulTest, ServesTwoRankThreadsAtOnce) {
  const auto product = [](unsigned seed) {
    const Context ctx;
    const Tensor a = Random(ctx, {64, 64}, DType::kF32, seed);
    const Tensor c = ctx.Empty({64, 64}, DType::kF32);
    const OnDevice ga(a), gc(c);
    const kernels::MatMulArgs args{
        .a = ga.view(), .b = ga.view(), .bias = {}, .c = gc.mut()};
    for (int i = 0; i < 50; ++i) kernels::cuda::MatMul(ctx, args);
    return Doubles(gc.Back(ctx).view());
  };
  const std::vector<std::vector<double>> want{product(1), product(2)};
  std::vector<std::vector<double>> got(2);
  std::thread first([&] { got[0] = product(1); });
  std::thread second([&] { got[1] = product(2); });
  first.join();
  second.join();
  EXPECT_EQ(got, want);
}

using CudaAdamTest = CudaTest;
TEST_F(CudaAdamTest, HasTheCpusBits) {
  for (const DType state : {DType::kF32, DType::kF64}) {
    for (const DType grad_dtype : kFloatTypes) {
      const Tensor master = Random(ctx_, {1031}, state, 1);
      const Tensor first = Random(ctx_, {1031}, state, 2);
      const Tensor second = Random(ctx_, {1031}, state, 3, 0, 1);
      const Tensor grad = Random(ctx_, {1031}, grad_dtype, 4);
      const Tensor working = ctx_.Empty({1031}, DType::kBF16);
      const OnDevice gmaster(master), gfirst(first), gsecond(second),
          ggrad(grad), gworking(working);
      kernels::UpdateWindow window{.numel = 1031,
                                   .state_dtype = state,
                                   .master = master.raw(),
                                   .first = first.raw(),
                                   .second = second.raw(),
                                   .grad = grad.raw(),
                                   .grad_dtype = grad_dtype,
                                   .working = working.raw(),
                                   .working_dtype = DType::kBF16,
                                   .q = 0.5};
      const kernels::AdamParams params{.weight_decay = 0.1};
      kernels::AdamUpdate(ctx_, window, params);
      window.master = gmaster.data();
      window.first = gfirst.data();
      window.second = gsecond.data();
      window.grad = ggrad.data();
      window.working = gworking.data();
      const kernels::AdamWindow one{window, params};
      kernels::cuda::AdamUpdate(ctx_, {&one, 1});
      EXPECT_TRUE(SameBits(gmaster.Back(ctx_), master)) << state << grad_dtype;
      EXPECT_TRUE(SameBits(gfirst.Back(ctx_), first)) << state << grad_dtype;
      EXPECT_TRUE(SameBits(gsecond.Back(ctx_), second)) << state << grad_dtype;
      EXPECT_TRUE(SameBits(gworking.Back(ctx_), working))
          << state << grad_dtype;
    }
  }
}

}  // namespace
}  // namespace terrace

#else

TEST(CudaTest, NeedsABuildWithCuda) {
  GTEST_SKIP() << "built without --config=cuda";
}

#endif
