#include "terrace/models/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"

namespace terrace::models {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

struct Logit {
  int32_t id;
  float value;
};

// The order of all ties: more likely first, then the smaller id.
bool Before(const Logit& a, const Logit& b) {
  return a.value != b.value ? a.value > b.value : a.id < b.id;
}

// The logits above -inf, of which there is at least one.
std::vector<Logit> Finite(std::span<const float> logits) {
  std::vector<Logit> kept;
  kept.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == kMinusInfinity) continue;
    if (!std::isfinite(logits[i])) {
      TERRACE_THROW(ErrorCode::kData, "[sampler] logits must be finite or -inf",
                    ", got ", logits[i], " for id ", i);
    }
    kept.push_back({static_cast<int32_t>(i), logits[i]});
  }
  if (kept.empty()) {
    TERRACE_THROW(ErrorCode::kData,
                  "[sampler] at least one logit must be finite, got none in ",
                  logits.size());
  }
  return kept;
}

}  // namespace

Sampler::Sampler(const SamplerOptions& options) : options_(options) {
  TERRACE_CHECK(std::isfinite(options.temperature) && options.temperature >= 0,
                "[sampler] temperature must be finite and >= 0, got ",
                options.temperature);
  TERRACE_CHECK(options.top_k >= 0,
                "[sampler] top_k must be >= 0 (0 keeps all), got ",
                options.top_k);
  TERRACE_CHECK(options.top_p > 0 && options.top_p <= 1,
                "[sampler] top_p must be in (0, 1], got ", options.top_p);
}

std::vector<Candidate> Sampler::Distribution(
    std::span<const float> logits) const {
  std::vector<Logit> kept = Finite(logits);
  size_t count = kept.size();
  if (options_.top_k > 0) {
    count = std::min(count, static_cast<size_t>(options_.top_k));
  }
  if (options_.temperature == 0) count = 1;
  std::partial_sort(kept.begin(), kept.begin() + count, kept.end(), Before);
  if (options_.temperature == 0) return {{kept[0].id, 1.0}};

  std::vector<Candidate> out(count);
  double mass = 0;
  for (size_t i = 0; i < count; ++i) {
    const double below = static_cast<double>(kept[i].value) - kept[0].value;
    out[i] = {kept[i].id, std::exp(below / options_.temperature)};
    mass += out[i].probability;
  }
  if (options_.top_p < 1) {
    const double wanted = mass * options_.top_p;
    double reached = 0;
    size_t last = 0;
    while (last < count && reached < wanted) {
      reached += out[last++].probability;
    }
    out.resize(last);
    mass = reached;
  }
  for (Candidate& candidate : out) candidate.probability /= mass;
  return out;
}

int32_t Sampler::Draw(std::span<const float> logits, int64_t sequence,
                      int64_t position) const {
  const std::vector<Candidate> candidates = Distribution(logits);
  if (candidates.size() == 1) return candidates.front().id;
  const double u = std::ldexp(
      Bits(RngKey(options_.seed, "sampling", sequence), position), -32);
  double reached = 0;
  for (const Candidate& candidate : candidates) {
    reached += candidate.probability;
    if (u < reached) return candidate.id;
  }
  return candidates.back().id;  // u above a sum rounded below 1
}

}  // namespace terrace::models
