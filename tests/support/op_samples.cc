#include "terrace/tests/support/op_samples.h"

#include <cmath>
#include <utility>

#include "terrace/autograd/ops/attention.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/cast.h"
#include "terrace/autograd/ops/cross_entropy.h"
#include "terrace/autograd/ops/dropout.h"
#include "terrace/autograd/ops/embedding.h"
#include "terrace/autograd/ops/layer_norm.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/linear_cross_entropy.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/rms_norm.h"
#include "terrace/autograd/ops/rope.h"
#include "terrace/autograd/ops/softmax.h"
#include "terrace/autograd/ops/swiglu.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/cross_entropy.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using Samples = std::vector<OpSample>;
using In = std::span<const Variable>;

constexpr double kPi = 3.14159265358979323846;

SampleOperand Positive(const Shape& shape) { return {shape, 0.5, 2}; }
SampleOperand AwayFromZero(const Shape& shape) {
  return {shape, 0.25, 1.75, /*mirrored=*/true};
}

void AddUnary(Samples& samples) {
  using Function = Variable (*)(Context&, const Variable&);
  struct Row {
    const char* name;
    Function function;
    SampleOperand (*operand)(const Shape&);
  };
  const auto any = [](const Shape& shape) {
    return SampleOperand{shape, -2, 2};
  };
  const Row rows[] = {
      {"neg", Neg, any},
      {"exp", Exp, any},
      {"log", Log, Positive},
      {"sqrt", Sqrt, Positive},
      {"square", Square, any},
      {"reciprocal", Reciprocal, AwayFromZero},
      {"tanh", Tanh, any},
      {"sigmoid", Sigmoid, any},
      {"relu", Relu, AwayFromZero},
      {"gelu", Gelu, any},
      {"gelu_tanh", GeluTanh, any},
      {"silu", Silu, any},
  };
  for (const Row& row : rows) {
    const Function f = row.function;
    for (const Shape& shape :
         {Shape{}, Shape{1}, Shape{3, 7}, Shape{0, 4}, Shape{67}}) {
      samples.push_back({"Unary",
                         StrCat(row.name, " ", shape),
                         {row.operand(shape)},
                         [f](Context& ctx, In in) { return f(ctx, in[0]); }});
    }
    samples.push_back({"Unary",
                       StrCat(row.name, " of a transposed tensor"),
                       {row.operand({3, 5})},
                       [f](Context& ctx, In in) {
                         return f(ctx, Transpose(ctx, in[0], 0, 1));
                       }});
  }
}

void AddScalar(Samples& samples) {
  samples.push_back({"Affine", "scale", {{{3, 5}}}, [](Context& ctx, In in) {
                       return Scale(ctx, in[0], -0.5);
                     }});
  samples.push_back({"Affine", "shift", {{{3, 5}}}, [](Context& ctx, In in) {
                       return Shift(ctx, in[0], 2);
                     }});
  samples.push_back(
      {"Affine", "1 - x of a slice", {{{3, 5}}}, [](Context& ctx, In in) {
         return Apply<AffineOp>(ctx, {-1, 1}, {Slice(ctx, in[0], 1, 1, 4)});
       }});
  for (double exponent : {-1.0, 0.0, 1.0, 2.0, 3.0, 7.0}) {
    samples.push_back({"Pow",
                       StrCat("exponent ", exponent),
                       {AwayFromZero({2, 9})},
                       [exponent](Context& ctx, In in) {
                         return Pow(ctx, in[0], exponent);
                       }});
  }
  for (double exponent : {-0.5, 0.5, kPi}) {
    samples.push_back({"Pow",
                       StrCat("exponent ", exponent),
                       {Positive({2, 9})},
                       [exponent](Context& ctx, In in) {
                         return Pow(ctx, in[0], exponent);
                       }});
  }
}

void AddBinary(Samples& samples) {
  using Function = Variable (*)(Context&, const Variable&, const Variable&);
  const std::pair<const char*, Function> functions[] = {
      {"add", Add}, {"sub", Sub}, {"mul", Mul}, {"div", Div}};
  const std::pair<Shape, Shape> shapes[] = {
      {{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{3}, {2, 3}}, {{4, 1, 3}, {2, 1}},
      {{}, {2, 2}},     {{2, 2}, {}},  {{0, 3}, {3}}, {{2, 1}, {1, 5}},
  };
  for (const auto& [name, f] : functions) {
    for (const auto& [a, b] : shapes) {
      samples.push_back(
          {"Binary",
           StrCat(name, " ", a, " ", b),
           {{a}, AwayFromZero(b)},
           [f = f](Context& ctx, In in) { return f(ctx, in[0], in[1]); }});
    }
    samples.push_back(
        {"Binary",
         StrCat(name, " of a tensor and itself"),
         {AwayFromZero({3, 3})},
         [f = f](Context& ctx, In in) { return f(ctx, in[0], in[0]); }});
    samples.push_back({"Binary",
                       StrCat(name, " of transposed and plain"),
                       {{{3, 4}}, AwayFromZero({4, 3})},
                       [f = f](Context& ctx, In in) {
                         return f(ctx, Transpose(ctx, in[0], 0, 1), in[1]);
                       }});
  }
}

void AddReduce(Samples& samples) {
  const auto add = [&](std::string what, const Shape& shape, auto call) {
    samples.push_back({"Sum", std::move(what), {{shape}}, call});
  };
  add("all", {3, 7}, [](Context& ctx, In in) { return Sum(ctx, in[0]); });
  add("one", {}, [](Context& ctx, In in) { return Sum(ctx, in[0]); });
  add("none", {0, 2}, [](Context& ctx, In in) { return Sum(ctx, in[0]); });
  add("axis 0", {3, 7}, [](Context& ctx, In in) { return Sum(ctx, in[0], 0); });
  add("axis -2, kept", {2, 3, 4},
      [](Context& ctx, In in) { return Sum(ctx, in[0], -2, true); });
  add("to [3, 1]", {2, 3, 4}, [](Context& ctx, In in) {
    return SumTo(ctx, in[0], {3, 1});
  });
  add("of a transposed tensor", {3, 4}, [](Context& ctx, In in) {
    return Sum(ctx, Transpose(ctx, in[0], 0, 1), -1);
  });
  add("mean", {3, 7}, [](Context& ctx, In in) { return Mean(ctx, in[0]); });
  add("mean of axis 1", {2, 3, 4},
      [](Context& ctx, In in) { return Mean(ctx, in[0], 1); });
}

void AddViews(Samples& samples) {
  const auto add = [&](const char* op, std::string what, const Shape& shape,
                       auto call) {
    samples.push_back({op, std::move(what), {{shape}}, call});
  };
  add("Reshape", "[3, 4] to [2, 6]", {3, 4}, [](Context& ctx, In in) {
    return Reshape(ctx, in[0], {2, 6});
  });
  add("Reshape", "[1] to []", {1},
      [](Context& ctx, In in) { return Reshape(ctx, in[0], {}); });
  add("Reshape", "of a transposed tensor", {3, 4}, [](Context& ctx, In in) {
    return Reshape(ctx, Transpose(ctx, in[0], 0, 1), {12});
  });
  add("Transpose", "[2, 3]", {2, 3},
      [](Context& ctx, In in) { return Transpose(ctx, in[0], 0, 1); });
  add("Transpose", "[2, 3, 4], outer axes", {2, 3, 4},
      [](Context& ctx, In in) { return Transpose(ctx, in[0], 0, -1); });
  add("Slice", "rows", {4, 3},
      [](Context& ctx, In in) { return Slice(ctx, in[0], 0, 1, 3); });
  add("Slice", "columns", {2, 3, 5},
      [](Context& ctx, In in) { return Slice(ctx, in[0], -1, 3, 5); });
  add("Slice", "nothing", {3, 2},
      [](Context& ctx, In in) { return Slice(ctx, in[0], 0, 2, 2); });
  add("Slice", "of a transposed tensor", {3, 4}, [](Context& ctx, In in) {
    return Slice(ctx, Transpose(ctx, in[0], 0, 1), 0, 1, 4);
  });
  add("Contiguous", "of a transposed tensor", {3, 4}, [](Context& ctx, In in) {
    return Contiguous(ctx, Transpose(ctx, in[0], 0, 1));
  });
}

void AddProducts(Samples& samples) {
  const std::pair<Shape, Shape> shapes[] = {
      {{2, 3}, {3, 4}},          {{1, 1}, {1, 1}},
      {{2, 0}, {0, 3}},          {{0, 3}, {3, 2}},
      {{2, 3, 4}, {2, 4, 5}},    {{2, 3, 4}, {4, 5}},  // b for the whole batch
      {{3, 4}, {2, 4, 5}},                             // a for the whole batch
      {{2, 1, 3, 4}, {5, 4, 2}},                       // both stretched
      {{33, 40}, {40, 35}},
  };
  for (const auto& [a, b] : shapes) {
    samples.push_back(
        {"MatMul", StrCat(a, " ", b), {{a}, {b}}, [](Context& ctx, In in) {
           return MatMul(ctx, in[0], in[1]);
         }});
  }
  samples.push_back({"MatMul",
                     "of transposed operands",
                     {{{2, 4, 3}}, {{2, 5, 4}}},
                     [](Context& ctx, In in) {
                       return MatMul(ctx, Transpose(ctx, in[0], 1, 2),
                                     Transpose(ctx, in[1], 1, 2));
                     }});
  // The dense axis becomes the batch.
  samples.push_back({"MatMul",
                     "of operands without a dense axis",
                     {{{2, 3, 4}}, {{5, 2, 4}}},
                     [](Context& ctx, In in) {
                       return MatMul(ctx, Transpose(ctx, in[0], 0, 2),
                                     Transpose(ctx, in[1], 0, 2));
                     }});
  samples.push_back({"Linear",
                     "of transposed x and weight",
                     {{{4, 3}}, {{4, 5}}, {{5}}},
                     [](Context& ctx, In in) {
                       return Linear(ctx, Transpose(ctx, in[0], 0, 1),
                                     Transpose(ctx, in[1], 0, 1), in[2]);
                     }});
}

void AddFused(Samples& samples) {
  for (const Shape& shape :
       {Shape{3, 8}, Shape{2, 3, 5}, Shape{4, 1}, Shape{0, 8}, Shape{65, 33}}) {
    const Shape width{shape.dim(-1)};
    samples.push_back({"LayerNorm",
                       StrCat(shape),
                       {{shape}, Positive(width), {width}},
                       [](Context& ctx, In in) {
                         return LayerNorm(ctx, in[0], in[1], in[2],
                                          {.eps = 1e-3f});
                       }});
  }
  for (const Shape& shape : {Shape{3, 8}, Shape{2, 3, 5}, Shape{0, 8}}) {
    const Shape width{shape.dim(-1)};
    samples.push_back({"AddLayerNorm",
                       StrCat(shape),
                       {{shape}, {shape}, Positive(width), {width}},
                       [](Context& ctx, In in) {
                         return AddLayerNorm(ctx, in[0], in[1], in[2], in[3],
                                             {.eps = 1e-3})[0];
                       }});
  }
  samples.push_back({"AddLayerNorm",
                     "of slices",
                     {{{4, 6}}, {{4, 6}}, {{3}}, {{3}}},
                     [](Context& ctx, In in) {
                       return AddLayerNorm(ctx, Slice(ctx, in[0], 1, 2, 5),
                                           Slice(ctx, in[1], 1, 0, 3), in[2],
                                           in[3], {.eps = 1e-3})[0];
                     }});
  samples.push_back({"LayerNorm",
                     "of a slice",
                     {{{4, 6}}, {{3}}, {{3}}},
                     [](Context& ctx, In in) {
                       return LayerNorm(ctx, Slice(ctx, in[0], 1, 2, 5), in[1],
                                        in[2], {.eps = 1e-3f});
                     }});
  for (const Shape& shape :
       {Shape{1}, Shape{3, 5}, Shape{2, 2, 19}, Shape{0, 3}}) {
    samples.push_back(
        {"Softmax", StrCat(shape), {{shape, -2, 2}}, [](Context& ctx, In in) {
           return Softmax(ctx, in[0]);
         }});
  }
  samples.push_back({"Dropout", "[4, 6]", {{{4, 6}}}, [](Context& ctx, In in) {
                       return Dropout(ctx, in[0], 0.4f, RngKey(7, "mask"));
                     }});
  samples.push_back({"Dropout",
                     "at a counted address, transposed",
                     {{{3, 5}}},
                     [](Context& ctx, In in) {
                       return Dropout(ctx, Transpose(ctx, in[0], 0, 1), 0.4f,
                                      DropoutKey(ctx, 3, 0));
                     }});
  samples.push_back(
      {"Embedding",
       "[2, 3] ids with repeats",
       {{{5, 4}}},
       [](Context& ctx, In in) {
         return Embedding(
             ctx, TensorOf<int32_t>(ctx, {2, 3}, {1, 4, 1, 0, 1, 4}), in[0]);
       }});
  samples.push_back(
      {"Embedding", "no ids", {{{3, 2}}}, [](Context& ctx, In in) {
         return Embedding(ctx, TensorOf<int32_t>(ctx, {0}, {}), in[0]);
       }});
  samples.push_back(
      {"CrossEntropy",
       "[4, 6], one row ignored",
       {{{4, 6}, -2, 2}},
       [](Context& ctx, In in) {
         return CrossEntropy(ctx, in[0],
                             TensorOf<int32_t>(
                                 ctx, {4}, {3, kernels::kIgnoreLabel, 0, 5}))
             .sum;
       }});
  samples.push_back(
      {"CrossEntropy",
       "[2, 3, 5]",
       {{{2, 3, 5}, -2, 2}},
       [](Context& ctx, In in) {
         return CrossEntropy(ctx, in[0],
                             TensorOf<int32_t>(ctx, {2, 3}, {0, 1, 2, 3, 4, 0}))
             .sum;
       }});
  // One panel of rows and a part, one block of words and a part.
  samples.push_back(
      {"LinearCrossEntropy",
       "[2, 25, 3] with [75, 3], some rows ignored",
       {{{2, 25, 3}}, {{75, 3}}},
       [](Context& ctx, In in) {
         std::vector<int32_t> labels;
         for (int32_t r = 0; r < 50; ++r)
           labels.push_back(r % 7 == 3 ? kernels::kIgnoreLabel : r * 31 % 75);
         return LinearCrossEntropy(ctx, in[0], in[1],
                                   TensorOf<int32_t>(ctx, {2, 25}, labels))
             .sum;
       }});
  samples.push_back({"LinearCrossEntropy",
                     "of transposed operands",
                     {{{5, 4}}, {{5, 6}}},
                     [](Context& ctx, In in) {
                       return LinearCrossEntropy(
                                  ctx, Transpose(ctx, in[0], 0, 1),
                                  Transpose(ctx, in[1], 0, 1),
                                  TensorOf<int32_t>(ctx, {4}, {5, 0, 2, 2}))
                           .sum;
                     }});
  samples.push_back({"LinearCrossEntropy",
                     "all rows ignored",
                     {{{2, 3}}, {{4, 3}}},
                     [](Context& ctx, In in) {
                       return LinearCrossEntropy(
                                  ctx, in[0], in[1],
                                  TensorOf<int32_t>(ctx, {2},
                                                    {kernels::kIgnoreLabel,
                                                     kernels::kIgnoreLabel}))
                           .sum;
                     }});
  samples.push_back(
      {"Cast",
       "f64 to f32",
       {{{3, 5}}},
       [](Context& ctx, In in) { return ToDType(ctx, in[0], DType::kF32); },
       /*step=*/0x1p-10,
       /*quantum=*/0x1p-10,
       /*f64_only=*/true});
}

// What Llama's blocks are made of.
void AddGatedAndRotary(Samples& samples) {
  for (const Shape& shape :
       {Shape{3, 8}, Shape{2, 3, 5}, Shape{4, 1}, Shape{0, 8}, Shape{65, 33}}) {
    const Shape width{shape.dim(-1)};
    samples.push_back({"RmsNorm",
                       StrCat(shape),
                       {{shape}, Positive(width)},
                       [](Context& ctx, In in) {
                         return RmsNorm(ctx, in[0], in[1], {.eps = 1e-3});
                       }});
    samples.push_back(
        {"SwiGlu",
         StrCat(shape),
         {{shape, -2, 2}, {shape}},
         [](Context& ctx, In in) { return SwiGlu(ctx, in[0], in[1]); }});
  }
  samples.push_back(
      {"RmsNorm", "of a slice", {{{4, 6}}, {{3}}}, [](Context& ctx, In in) {
         return RmsNorm(ctx, Slice(ctx, in[0], 1, 2, 5), in[1], {.eps = 1e-3});
       }});
  samples.push_back(
      {"SwiGlu", "of two halves", {{{3, 10}}}, [](Context& ctx, In in) {
         return SwiGlu(ctx, Slice(ctx, in[0], 1, 0, 5),
                       Slice(ctx, in[0], 1, 5, 10));
       }});
  for (const bool interleaved : {false, true}) {
    const char* name = interleaved ? "neighbours" : "halves";
    for (const int64_t turned : {0, 4, 6}) {
      samples.push_back({"Rope",
                         StrCat(name, ", ", turned, " of 6"),
                         {{{2, 3, 2, 6}}},
                         [=](Context& ctx, In in) {
                           return Rope(
                               ctx, in[0], RopeTable(ctx, 9, turned),
                               {.offset = 5, .interleaved = interleaved});
                         }});
    }
    samples.push_back({"Rope",
                       StrCat(name, ", heads outside"),
                       {{{1, 2, 3, 4}}},
                       [=](Context& ctx, In in) {
                         return Rope(ctx, Transpose(ctx, in[0], 1, 2),
                                     RopeTable(ctx, 4, 4),
                                     {.interleaved = interleaved});
                       }});
  }
}

void AddAttention(Samples& samples) {
  const AttentionOptions options[] = {
      {},
      {.causal = false},
      {.scale = 0.3, .dropout = 0.25f, .dropout_key = RngKey(5, "mask")},
  };
  const char* names[] = {"causal", "full", "with dropout"};
  for (size_t i = 0; i < 3; ++i) {
    const AttentionOptions o = options[i];
    for (int64_t time : {1, 5}) {
      samples.push_back({"SelfAttention",
                         StrCat(names[i], ", T=", time),
                         {{{2, time, 12}}},
                         [o](Context& ctx, In in) {
                           return SelfAttention(ctx, in[0], 2, o);
                         }});
    }
    samples.push_back({"Attention",
                       StrCat(names[i], ", Tq=2, Tk=5"),
                       {{{2, 2, 2, 3}}, {{2, 5, 2, 3}}, {{2, 5, 2, 3}}},
                       [o](Context& ctx, In in) {
                         return Attention(ctx, in[0], in[1], in[2], o);
                       }});
    samples.push_back({"Attention",
                       StrCat(names[i], ", heads outside"),
                       {{{1, 2, 3, 4}}, {{1, 2, 3, 4}}, {{1, 3, 2, 4}}},
                       [o](Context& ctx, In in) {
                         return Attention(ctx, Transpose(ctx, in[0], 1, 2),
                                          Transpose(ctx, in[1], 1, 2), in[2],
                                          o);
                       }});
  }
  samples.push_back(
      {"SelfAttention", "of a slice", {{{2, 3, 9}}}, [](Context& ctx, In in) {
         return SelfAttention(ctx, Slice(ctx, in[0], 2, 2, 8), 1);
       }});
}

}  // namespace

std::vector<OpSample> OpSamples() {
  Samples samples;
  AddUnary(samples);
  AddScalar(samples);
  AddBinary(samples);
  AddReduce(samples);
  AddViews(samples);
  AddProducts(samples);
  AddFused(samples);
  AddGatedAndRotary(samples);
  AddAttention(samples);
  return samples;
}

std::vector<Tensor> MakeOperands(Context& ctx, const OpSample& sample,
                                 DType dtype, double quantum) {
  if (quantum == 0) quantum = sample.quantum;
  std::vector<Tensor> tensors;
  for (const SampleOperand& operand : sample.operands) {
    const RngKey key(1, "operand", tensors.size());
    const Tensor exact = ctx.Empty(operand.shape, DType::kF64);
    for (int64_t i = 0; i < exact.numel(); ++i) {
      const auto index = static_cast<uint64_t>(i);
      double value = operand.low +
                     (operand.high - operand.low) * double{Uniform(key, index)};
      if (quantum != 0) value = std::floor(value / quantum) * quantum;
      if (operand.mirrored && Bits(key.With("sign"), index) % 2 == 1)
        value = -value;
      exact.data<double>()[i] = value;
    }
    Tensor x = exact;
    if (dtype != DType::kF64) {
      x = ctx.Empty(operand.shape, dtype);
      kernels::Copy(ctx, exact.view(), x.mut());
    }
    tensors.push_back(std::move(x));
  }
  return tensors;
}

}  // namespace terrace::autograd
