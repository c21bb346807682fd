#include "terrace/zero/init.h"

#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "terrace/core/half.h"
#include "terrace/core/rng.h"

namespace terrace::zero {
namespace {

constexpr uint64_t kSeed = 1234;
constexpr char kName[] = "h.0.mlp.weight";

// Element by element, by the scalar generators.
double ValueOf(const Init& init, uint64_t element) {
  const RngKey key(kSeed, "init", kName);
  switch (init.kind) {
    case Init::Kind::kConstant:
      return init.a;
    case Init::Kind::kNormal:
      return init.a * Normal(key, element);
    case Init::Kind::kTruncatedNormal:
      return init.a * TruncatedNormal(-2, 2)(key, element);
    case Init::Kind::kUniform:
      return init.a +
             (init.b - init.a) * static_cast<double>(Uniform(key, element));
  }
  return 0;
}

template <class T>
T Rounded(double value) {
  if constexpr (std::is_same_v<T, double>) {
    return value;
  } else {
    return static_cast<T>(static_cast<float>(value));
  }
}

template <class T>
class InitTest : public testing::Test {};
using Types = testing::Types<float, double, BF16, F16>;
TYPED_TEST_SUITE(InitTest, Types);

TYPED_TEST(InitTest, FillsWithTheValuesOfTheElementsAndNothingBeyond) {
  using T = TypeParam;
  for (const Init& init :
       {Init::Constant(0.3), Init::Normal(0.02), Init::TruncatedNormal(0.5),
        Init::Uniform(-0.1, 0.7)}) {
    for (const int64_t begin : {0, 1, 31, 1000}) {
      for (const int64_t numel : {0, 1, 1024, 1025, 3000}) {
        const T beyond = Rounded<T>(7);
        std::vector<T> out(static_cast<size_t>(numel) + 1, beyond);
        FillInit(init, kSeed, kName, begin, numel, out.data(), kDTypeOf<T>);
        int64_t wrong = 0;
        for (int64_t i = 0; i < numel; ++i) {
          const T want =
              Rounded<T>(ValueOf(init, static_cast<uint64_t>(begin + i)));
          wrong += std::memcmp(&out[static_cast<size_t>(i)], &want,
                               sizeof want) != 0;
        }
        EXPECT_EQ(wrong, 0) << static_cast<int>(init.kind) << " from " << begin
                            << ", " << numel << " elements";
        EXPECT_EQ(static_cast<float>(out.back()), 7.0f);
      }
    }
  }
}

}  // namespace
}  // namespace terrace::zero
