// Every row of autograd/op_list.inc in a dry context: forward, backward and
// recomputation take what they take otherwise.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "terrace/autograd/backward.h"
#include "terrace/autograd/checkpoint.h"
#include "terrace/tests/support/op_samples.h"

namespace terrace::autograd {
namespace {

MemoryReport ReportOf(const OpSample& sample, DType dtype, bool recompute,
                      bool dry) {
  Context ctx({.dry = dry});
  std::vector<Variable> leaves;
  for (const Tensor& x : MakeOperands(ctx, sample, dtype))
    leaves.emplace_back(ctx, x, true);
  ctx.device_arena().ResetPeaks();
  const auto call = [&](Context& c, std::span<const Variable> x) {
    return std::vector<Variable>{sample.call(c, x)};
  };
  const Variable y =
      recompute ? Recompute(ctx, call, leaves)[0] : sample.call(ctx, leaves);
  Backward(ctx, y, ctx.Empty(y.shape(), y.dtype()));
  return ctx.device_arena().Report();
}

TEST(DryOpTest, EveryRowTakesTheSameToTheByte) {
  int compared = 0;
  for (const OpSample& sample : OpSamples()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      if (sample.f64_only && dtype != DType::kF64) continue;
      for (const bool recompute : {false, true}) {
        const MemoryReport real = ReportOf(sample, dtype, recompute, false);
        const MemoryReport dry = ReportOf(sample, dtype, recompute, true);
        SCOPED_TRACE(StrCat(sample.op, ": ", sample.what, " ", dtype,
                            recompute ? " recomputed" : ""));
        // Labels have no values here: all rows are planned as if they counted.
        if (sample.what.find("all rows ignored") != std::string::npos) {
          EXPECT_GT(dry[MemoryTag::kWorkspace].peak,
                    real[MemoryTag::kWorkspace].peak);
          EXPECT_EQ(dry[MemoryTag::kActivation].peak,
                    real[MemoryTag::kActivation].peak);
          continue;
        }
        for (size_t tag = 0; tag < real.tags.size(); ++tag) {
          EXPECT_EQ(dry.tags[tag].peak, real.tags[tag].peak)
              << Name(static_cast<MemoryTag>(tag));
          EXPECT_EQ(dry.tags[tag].now, real.tags[tag].now)
              << Name(static_cast<MemoryTag>(tag));
        }
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace terrace::autograd
