// Count models of text, the oracles of a trained language model: what must a
// loss beat to have learnt more than letter statistics, and does a sample
// consist of words?
//
//   NgramModel model(/*order=*/2, /*vocab_size=*/257, train_tokens);
//   double nats = model.NatsPerToken(held_out_tokens);
//
// The model of order n sees the n tokens before, interpolated by Witten and
// Bell down to the uniform distribution:
//   P(w | h) = (c(h w) + d(h) P(w | h')) / (c(h) + d(h))
// with c counts in the training text, d(h) the number of distinct tokens seen
// after h, and h' = h without its first token. There is nothing to tune.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace::reference {

class NgramModel {
 public:
  // order in [0, 6] (a history and its successor pack into 63 bits);
  // vocab_size <= 512; tokens in [0, vocab_size).
  NgramModel(int order, int64_t vocab_size, std::span<const int32_t> tokens);

  // P(token | history); only the last `order` tokens of history count, fewer
  // are allowed.
  double Probability(std::span<const int32_t> history, int32_t token) const;

  // Mean of -ln P over tokens[1 ...], each given those before it: the targets
  // of a language model.
  double NatsPerToken(std::span<const int32_t> tokens) const;

 private:
  struct Level {  // histories of one length, sorted by key for lookup
    std::vector<uint64_t> grams;
    std::vector<int64_t> gram_counts;
    std::vector<uint64_t> histories;
    std::vector<int64_t> totals;
    std::vector<int64_t> distinct;
  };

  int64_t vocab_size_;
  std::vector<Level> levels_;  // [k]: histories of k tokens
};

// Maximal runs of ASCII letters and bytes above 127 of at least `least` bytes,
// ASCII letters in lower case, in order of occurrence.
std::vector<std::string> Words(std::string_view text, size_t least);

// The share of the words of three letters or more in `sample` that are words
// of `training_text`; 0 when the sample has none.
double KnownWordShare(std::string_view sample, std::string_view training_text);

}  // namespace terrace::reference
