#include "terrace/zero/init.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <type_traits>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/normal_draw.h"

namespace terrace::zero {
namespace {

constexpr int64_t kBlock = 1024;

// out[i] = value of element first + i.
void Draw(const Init& init, const RngKey& key, const TruncatedNormal& truncated,
          uint64_t first, std::span<double> out) {
  switch (init.kind) {
    case Init::Kind::kConstant:
      std::ranges::fill(out, init.a);
      return;
    case Init::Kind::kNormal:
      kernels::NormalDraws(key, first, std::ssize(out), out.data());
      for (double& value : out) value *= init.a;
      return;
    case Init::Kind::kTruncatedNormal:
      for (double& value : out) value = init.a * truncated(key, first++);
      return;
    case Init::Kind::kUniform:
      for (double& value : out)
        value = init.a +
                (init.b - init.a) * static_cast<double>(Uniform(key, first++));
      return;
  }
}

// The same, rounded to float.
void Draw(const Init& init, const RngKey& key, const TruncatedNormal& truncated,
          uint64_t first, std::span<float> out) {
  if (init.kind == Init::Kind::kNormal) {  // most of a model
    kernels::NormalDraws(key, first, std::ssize(out), init.a, out.data());
    return;
  }
  std::array<double, kBlock> wide;
  Draw(init, key, truncated, first, std::span(wide).first(out.size()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(wide[i]);
}

}  // namespace

void FillInit(const Init& init, uint64_t seed, std::string_view name,
              int64_t begin, int64_t numel, void* out, DType dtype) {
  const RngKey key(seed, "init", name);
  const TruncatedNormal truncated(-2, 2);
  VisitFloat(dtype, "init", [&]<class T>(Tag<T>) {
    using Drawn = std::conditional_t<std::is_same_v<T, double>, double, float>;
    std::array<Drawn, kBlock> block;
    for (int64_t at = 0; at < numel; at += kBlock) {
      const int64_t count = std::min(kBlock, numel - at);
      const auto drawn = std::span(block).first(static_cast<size_t>(count));
      Draw(init, key, truncated, static_cast<uint64_t>(begin + at), drawn);
      T* const values = static_cast<T*>(out) + at;
      for (size_t i = 0; i < drawn.size(); ++i)
        values[i] = static_cast<T>(drawn[i]);
    }
  });
}

}  // namespace terrace::zero
