#include "terrace/kernels/optimizer_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/kernels/ordered_sum.h"
#include "terrace/tests/reference/optimizer.h"
#include "terrace/tests/support/targets.h"
#include "terrace/tests/support/tensors.h"

namespace terrace {
namespace {

using kernels::AdamParams;
using kernels::AdamUpdate;
using kernels::AdamWindow;
using kernels::RoundTo;
using kernels::SgdParams;
using kernels::SgdUpdate;
using kernels::UpdateWindow;
using support::Doubles;
using support::ErrorOf;
using support::Filled;
using support::ForEachTarget;
using support::Random;
using support::SameBits;
using testing::HasSubstr;

AdamParams ParamsAt(const reference::AdamRule& rule, int step) {
  AdamParams p;
  p.lr = rule.lr;
  p.beta1 = rule.beta1;
  p.beta2 = rule.beta2;
  p.eps = rule.eps;
  p.weight_decay = rule.decay;
  p.decoupled = rule.decoupled;
  p.step_size = rule.lr / (1 - std::pow(rule.beta1, step));
  p.sqrt_correction2 = std::sqrt(1 - std::pow(rule.beta2, step));
  return p;
}

// Master, moments and working copy of n elements, with a fixed gradient.
struct States {
  States(const Context& ctx, int64_t n, DType grad_dtype, DType working_dtype,
         DType state_dtype = DType::kF32)
      : master(Random(ctx, {n}, state_dtype, 1)),
        first(Filled(ctx, {n}, state_dtype, 0)),
        second(Filled(ctx, {n}, state_dtype, 0)),
        grad(Random(ctx, {n}, grad_dtype, 2, -4, 4)),
        working(Filled(ctx, {n}, working_dtype, 0)) {}

  UpdateWindow Window(int64_t begin, int64_t end) const {
    const auto at = [begin](const Tensor& t) {
      return static_cast<char*>(t.raw()) + begin * SizeOf(t.dtype());
    };
    UpdateWindow w;
    w.numel = end - begin;
    w.state_dtype = master.dtype();
    w.master = at(master);
    w.first = at(first);
    w.second = at(second);
    w.grad = at(grad);
    w.grad_dtype = grad.dtype();
    w.working = at(working);
    w.working_dtype = working.dtype();
    w.q = 0.37;
    return w;
  }
  UpdateWindow Whole() const { return Window(0, master.numel()); }

  Tensor master, first, second, grad, working;
};

void ExpectSame(const States& a, const States& b) {
  EXPECT_TRUE(SameBits(a.master, b.master));
  EXPECT_TRUE(SameBits(a.first, b.first));
  EXPECT_TRUE(SameBits(a.second, b.second));
  EXPECT_TRUE(SameBits(a.working, b.working));
}

// The rule of the header in plain C++.
template <class T>
void PlainAdam(const UpdateWindow& window, const AdamParams& p) {
  const T q = static_cast<T>(window.q), beta1 = static_cast<T>(p.beta1),
          rest1 = static_cast<T>(1 - p.beta1), beta2 = static_cast<T>(p.beta2),
          rest2 = static_cast<T>(1 - p.beta2), eps = static_cast<T>(p.eps),
          step_size = static_cast<T>(p.step_size),
          correction = static_cast<T>(p.sqrt_correction2),
          decay = static_cast<T>(p.decoupled ? p.lr * p.weight_decay
                                             : p.weight_decay);
  std::vector<T> grad(static_cast<size_t>(window.numel));
  RoundTo(window.grad, window.grad_dtype, window.numel, grad.data(),
          window.state_dtype);
  T* const master = static_cast<T*>(window.master);
  T* const first = static_cast<T*>(window.first);
  T* const second = static_cast<T*>(window.second);
  for (int64_t i = 0; i < window.numel; ++i) {
    T w = master[i];
    T g = q * grad[static_cast<size_t>(i)];
    if (!p.decoupled && decay != 0) g = g + decay * w;
    first[i] = beta1 * first[i] + rest1 * g;
    second[i] = beta2 * second[i] + rest2 * (g * g);
    if (p.decoupled && decay != 0) w = w - decay * w;
    const T denominator = std::sqrt(second[i]) / correction + eps;
    master[i] = w - step_size * (first[i] / denominator);
  }
  RoundTo(master, window.state_dtype, window.numel, window.working,
          window.working_dtype);
}

// B002.
TEST(AdamUpdateTest, FirstStepMovesByTheLearningRate) {
  const Context ctx;
  const reference::AdamRule rule{.lr = 0.01};
  for (const double g : {1e-6, 1.0, 1e6, -1.0}) {
    float w = 0, m = 0, v = 0;
    const float grad = static_cast<float>(g);
    UpdateWindow window;
    window.numel = 1;
    window.master = &w;
    window.first = &m;
    window.second = &v;
    window.grad = &grad;
    reference::AdamState want;
    for (int step = 1; step <= 4; ++step) {
      AdamUpdate(ctx, window, ParamsAt(rule, step));
      reference::AdamStep(rule, static_cast<double>(grad), want);
      if (step == 1) {
        const double moved = 0.01 * std::fabs(g) / (std::fabs(g) + 1e-8);
        EXPECT_NEAR(std::fabs(static_cast<double>(w)), moved, 1e-6 * moved);
      }
      EXPECT_NEAR(static_cast<double>(w), want.w, 1e-6 * std::fabs(want.w))
          << g << " step " << step;
    }
  }
}

TEST(AdamUpdateTest, MatchesTheDoubleReference) {
  const Context ctx;
  for (const bool decoupled : {true, false}) {
    const reference::AdamRule rule{
        .lr = 0.01, .decay = 0.1, .decoupled = decoupled};
    const States s(ctx, 37, DType::kF32, DType::kF32);
    const std::vector<double> master = Doubles(s.master.view());
    const std::vector<double> grad = Doubles(s.grad.view());
    std::vector<reference::AdamState> want(37);
    for (size_t i = 0; i < want.size(); ++i) want[i].w = master[i];
    for (int step = 1; step <= 20; ++step) {
      AdamUpdate(ctx, s.Whole(), ParamsAt(rule, step));
      for (size_t i = 0; i < want.size(); ++i)
        reference::AdamStep(rule, 0.37 * grad[i], want[i]);
    }
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(Doubles(s.master.view())[i], want[i].w, 2e-6);
  }
}

// B073: the tails, on every instruction set, against plain C++.
TEST(AdamUpdateTest, HasTheBitsOfPlainCodeOnEveryInstructionSet) {
  const Context ctx;
  for (const bool decoupled : {true, false}) {
    const AdamParams p =
        ParamsAt({.lr = 0.01, .decay = 0.1, .decoupled = decoupled}, 1);
    for (const DType state : {DType::kF32, DType::kF64}) {
      for (const DType grad : support::kFloatTypes) {
        for (const int64_t n : {1, 7, 8, 9, 31, 1027}) {
          const States want(ctx, n, grad, DType::kBF16, state);
          for (int step = 0; step < 3; ++step) {
            if (state == DType::kF32) {
              PlainAdam<float>(want.Whole(), p);
            } else {
              PlainAdam<double>(want.Whole(), p);
            }
          }
          ForEachTarget([&] {
            const States got(ctx, n, grad, DType::kBF16, state);
            for (int step = 0; step < 3; ++step)
              AdamUpdate(ctx, got.Whole(), p);
            ExpectSame(got, want);
          });
        }
      }
    }
  }
}

TEST(AdamUpdateTest, WholeEqualsAnySplit) {
  const Context ctx;
  const AdamParams p = ParamsAt({.lr = 0.01, .decay = 0.1}, 3);
  const int64_t n = 67;
  const States whole(ctx, n, DType::kBF16, DType::kF16);
  AdamUpdate(ctx, whole.Whole(), p);
  for (int64_t cut = 0; cut <= n; ++cut) {
    const States parts(ctx, n, DType::kBF16, DType::kF16);
    AdamUpdate(ctx, parts.Window(0, cut), p);
    AdamUpdate(ctx, parts.Window(cut, n), p);
    ExpectSame(parts, whole);
  }
}

// Windows of one list, of other sizes, types and rates, cut by tasks anywhere.
TEST(AdamUpdateTest, AListEqualsItsWindowsOneByOne) {
  const Context ctx({.threads = 2});
  const std::vector<int64_t> sizes = {3, 0, 40000, 1, 16384, 100, 0};
  std::vector<States> one_by_one, together;
  std::vector<AdamWindow> windows;
  together.reserve(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    const DType grad = i % 2 == 0 ? DType::kF32 : DType::kBF16;
    const AdamParams p =
        ParamsAt({.lr = 0.01 * static_cast<double>(i + 1), .decay = 0.1},
                 static_cast<int>(i) + 1);
    one_by_one.emplace_back(ctx, sizes[i], grad, DType::kBF16);
    together.emplace_back(ctx, sizes[i], grad, DType::kBF16);
    AdamUpdate(ctx, one_by_one.back().Whole(), p);
    windows.push_back({together.back().Whole(), p});
  }
  AdamUpdate(ctx, windows);
  for (size_t i = 0; i < sizes.size(); ++i)
    ExpectSame(together[i], one_by_one[i]);
}

TEST(AdamUpdateTest, ThreadsDoNotEnter) {
  const Context one({.threads = 1});
  const Context two({.threads = 2});
  const AdamParams p = ParamsAt({.lr = 0.01, .decay = 0.1}, 2);
  const int64_t n = 1000003;
  const States a(one, n, DType::kF32, DType::kBF16);
  const States b(two, n, DType::kF32, DType::kBF16);
  AdamUpdate(one, a.Whole(), p);
  AdamUpdate(two, b.Whole(), p);
  ExpectSame(a, b);
}

TEST(AdamUpdateTest, PaddingStaysZero) {
  const Context ctx;
  const States s(ctx, 40, DType::kF32, DType::kBF16);
  for (const Tensor& t : {s.master, s.grad})
    std::fill_n(t.data<float>(), 40, 0);
  for (int step = 1; step < 4; ++step)
    AdamUpdate(ctx, s.Whole(), ParamsAt({.decay = 0.1}, step));
  for (const Tensor& t : {s.master, s.first, s.second, s.working})
    EXPECT_TRUE(SameBits(t, Filled(ctx, {40}, t.dtype(), 0)));
}

TEST(AdamUpdateTest, WithoutAWorkingCopyOnlyTheMasterMoves) {
  const Context ctx;
  const States s(ctx, 9, DType::kF32, DType::kF32);
  UpdateWindow window = s.Whole();
  window.working = nullptr;
  AdamUpdate(ctx, window, ParamsAt({}, 1));
  EXPECT_EQ(Doubles(s.working.view()), std::vector<double>(9, 0));
}

TEST(AdamUpdateTest, B148TouchesTwentyEightBytesAParameterAndAllocatesNone) {
  const Context ctx;
  const int64_t n = 100'003;
  const States s(ctx, n, DType::kF32, DType::kF32);
  UpdateWindow window = s.Whole();
  window.working = nullptr;
  // Weight and both moments read and written, the gradient read.
  EXPECT_EQ(kernels::UpdateWindowNbytes(window), 28 * n);
  window.numel = 7;
  EXPECT_EQ(kernels::UpdateWindowNbytes(window), 28 * 7);
  // A bf16 copy is written; a bf16 gradient is half as long.
  const States mixed(ctx, n, DType::kBF16, DType::kBF16);
  EXPECT_EQ(kernels::UpdateWindowNbytes(mixed.Whole()), (24 + 2 + 2) * n);
  window.numel = n;
  window.first = window.second = nullptr;  // SGD
  EXPECT_EQ(kernels::UpdateWindowNbytes(window), (8 + 4) * n);

  const int64_t before = ctx.device_arena().Report().total.now;
  ctx.device_arena().ResetPeaks();
  for (const States* states : {&s, &mixed})
    AdamUpdate(ctx, states->Whole(), ParamsAt({.decay = 0.1}, 1));
  EXPECT_EQ(ctx.device_arena().Report().total.peak, before);
}

TEST(AdamUpdateTest, RefusesWhatCannotBeRight) {
  const Context ctx;
  const States s(ctx, 9, DType::kF32, DType::kF32);
  UpdateWindow window = s.Whole();
  window.second = nullptr;
  EXPECT_THAT(ErrorOf([&] { AdamUpdate(ctx, window, {}); }),
              HasSubstr("[adam_update] both moments must be given"));
  AdamParams no_eps;
  no_eps.eps = 0;
  EXPECT_THAT(ErrorOf([&] { AdamUpdate(ctx, s.Whole(), no_eps); }),
              HasSubstr("eps must be positive and no subnormal, got 0"));
  window = s.Whole();
  window.state_dtype = DType::kBF16;
  EXPECT_THAT(ErrorOf([&] { AdamUpdate(ctx, window, {}); }),
              HasSubstr("the states must be f32 or f64, got bf16"));
}

TEST(SgdUpdateTest, MatchesTheDoubleReference) {
  const Context ctx;
  for (const double momentum : {0.0, 0.9}) {
    ForEachTarget([&] {
      const States s(ctx, 21, DType::kBF16, DType::kF32);
      const std::vector<double> master = Doubles(s.master.view());
      const std::vector<double> grad = Doubles(s.grad.view());
      std::vector<reference::SgdState> want(21);
      UpdateWindow window = s.Whole();
      if (momentum == 0) window.first = nullptr;
      window.second = nullptr;
      for (size_t i = 0; i < want.size(); ++i) want[i].w = master[i];
      for (int step = 0; step < 5; ++step) {
        SgdUpdate(ctx, window,
                  {.lr = 0.1, .momentum = momentum, .weight_decay = 0.01});
        for (size_t i = 0; i < want.size(); ++i)
          reference::SgdStep(0.1, momentum, 0.01, 0.37 * grad[i], want[i]);
      }
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(Doubles(s.master.view())[i], want[i].w, 2e-6);
      EXPECT_EQ(Doubles(s.working.view()), Doubles(s.master.view()));
    });
  }
}

TEST(SgdUpdateTest, WholeEqualsAnySplitOnEveryInstructionSet) {
  const Context ctx;
  const SgdParams p{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01};
  const int64_t n = 35;
  const States whole(ctx, n, DType::kF32, DType::kBF16);
  for (int step = 0; step < 2; ++step) SgdUpdate(ctx, whole.Whole(), p);
  ForEachTarget([&] {
    for (int64_t cut = 0; cut <= n; ++cut) {
      const States parts(ctx, n, DType::kF32, DType::kBF16);
      for (int step = 0; step < 2; ++step) {
        SgdUpdate(ctx, parts.Window(0, cut), p);
        SgdUpdate(ctx, parts.Window(cut, n), p);
      }
      ExpectSame(parts, whole);
    }
  });
}

TEST(SgdUpdateTest, MomentumNeedsItsState) {
  const Context ctx;
  const States s(ctx, 4, DType::kF32, DType::kF32);
  UpdateWindow window = s.Whole();
  window.first = nullptr;
  EXPECT_THAT(ErrorOf([&] { SgdUpdate(ctx, window, {.momentum = 0.9}); }),
              HasSubstr("[sgd_update] a momentum of 0.9 needs its state"));
}

}  // namespace
}  // namespace terrace
