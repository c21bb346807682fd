// Every public kernel in a dry context: it takes the workspace that it takes
// otherwise and touches nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "terrace/core/context.h"
#include "terrace/kernels/attention.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/cross_entropy.h"
#include "terrace/kernels/dropout.h"
#include "terrace/kernels/elementwise.h"
#include "terrace/kernels/embedding.h"
#include "terrace/kernels/grad_norm.h"
#include "terrace/kernels/layer_norm.h"
#include "terrace/kernels/linear_cross_entropy.h"
#include "terrace/kernels/matmul.h"
#include "terrace/kernels/optimizer_update.h"
#include "terrace/kernels/reduce.h"
#include "terrace/kernels/rope.h"
#include "terrace/kernels/softmax.h"
#include "terrace/kernels/swiglu.h"
#include "terrace/tests/support/resident.h"

namespace terrace::kernels {
namespace {

// Zeros, where there are values: valid as indices, too.
Tensor Zeros(const Context& ctx, const Shape& shape, DType dtype) {
  const Tensor x = ctx.Empty(shape, dtype);
  if (!ctx.dry()) std::memset(x.raw(), 0, static_cast<size_t>(x.nbytes()));
  return x;
}

ConstView Transposed(ConstView x) {
  const size_t last = static_cast<size_t>(x.shape.rank() - 1);
  const int64_t rows = x.shape.dim(-2), columns = x.shape.dim(-1);
  x.shape = x.shape.With(-2, columns).With(-1, rows);
  std::swap(x.strides[last - 1], x.strides[last]);
  return x;
}

struct Call {
  std::string name;
  // `n`: of the sizes; a call is small for tens, and large for thousands.
  std::function<void(const Context&, int64_t n, DType)> run;
};

void Attend(const Context& ctx, int64_t n, DType dtype, int64_t heads,
            float dropout) {
  const Shape shape{1, n, heads, 20};
  const DType acc = AccumulatorOf(dtype);
  const Tensor q = Zeros(ctx, shape, dtype), k = Zeros(ctx, shape, dtype),
               v = Zeros(ctx, shape, dtype), out = Zeros(ctx, shape, dtype),
               dout = Zeros(ctx, shape, dtype), dq = Zeros(ctx, shape, dtype),
               dk = Zeros(ctx, shape, dtype), dv = Zeros(ctx, shape, dtype),
               lse = Zeros(ctx, {1, heads, n}, acc);
  const DropoutSpec spec{.p = dropout};
  AttentionForward(ctx, {.q = q.view(),
                         .k = k.view(),
                         .v = v.view(),
                         .out = out.mut(),
                         .lse = lse.mut(),
                         .dropout = spec});
  AttentionBackward(ctx, {.q = q.view(),
                          .k = k.view(),
                          .v = v.view(),
                          .out = out.view(),
                          .lse = lse.view(),
                          .dout = dout.view(),
                          .dq = dq.mut(),
                          .dk = dk.mut(),
                          .dv = dv.mut(),
                          .dropout = spec});
}

void Multiply(const Context& ctx, int64_t n, DType dtype) {
  const Tensor a = Zeros(ctx, {n, n / 2}, dtype),
               b = Zeros(ctx, {n / 2, n}, dtype),
               bias = Zeros(ctx, {n}, DType::kF32),
               wide = Zeros(ctx, {n, n}, AccumulatorOf(dtype)),
               same = Zeros(ctx, {n, n}, dtype);
  const bool f64 = dtype == DType::kF64;
  MatMul(ctx, {.a = a.view(),
               .b = b.view(),
               .bias = f64 ? ConstView{} : bias.view(),
               .c = same.mut()});
  MatMul(ctx, {.a = Transposed(b.view()),
               .b = Transposed(a.view()),
               .bias = {},
               .c = wide.mut(),
               .accumulate = true});
  const Tensor x = Zeros(ctx, {3, 8, n}, dtype),
               y = Zeros(ctx, {3, n, 8}, dtype),
               z = Zeros(ctx, {3, 8, 8}, dtype);
  MatMul(ctx, {.a = x.view(), .b = y.view(), .bias = {}, .c = z.mut()});
}

void Normalise(const Context& ctx, int64_t n, DType dtype) {
  const DType acc = AccumulatorOf(dtype);
  const Tensor x = Zeros(ctx, {n, n}, dtype), y = Zeros(ctx, {n, n}, dtype),
               sum = Zeros(ctx, {n, n}, dtype), dx = Zeros(ctx, {n, n}, dtype),
               gamma = Zeros(ctx, {n}, dtype), beta = Zeros(ctx, {n}, dtype),
               mean = Zeros(ctx, {n}, acc), rstd = Zeros(ctx, {n}, acc),
               dgamma = Zeros(ctx, {n}, acc), dbeta = Zeros(ctx, {n}, dtype);
  LayerNormForward(ctx, {.x = x.view(),
                         .gamma = gamma.view(),
                         .beta = beta.view(),
                         .y = y.mut(),
                         .mean = mean.mut(),
                         .rstd = rstd.mut(),
                         .residual = x.view(),
                         .sum = sum.mut()});
  LayerNormBackward(ctx, {.x = x.view(),
                          .gamma = gamma.view(),
                          .mean = mean.view(),
                          .rstd = rstd.view(),
                          .dy = y.view(),
                          .dx = dx.mut(),
                          .dgamma = dgamma.mut(),
                          .dbeta = dbeta.mut(),
                          .accumulate_dgamma = true,
                          .accumulate_dbeta = true,
                          .dsum = sum.view()});
}

void Head(const Context& ctx, int64_t n, DType dtype) {
  const DType acc = AccumulatorOf(dtype);
  const int64_t width = 40;
  const Tensor hidden = Zeros(ctx, {n, width}, dtype),
               weight = Zeros(ctx, {2 * n, width}, dtype),
               labels = Zeros(ctx, {n}, DType::kI32),
               loss = Zeros(ctx, {}, acc), count = Zeros(ctx, {}, acc),
               dhidden = Zeros(ctx, {n, width}, acc),
               dweight = Zeros(ctx, {2 * n, width}, acc);
  for (const bool gradients : {false, true}) {
    LinearCrossEntropyArgs args{.hidden = hidden.view(),
                                .weight = weight.view(),
                                .labels = labels.view(),
                                .loss_sum = loss.mut(),
                                .loss_weight = count.mut(),
                                .dhidden = {},
                                .dweight = {}};
    if (gradients) {
      args.dhidden = dhidden.mut();
      args.dweight = dweight.mut();
    }
    LinearCrossEntropy(ctx, args);
  }
  ScaleInto(ctx, dhidden.view(), loss.view(), hidden.mut(), true);
}

void Losses(const Context& ctx, int64_t n, DType dtype) {
  const DType acc = AccumulatorOf(dtype);
  const Tensor logits = Zeros(ctx, {n, n}, dtype),
               labels = Zeros(ctx, {n}, DType::kI32),
               loss = Zeros(ctx, {}, acc), count = Zeros(ctx, {}, acc),
               lse = Zeros(ctx, {n}, acc), dlogits = Zeros(ctx, {n, n}, dtype);
  CrossEntropyForward(ctx, logits.view(), labels.view(), loss.mut(),
                      count.mut(), lse.mut());
  CrossEntropyBackward(ctx, logits.view(), labels.view(), lse.view(),
                       loss.view(), dlogits.mut());
  SoftmaxForward(ctx, logits.view(), dlogits.mut());
  SoftmaxBackward(ctx, logits.view(), logits.view(), dlogits.mut());
}

void Sums(const Context& ctx, int64_t n, DType dtype) {
  const Tensor x = Zeros(ctx, {n, 8, n}, dtype);
  for (const Shape& shape :
       {Shape{n}, Shape{8, n}, Shape{n, 8, 1}, Shape{1}, Shape{n, 1, n}}) {
    const Tensor sum = Zeros(ctx, shape, dtype);
    SumTo(ctx, x.view(), sum.mut(), true);
  }
}

void Embed(const Context& ctx, int64_t n, DType dtype) {
  const Tensor ids = Zeros(ctx, {n}, DType::kI32),
               table = Zeros(ctx, {n, 40}, dtype),
               out = Zeros(ctx, {n, 40}, dtype),
               dtable = Zeros(ctx, {n, 40}, AccumulatorOf(dtype));
  EmbeddingForward(ctx, ids.view(), table.view(), out.mut());
  EmbeddingBackward(ctx, ids.view(), out.view(), dtable.mut(), true);
}

// Those without workspace.
void Elements(const Context& ctx, int64_t n, DType dtype) {
  const Tensor x = Zeros(ctx, {n, n}, dtype), y = Zeros(ctx, {n, n}, dtype),
               z = Zeros(ctx, {n, n}, dtype);
  Unary(ctx, UnaryOp::kGelu, x.view(), y.mut());
  UnaryGrad(ctx, UnaryOp::kGelu, x.view(), {}, y.view(), z.mut(), true);
  Binary(ctx, BinaryOp::kAdd, x.view(), y.view(), z.mut());
  Affine(ctx, x.view(), 2, 1, y.mut());
  Pow(ctx, x.view(), 2, y.mut());
  Dropout(ctx, x.view(), {.p = 0.5f}, y.mut());
  SwiGlu(ctx, x.view(), y.view(), z.mut());
  const Tensor dz = Zeros(ctx, {n, n}, dtype), da = Zeros(ctx, {n, n}, dtype);
  SwiGluGrad(ctx, x.view(), y.view(), dz.view(), da.mut(), z.mut());
  Copy(ctx, x.view(), y.mut());
  Accumulate(ctx, x.view(), y.mut());
  Fill(ctx, y.mut(), 1);
  const Tensor table = Zeros(ctx, {n, 2, 8}, DType::kF32);
  RopeTable(ctx, 10000, table.mut());
  const Tensor heads = Zeros(ctx, {1, n, 2, 16}, dtype),
               turned = Zeros(ctx, {1, n, 2, 16}, dtype);
  Rope(ctx, {.x = heads.view(), .table = table.view(), .y = turned.mut()});
}

void Update(const Context& ctx, int64_t n, DType dtype) {
  const Tensor grad = Zeros(ctx, {n, n}, dtype),
               master = Zeros(ctx, {n, n}, DType::kF32),
               first = Zeros(ctx, {n, n}, DType::kF32),
               second = Zeros(ctx, {n, n}, DType::kF32),
               working = Zeros(ctx, {n, n}, dtype);
  const UpdateWindow window{.numel = n * n,
                            .master = master.raw(),
                            .first = first.raw(),
                            .second = second.raw(),
                            .grad = grad.raw(),
                            .grad_dtype = dtype,
                            .working = working.raw(),
                            .working_dtype = dtype};
  AdamUpdate(ctx, window, {});
  SgdUpdate(ctx, window, {.momentum = 0.9});
  const SquaredNormResult norm = SquaredNorm(ctx, grad.raw(), dtype, 5, n * n);
  EXPECT_TRUE(norm.finite);
  EXPECT_EQ(norm.sum, 0);
}

const std::vector<Call>& Calls() {
  static const std::vector<Call> calls = {
      {"attention",
       [](auto& c, int64_t n, DType t) { Attend(c, n, t, 12, 0); }},
      {"attention by tiles",
       [](auto& c, int64_t n, DType t) { Attend(c, n, t, 1, 0); }},
      {"attention with dropout",
       [](auto& c, int64_t n, DType t) { Attend(c, n, t, 4, 0.5f); }},
      {"matmul", Multiply},
      {"layer_norm", Normalise},
      {"linear_cross_entropy", Head},
      {"cross_entropy, softmax", Losses},
      {"sum_to", Sums},
      {"embedding", Embed},
      {"elementwise", Elements},
      {"update", Update},
  };
  return calls;
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16,
                            DType::kF64};

MemoryReport ReportOf(const Call& call, int64_t n, DType dtype, int threads,
                      bool dry) {
  const Context ctx({.threads = threads, .dry = dry});
  call.run(ctx, n, dtype);
  return ctx.device_arena().Report();
}

TEST(DryKernelTest, OneThreadTakesTheSameToTheByte) {
  int with_workspace = 0;
  for (const Call& call : Calls()) {
    for (const DType dtype : kTypes) {
      for (const int64_t n : {33, 300}) {
        const MemoryReport real = ReportOf(call, n, dtype, 1, false);
        const MemoryReport dry = ReportOf(call, n, dtype, 1, true);
        SCOPED_TRACE(StrCat(call.name, " ", n, " ", dtype));
        for (size_t tag = 0; tag < real.tags.size(); ++tag)
          EXPECT_EQ(dry.tags[tag].peak, real.tags[tag].peak)
              << Name(static_cast<MemoryTag>(tag));
        EXPECT_EQ(dry.total.peak, real.total.peak);
        EXPECT_EQ(dry.total.now, real.total.now);
        with_workspace += real[MemoryTag::kWorkspace].peak > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GE(with_workspace, 8 * 8);
}

// Scratch of three threads is three equal parts, of which one at least is
// there; all else is the same.
TEST(DryKernelTest, ThreadsTakeAtMostWhatIsPlannedAndAThirdAtLeast) {
  for (const Call& call : Calls()) {
    for (const DType dtype : kTypes) {
      for (const int64_t n : {33, 300}) {
        const int64_t real =
            ReportOf(call, n, dtype, 3, false)[MemoryTag::kWorkspace].peak;
        const int64_t dry =
            ReportOf(call, n, dtype, 3, true)[MemoryTag::kWorkspace].peak;
        SCOPED_TRACE(StrCat(call.name, " ", n, " ", dtype));
        EXPECT_LE(real, dry);
        EXPECT_GE(3 * real, dry);
      }
    }
  }
}

// A page that a kernel touched would be there: of gigabytes in all.
TEST(DryKernelTest, NothingIsTouched) {
  // What the first use of a library leaves is none of it.
  for (const Call& call : Calls()) ReportOf(call, 4000, DType::kF32, 2, true);
  const int64_t before = support::ResidentNbytes();
  int64_t planned = 0;
  for (const Call& call : Calls())
    for (const DType dtype : kTypes)
      planned += ReportOf(call, 4000, dtype, 2, true).total.peak;
  EXPECT_GT(planned, int64_t{4} << 30);
  EXPECT_LT(support::ResidentNbytes() - before, int64_t{16} << 20);
}

}  // namespace
}  // namespace terrace::kernels
