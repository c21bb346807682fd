// Draws the next token from a row of logits: temperature, then top-k, then
// top-p, then one addressed random number.
//
//   p_i = softmax(logits / temperature)_i, kept to the top_k most likely, then
//   to the shortest prefix of those whose renormalised mass reaches top_p.
//
//   models::Sampler sampler({.temperature = 0.8f, .top_k = 40, .seed = 1});
//   int32_t id = sampler.Draw(logits, /*sequence=*/0, /*position=*/17);
//
// The draw depends on (seed, sequence, position) and the logits alone, never on
// earlier draws: a sequence comes out the same in any batch, on any rank. Equal
// logits are ordered by id. A Sampler is immutable and safe to share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace terrace::models {

struct SamplerOptions {
  float temperature = 1.0f;  // 0 is greedy: the most likely, least id on a tie
  int64_t top_k = 0;         // 0 keeps all
  float top_p = 1.0f;        // in (0, 1]; 1 keeps all
  uint64_t seed = 0;
};

struct Candidate {
  int32_t id;
  double probability;
};

class Sampler {
 public:
  // Throws kInvalidArgument when an option is out of range.
  explicit Sampler(const SamplerOptions& options);

  // The tokens that may be drawn, most likely first; probabilities sum to 1.
  // logits [V], -inf for what must not be drawn. Throws kData when the
  // row is empty, holds NaN or +inf, or nothing but -inf: the weights are bad.
  std::vector<Candidate> Distribution(std::span<const float> logits) const;

  // One token. `position` is that of the token drawn within its sequence.
  int32_t Draw(std::span<const float> logits, int64_t sequence,
               int64_t position) const;

  const SamplerOptions& options() const { return options_; }

 private:
  SamplerOptions options_;
};

}  // namespace terrace::models
