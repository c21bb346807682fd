#include "terrace/zero/config/batch_sizes.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

constexpr std::string_view kTrain = "train_batch_size";
constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kAccumulation = "gradient_accumulation_steps";

// Where "auto" leaves both sizes open: the Hugging Face trainer's default.
constexpr int64_t kAutoMicroBatch = 8;

struct Given {
  std::optional<int64_t> train, micro, accumulation;
};

void AddChoice(std::string_view key, int64_t value, std::string* out) {
  if (value < 1) return;
  *out += StrCat(out->empty() ? "" : ", ", key, " ", value);
}

// The divisors of `number` nearest to `wish` from below and above.
void AddDivisors(std::string_view key, int64_t number, int64_t wish,
                 std::string* out) {
  constexpr int64_t kFarthest = 100000;  // the search stays short
  int64_t below = 0, above = 0;
  const int64_t start = std::min(wish, number);  // none is larger
  for (int64_t i = start; i >= 1 && i > start - kFarthest && below == 0; --i) {
    if (number % i == 0) below = i;
  }
  for (int64_t i = start + 1; i <= number && i - start < kFarthest; ++i) {
    if (number % i != 0) continue;
    above = i;
    break;
  }
  if (below != wish) AddChoice(key, below, out);
  AddChoice(key, above, out);
}

// a x b x c, or nullopt where it is more than an int64_t holds.
std::optional<int64_t> Product(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) ||
      __builtin_mul_overflow(product, c, &product)) {
    return std::nullopt;
  }
  return product;
}

// One change each that would make the numbers fit.
std::string NearestChoices(const Given& given, int64_t ranks) {
  std::string out;
  if (!given.train) return out;
  const int64_t train = *given.train;
  const int64_t micro = given.micro.value_or(1);
  const int64_t accumulation = given.accumulation.value_or(1);
  const std::optional<int64_t> unit = Product(micro, accumulation, ranks);
  if (unit && given.micro && given.accumulation) {
    AddChoice(kTrain, *unit, &out);
  } else if (unit) {
    AddChoice(kTrain, train / *unit * *unit, &out);
    AddChoice(kTrain, Product(train / *unit + 1, *unit, 1).value_or(0), &out);
  }
  const std::optional<int64_t> others = Product(accumulation, ranks, 1);
  if (others && given.micro && train % *others == 0) {
    const int64_t rest = train / *others;
    if (given.accumulation) {
      AddChoice(kMicro, rest, &out);
    } else {
      AddDivisors(kMicro, rest, micro, &out);
    }
  }
  const std::optional<int64_t> samples = Product(micro, ranks, 1);
  if (samples && given.accumulation && train % *samples == 0) {
    const int64_t rest = train / *samples;
    if (given.micro) {
      AddChoice(kAccumulation, rest, &out);
    } else {
      AddDivisors(kAccumulation, rest, accumulation, &out);
    }
  }
  return out;
}

std::string Factor(const KeyValues& values, std::string_view key, bool is_given,
                   int64_t value) {
  return StrCat(key, " ", value,
                is_given ? values.Place(key) : std::string(" (derived)"));
}

void DeriveMissing(KeyValues& values, const Given& given,
                   const BatchSizes& sizes) {
  const auto derive = [&](std::string_view key, bool is_given, int64_t value) {
    if (is_given || values.Given(key)) return;
    values.Derive(key, MakeJsonInt(value), FindKey(EngineKeys(), key)->derived);
  };
  derive(kTrain, given.train.has_value(), sizes.train);
  derive(kMicro, given.micro.has_value(), sizes.micro);
  derive(kAccumulation, given.accumulation.has_value(), sizes.accumulation);
}

}  // namespace

BatchSizes ResolveBatchSizes(KeyValues& values, int world_size) {
  const int64_t ranks = world_size;
  Given given{values.OptionalInt(kTrain), values.OptionalInt(kMicro),
              values.OptionalInt(kAccumulation)};
  if (!given.train && !given.micro && values.IsAuto(kMicro)) {
    given.micro = kAutoMicroBatch;
    values.Derive(kMicro, MakeJsonInt(kAutoMicroBatch),
                  "the Hugging Face trainer's default");
  }
  if (!given.train && !given.micro) {
    TERRACE_THROW(ErrorCode::kConfig, "[config] one of ",
                  values.options().prefix, kTrain, " and ",
                  values.options().prefix, kMicro,
                  " must be given, both are absent; train_batch_size = "
                  "micro-batch x accumulation x ",
                  Counted(ranks, "rank"));
  }
  BatchSizes sizes{given.train.value_or(0), given.micro.value_or(0),
                   given.accumulation.value_or(0)};
  // DeepSpeed's order, with its integer divisions; the product then tells.
  if (!given.accumulation) {
    sizes.accumulation =
        given.train && given.micro ? sizes.train / sizes.micro / ranks : 1;
  }
  if (!given.micro) sizes.micro = sizes.train / ranks / sizes.accumulation;
  const std::optional<int64_t> product =
      Product(sizes.micro, sizes.accumulation, ranks);
  if (!product) {
    values.Fail(kMicro, "micro-batch x accumulation x ranks is too large: ",
                sizes.micro, " x ", sizes.accumulation, " x ", ranks);
  }
  if (!given.train) sizes.train = *product;
  if (*product != sizes.train || *product == 0) {
    const std::string nearest = NearestChoices(given, ranks);
    TERRACE_THROW(
        ErrorCode::kConfig,
        "[config] the batch sizes must satisfy train_batch_size = "
        "micro-batch x accumulation x ranks, got ",
        sizes.train, " != ", sizes.micro, " x ", sizes.accumulation, " x ",
        ranks, ": ", values.options().prefix,
        Factor(values, kTrain, given.train.has_value(), sizes.train), ", ",
        Factor(values, kMicro, given.micro.has_value(), sizes.micro), ", ",
        Factor(values, kAccumulation, given.accumulation.has_value(),
               sizes.accumulation),
        ", ranks ", ranks, nearest.empty() ? "" : "; nearest: ", nearest);
  }
  DeriveMissing(values, given, sizes);
  return sizes;
}

}  // namespace terrace::zero
