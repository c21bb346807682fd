#include "terrace/zero/init.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/normal_draw.h"

namespace terrace::zero {
namespace {

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

}  // namespace

void FillInit(const Init& init, uint64_t seed, std::string_view name,
              int64_t begin, int64_t numel, void* out, DType dtype) {
  const RngKey key(seed, "init", name);
  const TruncatedNormal truncated(-2, 2);
  VisitFloat(dtype, "init", [&]<class T>(Tag<T>) {
    T* values = static_cast<T*>(out);
    constexpr int64_t kBlock = 1024;
    std::array<double, kBlock> block;
    for (int64_t at = 0; at < numel; at += kBlock) {
      const int64_t count = std::min(kBlock, numel - at);
      const auto first = static_cast<uint64_t>(begin + at);
      Draw(init, key, truncated, first,
           std::span(block).first(static_cast<size_t>(count)));
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (std::is_same_v<T, double>)
          values[at + i] = block[static_cast<size_t>(i)];
        else
          values[at + i] =
              static_cast<T>(static_cast<float>(block[static_cast<size_t>(i)]));
      }
    }
  });
}

}  // namespace terrace::zero
