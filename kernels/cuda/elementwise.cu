#include <cmath>

#include "terrace/kernels/cuda/elementwise.h"
#include "terrace/kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {
namespace {

// A number of the table: constants become T instead of widening to double.
template <class T>
struct Real {
  T v;
  __device__ Real(T value) : v(value) {}  // implicit
  template <class U>
  requires(!std::is_same_v<U, T> && std::is_arithmetic_v<U>) __device__
      Real(U constant)
      : v(static_cast<T>(constant)) {}  // implicit

  friend __device__ Real operator+(Real a, Real b) { return Add(a.v, b.v); }
  friend __device__ Real operator-(Real a, Real b) { return Sub(a.v, b.v); }
  friend __device__ Real operator*(Real a, Real b) { return Mul(a.v, b.v); }
  friend __device__ Real operator/(Real a, Real b) { return Div(a.v, b.v); }
  friend __device__ Real operator-(Real a) { return -a.v; }
  friend __device__ bool operator<(Real a, Real b) { return a.v < b.v; }
  friend __device__ bool operator>(Real a, Real b) { return a.v > b.v; }
  friend __device__ Real Exp(Real x) { return exp(x.v); }
  friend __device__ Real Log(Real x) { return log(x.v); }
  friend __device__ Real Sqrt(Real x) { return Root(x.v); }
  friend __device__ Real Tanh(Real x) { return tanh(x.v); }
  friend __device__ Real Sigmoid(Real x) {
    return Real(1.0) / (Real(1.0) + Exp(-x));
  }
  friend __device__ Real SigmoidSlope(Real x) {
    const Real s = Sigmoid(x);
    return s * (Real(1.0) - s);
  }
  friend __device__ Real NormalCdf(Real x) { return normcdf(x.v); }
  friend __device__ Real NormalPdf(Real x) {
    return Real(0.398942280401432678) * Exp(Real(-0.5) * x * x);
  }
  friend __device__ Real Select(bool condition, Real yes, Real no) {
    return condition ? yes : no;
  }
  friend __device__ Real Clamp(Real x, Real low, Real high) {
    return x < low ? low : x > high ? high : x;
  }
};

#define TERRACE_UNARY(op, name, needs, forward, backward)                      \
  struct Forward_##op {                                                        \
    template <class R>                                                         \
    static __device__ R Of(R x, R, R) {                                        \
      return forward;                                                          \
    }                                                                          \
  };                                                                           \
  struct Backward_##op {                                                       \
    template <class R>                                                         \
    static __device__ R Of([[maybe_unused]] R x, [[maybe_unused]] R y, R dy) { \
      return backward;                                                         \
    }                                                                          \
  };
#include "terrace/kernels/elementwise.inc"

// out[i] (+)= Function(x[i], y[i], dy[i]).
template <class Function, class T, class Acc>
__global__ void UnaryKernel(int64_t numel, const T* x, const T* y, const T* dy,
                            T* out, bool accumulate) {
  using R = Real<Acc>;
  for (int64_t i = ThreadIndex(); i < numel; i += ThreadStep()) {
    R result = Function::Of(R(Widen<Acc>(x[i])), R(Widen<Acc>(y[i])),
                            R(Widen<Acc>(dy[i])));
    if (accumulate) result = R(Widen<Acc>(out[i])) + result;
    out[i] = Narrow<T>(result.v);
  }
}

template <class Function>
void LaunchUnary(const ConstView& x, const ConstView& y, const ConstView& dy,
                 const MutView& out, bool accumulate) {
  VisitFloat(out.dtype, "elementwise", [&]<class T>(Tag<T>) {
    using D = OnDevice<T>;
    UnaryKernel<Function, D, Accumulator<T>>
        <<<BlocksFor(out.numel()), kThreads>>>(out.numel(), x.as<D>(),
                                               y.as<D>(), dy.as<D>(),
                                               out.as<D>(), accumulate);
  });
}

// --- binary, with broadcasting by strides ---

struct BinaryIndex {
  int rank;
  int64_t numel;
  int64_t dims[Shape::kMaxRank];
  int64_t a[Shape::kMaxRank], b[Shape::kMaxRank], out[Shape::kMaxRank];
};

// The strides of `view`, right-aligned to `rank` axes; stretched ones are 0.
void AlignStrides(const ConstView& view, int rank, int64_t* strides) {
  std::fill_n(strides, rank, int64_t{0});
  for (int i = 1; i <= view.shape.rank(); ++i)
    if (view.shape.dim(-i) != 1)
      strides[rank - i] =
          view.strides[static_cast<size_t>(view.shape.rank() - i)];
}

struct AddOp {
  template <class T>
  static __device__ T Of(T a, T b) {
    return Add(a, b);
  }
};
struct SubOp {
  template <class T>
  static __device__ T Of(T a, T b) {
    return Sub(a, b);
  }
};
struct MulOp {
  template <class T>
  static __device__ T Of(T a, T b) {
    return Mul(a, b);
  }
};
struct DivOp {
  template <class T>
  static __device__ T Of(T a, T b) {
    return Div(a, b);
  }
};

template <class Op, class T, class Acc>
__global__ void BinaryKernel(BinaryIndex index, const T* a, const T* b,
                             T* out) {
  for (int64_t i = ThreadIndex(); i < index.numel; i += ThreadStep()) {
    int64_t rest = i, at_a = 0, at_b = 0, at_out = 0;
    for (int axis = index.rank - 1; axis >= 0; --axis) {
      const int64_t position = rest % index.dims[axis];
      rest /= index.dims[axis];
      at_a += position * index.a[axis];
      at_b += position * index.b[axis];
      at_out += position * index.out[axis];
    }
    out[at_out] = Narrow<T>(Op::Of(Widen<Acc>(a[at_a]), Widen<Acc>(b[at_b])));
  }
}

template <class Op>
void LaunchBinary(const ConstView& a, const ConstView& b, const MutView& out) {
  BinaryIndex index{};
  index.rank = out.shape.rank();
  index.numel = out.numel();
  std::copy(out.shape.begin(), out.shape.end(), index.dims);
  AlignStrides(a, index.rank, index.a);
  AlignStrides(b, index.rank, index.b);
  AlignStrides(out, index.rank, index.out);
  VisitFloat(out.dtype, "elementwise", [&]<class T>(Tag<T>) {
    using D = OnDevice<T>;
    BinaryKernel<Op, D, Accumulator<T>><<<BlocksFor(index.numel), kThreads>>>(
        index, a.as<D>(), b.as<D>(), out.as<D>());
  });
}

// --- affine and powers ---

template <class T, class Acc>
__global__ void AffineKernel(int64_t numel, const T* x, Acc scale, Acc shift,
                             T* y) {
  for (int64_t i = ThreadIndex(); i < numel; i += ThreadStep())
    y[i] = Narrow<T>(Add(Mul(scale, Widen<Acc>(x[i])), shift));
}

template <class Acc>
__device__ Acc IntegerPower(Acc x, int64_t n) {
  uint64_t rest = static_cast<uint64_t>(n < 0 ? -n : n);
  Acc power = 1;
  Acc square = x;
  while (rest != 0) {
    if (rest & 1) power = Mul(power, square);
    rest >>= 1;
    if (rest != 0) square = Mul(square, square);
  }
  return n < 0 ? Div(Acc{1}, power) : power;
}

template <class T, class Acc>
__global__ void PowKernel(int64_t numel, const T* x, double exponent,
                          bool integer, T* y) {
  for (int64_t i = ThreadIndex(); i < numel; i += ThreadStep()) {
    const Acc value = Widen<Acc>(x[i]);
    Acc power;
    if (integer) {
      power = IntegerPower(value, static_cast<int64_t>(exponent));
    } else if (exponent == 0.5) {
      power = Root(value);
    } else {
      power = static_cast<Acc>(pow(static_cast<double>(value), exponent));
    }
    y[i] = Narrow<T>(power);
  }
}

}  // namespace

void Unary(const Context&, UnaryOp op, const ConstView& x, const MutView& y) {
  switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    LaunchUnary<Forward_##op>(x, x, x, y, false);         \
    break;
#include "terrace/kernels/elementwise.inc"
  }
  CheckLaunch(Name(op));
}

void UnaryGrad(const Context&, UnaryOp op, const ConstView& x,
               const ConstView& y, const ConstView& dy, const MutView& dx,
               bool accumulate) {
  switch (op) {
#define TERRACE_UNARY(op, name, needs, forward, backward) \
  case UnaryOp::op:                                       \
    LaunchUnary<Backward_##op>(x, y, dy, dx, accumulate); \
    break;
#include "terrace/kernels/elementwise.inc"
  }
  CheckLaunch(Name(op));
}

void Binary(const Context&, BinaryOp op, const ConstView& a, const ConstView& b,
            const MutView& out) {
  switch (op) {
    case BinaryOp::kAdd:
      LaunchBinary<AddOp>(a, b, out);
      break;
    case BinaryOp::kSub:
      LaunchBinary<SubOp>(a, b, out);
      break;
    case BinaryOp::kMul:
      LaunchBinary<MulOp>(a, b, out);
      break;
    case BinaryOp::kDiv:
      LaunchBinary<DivOp>(a, b, out);
      break;
  }
  CheckLaunch(Name(op));
}

void Affine(const Context&, const ConstView& x, double scale, double shift,
            const MutView& y) {
  VisitFloat(x.dtype, "affine", [&]<class T>(Tag<T>) {
    using D = OnDevice<T>;
    using Acc = Accumulator<T>;
    AffineKernel<D, Acc><<<BlocksFor(x.numel()), kThreads>>>(
        x.numel(), x.as<D>(), static_cast<Acc>(scale), static_cast<Acc>(shift),
        y.as<D>());
  });
  CheckLaunch("affine");
}

void Pow(const Context&, const ConstView& x, double exponent,
         const MutView& y) {
  const bool integer =
      exponent == std::trunc(exponent) && std::fabs(exponent) < 0x1p62;
  VisitFloat(x.dtype, "pow", [&]<class T>(Tag<T>) {
    using D = OnDevice<T>;
    PowKernel<D, Accumulator<T>><<<BlocksFor(x.numel()), kThreads>>>(
        x.numel(), x.as<D>(), exponent, integer, y.as<D>());
  });
  CheckLaunch("pow");
}

}  // namespace terrace::kernels::cuda
