#include "terrace/zero/init.h"

#include "terrace/core/error.h"
#include "terrace/core/rng.h"

namespace terrace::zero {

void FillInit(const Init& init, uint64_t seed, std::string_view name,
              int64_t begin, int64_t numel, void* out, DType dtype) {
  const RngKey key(seed, "init", name);
  const TruncatedNormal truncated(-2, 2);
  VisitFloat(dtype, "init", [&]<class T>(Tag<T>) {
    T* values = static_cast<T*>(out);
    for (int64_t i = 0; i < numel; ++i) {
      const auto element = static_cast<uint64_t>(begin + i);
      double value = init.a;
      switch (init.kind) {
        case Init::Kind::kConstant:
          break;
        case Init::Kind::kNormal:
          value = init.a * Normal(key, element);
          break;
        case Init::Kind::kTruncatedNormal:
          value = init.a * truncated(key, element);
          break;
        case Init::Kind::kUniform:
          value = init.a + (init.b - init.a) *
                               static_cast<double>(Uniform(key, element));
          break;
      }
      if constexpr (std::is_same_v<T, double>)
        values[i] = value;
      else
        values[i] = static_cast<T>(static_cast<float>(value));
    }
  });
}

}  // namespace terrace::zero
