// Cases of cases.md that ops and the walk hold together.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cmath>
#include <exception>
#include <functional>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/ops/binary.h"
#include "terrace/autograd/ops/linear.h"
#include "terrace/autograd/ops/matmul.h"
#include "terrace/autograd/ops/reduce.h"
#include "terrace/autograd/ops/unary.h"
#include "terrace/autograd/ops/view.h"
#include "terrace/tests/support/local_parameters.h"
#include "terrace/tests/support/tensors.h"
#include "terrace/tests/support/values.h"

namespace terrace::autograd {
namespace {

using support::ErrorOf;
using Floats = std::vector<float>;

Variable Leaf(Context& ctx, const Shape& shape, const Floats& values) {
  return Variable(ctx, TensorOf<float>(ctx, shape, values), true);
}

Floats GradOf(const Variable& leaf) { return ValuesOf<float>(leaf.grad()); }

TEST(GraphCasesTest, B001PowersOfZeroHaveFiniteGradients) {
  Context ctx;
  const Variable a = Leaf(ctx, {3}, {0, 0, 3}), b = Leaf(ctx, {3}, {0, 0, 1});
  Backward(ctx, Sum(ctx, Pow(ctx, a - b, 2)));
  EXPECT_EQ(GradOf(a), Floats({0, 0, 4}));
  EXPECT_EQ(GradOf(b), Floats({0, 0, -4}));

  const auto gradient = [&](double exponent, const Floats& values) {
    const Variable x = Leaf(ctx, {static_cast<int64_t>(values.size())}, values);
    Backward(ctx, Sum(ctx, Pow(ctx, x, exponent)));
    return GradOf(x);
  };
  EXPECT_EQ(gradient(2, {0, -2, 3}), Floats({0, -4, 6}));
  EXPECT_EQ(gradient(3, {0, -2, 3}), Floats({0, 12, 27}));
  EXPECT_EQ(gradient(1, {0, -2, 3}), Floats({1, 1, 1}));
  EXPECT_EQ(gradient(0, {0, -2, 3}), Floats({0, 0, 0}));
  const Floats root = gradient(0.5, {1, 4, 0.25f});
  EXPECT_FLOAT_EQ(root[0], 0.5f);
  EXPECT_FLOAT_EQ(root[1], 0.25f);
  EXPECT_FLOAT_EQ(root[2], 1);
}

// The sum of k uses of one tensor, mixed: f and the sum of the factors.
Variable Uses(Context& ctx, const Variable& x, int k, float* factor) {
  const Variable identity(ctx, TensorOf<float>(ctx, {2, 2}, {1, 0, 0, 1}));
  Variable total;
  *factor = 0;
  for (int use = 0; use < k; ++use) {
    Variable term;
    switch (use % 4) {
      case 0:
        term = Scale(ctx, x, 0.5);
        *factor += 0.5f;
        break;
      case 1:
        term = Shift(ctx, x, 1);
        *factor += 1;
        break;
      case 2:
        term = MatMul(ctx, x, identity);
        *factor += 1;
        break;
      default:
        term = Add(ctx, x, x);
        *factor += 2;
    }
    total = total.defined() ? total + term : term;
  }
  return total;
}

TEST(GraphCasesTest, B026EveryFanOutSumsAllContributions) {
  Context ctx;
  for (int k = 1; k <= 40; ++k) {
    float factor = 0;
    const Variable leaf = Leaf(ctx, {2, 2}, {1, 2, 3, 4});
    Backward(ctx, Sum(ctx, Uses(ctx, leaf, k, &factor)));
    EXPECT_EQ(GradOf(leaf), Floats(4, factor)) << "leaf, k = " << k;

    const Variable below = Leaf(ctx, {2, 2}, {1, 2, 3, 4});
    const Variable inner = Scale(ctx, below, 4);
    Backward(ctx, Sum(ctx, Uses(ctx, inner, k, &factor)));
    EXPECT_EQ(GradOf(below), Floats(4, 4 * factor)) << "inner, k = " << k;

    LocalParameters params(ctx);
    const Parameter w =
        params.Add("w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
    Backward(ctx, Sum(ctx, Uses(ctx, w, k, &factor)));
    EXPECT_EQ(ValuesOf<float>(params.grad(w)), Floats(4, factor))
        << "parameter, k = " << k;

    // Equal uses: k times the gradient of one.
    const Variable same = Leaf(ctx, {2, 2}, {1, 2, 3, 4});
    Variable total = same * 1.0;
    for (int use = 1; use < k; ++use) total = total + same * 1.0;
    Backward(ctx, Sum(ctx, total));
    EXPECT_EQ(GradOf(same), Floats(4, static_cast<float>(k))) << "k = " << k;
  }
}

TEST(GraphCasesTest, B027NoContributionIsSharedOrLost) {
  Context ctx;
  {
    const Variable x = Leaf(ctx, {}, {1}), y = Leaf(ctx, {}, {1});
    const Variable z = x + y;
    Backward(ctx, x / z);
    EXPECT_EQ(GradOf(x), Floats({0.25f}));
    EXPECT_EQ(GradOf(y), Floats({-0.25f}));
  }
  {
    const Variable x = Leaf(ctx, {}, {2});
    const Variable y = 3.0 * x;
    Backward(ctx, 2.0 * y + 5.0 * y);
    EXPECT_EQ(GradOf(x), Floats({21}));
  }
  {
    const Variable x = Leaf(ctx, {}, {1});
    const Variable a(ctx, TensorOf<float>(ctx, {}, {1}));
    const Variable f = 2.0 * x * (x * a) + x * x * a;
    Backward(ctx, f);
    EXPECT_EQ(GradOf(x), Floats({6}));
  }
  {
    // Both operands of an addition go on to be added to.
    const Variable x = Leaf(ctx, {2}, {1, 2});
    const Variable p = x * 1.0, q = x * 1.0;
    const Variable sum = p + q;
    Backward(ctx, Sum(ctx, sum * 3.0 + p * 10.0 + q * 100.0));
    EXPECT_EQ(GradOf(x), Floats({116, 116}));
  }
}

// Runs f on a thread whose stack has 1 MiB.
void OnSmallStack(const std::function<void()>& f) {
  struct Call {
    const std::function<void()>& f;
    std::exception_ptr error;
  } call{f, nullptr};
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 1 << 20), 0);
  pthread_t thread;
  const auto body = [](void* argument) -> void* {
    Call& c = *static_cast<Call*>(argument);
    try {
      c.f();
    } catch (...) {
      c.error = std::current_exception();
    }
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, body, &call), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  if (call.error) std::rethrow_exception(call.error);
}

constexpr int kChain = 200000;

int64_t InUse(const Context& ctx) {
  return ctx.device_arena().Report()[MemoryTag::kActivation].now;
}

TEST(GraphCasesTest, B015LongChainsAreWalkedAndFreedWithoutRecursion) {
  OnSmallStack([] {
    Context ctx;
    const Variable one(ctx, TensorOf<float>(ctx, {}, {1}));
    const Variable x = Leaf(ctx, {}, {0});
    const int64_t before = InUse(ctx);
    {
      Variable y = x;
      for (int i = 0; i < kChain; ++i) y = y + one;
      EXPECT_EQ(ValuesOf<float>(y.value()), Floats({kChain}));
    }
    EXPECT_EQ(InUse(ctx), before) << "never walked";
    {
      Variable y = x;
      for (int i = 0; i < kChain; ++i) y = y + one;
      Backward(ctx, y);
    }
    EXPECT_EQ(GradOf(x), Floats({1}));
    Variable(x).ClearGrad();
    EXPECT_EQ(InUse(ctx), before) << "walked";
  });
}

TEST(GraphCasesTest, B015ChainsThroughRecomputeRegionsToo) {
  OnSmallStack([] {
    Context ctx;
    const Variable x = Leaf(ctx, {}, {0});
    const int64_t before = InUse(ctx);
    const auto region = [&](const Variable& y) {
      return Recompute(ctx,
                       [](Context& c, std::span<const Variable> in) {
                         return std::vector<Variable>{Shift(c, in[0], 1)};
                       },
                       {y})[0];
    };
    for (const bool backward : {false, true}) {
      Variable y = x;
      for (int i = 0; i < kChain; ++i) y = region(y);
      if (backward) {
        Backward(ctx, y);
        EXPECT_EQ(GradOf(x), Floats({1}));
        Variable(x).ClearGrad();
      }
      y = Variable();
      EXPECT_EQ(InUse(ctx), before) << backward;
    }
  });
}

// y = x^T; z = y * y keeps y; `change` writes to the storage in between.
std::string ErrorAfter(
    Context& ctx,
    const std::function<void(const Tensor& x, const Tensor& y)>& change) {
  const Variable x = Leaf(ctx, {2, 2}, {1, 2, 3, 4});
  const Variable y = Transpose(ctx, x, 0, 1);
  const Variable z = Sum(ctx, y * y);
  change(x.value(), y.value());
  return ErrorOf([&] { Backward(ctx, z); });
}

TEST(GraphCasesTest, B035ChangesThroughAnyViewOfSavedStorageAreErrors) {
  Context ctx;
  const auto add_one = [](const Tensor& x) {
    x.data<float>()[0] += 1;
    x.BumpVersion();
  };
  EXPECT_EQ(ErrorAfter(ctx, [](const Tensor&, const Tensor&) {}), "");
  const std::string wanted = "saved value was modified";
  EXPECT_NE(ErrorAfter(ctx, [&](const Tensor& x, const Tensor&) { add_one(x); })
                .find(wanted),
            std::string::npos);
  EXPECT_NE(ErrorAfter(ctx, [&](const Tensor&, const Tensor& y) { add_one(y); })
                .find(wanted),
            std::string::npos);
  EXPECT_NE(ErrorAfter(ctx,
                       [&](const Tensor& x, const Tensor&) {
                         add_one(x.Slice(0, 1, 2).Slice(1, 0, 1));
                       })
                .find(wanted),
            std::string::npos);
}

TEST(GraphCasesTest, B035ParametersWrittenAfterForwardAreErrorsThatNameThem) {
  Context ctx;
  LocalParameters params(ctx);
  const Parameter w =
      params.Add("h.0.w", TensorOf<float>(ctx, {2, 2}, {1, 2, 3, 4}));
  const Variable x = Leaf(ctx, {1, 2}, {1, 1});
  const Variable y = Sum(ctx, Linear(ctx, x, Transpose(ctx, w, 0, 1)));
  params.Write(w, TensorOf<float>(ctx, {2, 2}, {5, 6, 7, 8}));
  const std::string error = ErrorOf([&] { Backward(ctx, y); });
  EXPECT_NE(error.find("saved value was modified"), std::string::npos) << error;
  EXPECT_NE(error.find("'h.0.w'"), std::string::npos) << error;
}

}  // namespace
}  // namespace terrace::autograd
