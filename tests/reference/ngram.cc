#include "terrace/tests/reference/ngram.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "terrace/core/error.h"

namespace terrace::reference {
namespace {

constexpr int kTokenBits = 9;

uint64_t Pack(std::span<const int32_t> tokens) {
  uint64_t key = 0;
  for (int32_t token : tokens) {
    key = key << kTokenBits | static_cast<uint64_t>(token);
  }
  return key;
}

// The index of `key` in sorted `keys`, or -1.
int64_t Find(const std::vector<uint64_t>& keys, uint64_t key) {
  const auto it = std::lower_bound(keys.begin(), keys.end(), key);
  return it != keys.end() && *it == key ? it - keys.begin() : -1;
}

bool IsLetter(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c > 127;
}

}  // namespace

NgramModel::NgramModel(int order, int64_t vocab_size,
                       std::span<const int32_t> tokens)
    : vocab_size_(vocab_size), levels_(order + 1) {
  TERRACE_CHECK(order >= 0 && order <= 6, "[ngram] order must be in [0, 6]",
                ", got ", order);
  TERRACE_CHECK(vocab_size > 0 && vocab_size <= 1 << kTokenBits,
                "[ngram] vocab_size must be in [1, 512], got ", vocab_size);
  for (int32_t token : tokens) {
    TERRACE_CHECK(token >= 0 && token < vocab_size,
                  "[ngram] tokens must be in [0, ", vocab_size, "), got ",
                  token);
  }
  for (size_t k = 0; k < levels_.size(); ++k) {
    std::vector<uint64_t> keys;
    keys.reserve(tokens.size());
    for (size_t i = 0; i + k < tokens.size(); ++i) {
      keys.push_back(Pack(tokens.subspan(i, k + 1)));
    }
    std::sort(keys.begin(), keys.end());
    Level& level = levels_[k];
    for (size_t i = 0; i < keys.size();) {
      size_t end = i + 1;
      while (end < keys.size() && keys[end] == keys[i]) ++end;
      const int64_t count = static_cast<int64_t>(end - i);
      level.grams.push_back(keys[i]);
      level.gram_counts.push_back(count);
      const uint64_t history = keys[i] >> kTokenBits;
      if (level.histories.empty() || level.histories.back() != history) {
        level.histories.push_back(history);
        level.totals.push_back(0);
        level.distinct.push_back(0);
      }
      level.totals.back() += count;
      level.distinct.back() += 1;
      i = end;
    }
  }
}

double NgramModel::Probability(std::span<const int32_t> history,
                               int32_t token) const {
  double probability = 1.0 / static_cast<double>(vocab_size_);
  const size_t longest = std::min(history.size(), levels_.size() - 1);
  for (size_t k = 0; k <= longest; ++k) {
    const Level& level = levels_[k];
    const uint64_t key = Pack(history.last(k));
    const int64_t h = Find(level.histories, key);
    if (h < 0) break;  // nor was any longer history seen
    const int64_t g =
        Find(level.grams, key << kTokenBits | static_cast<uint64_t>(token));
    const double count = g < 0 ? 0.0 : level.gram_counts[g];
    const double distinct = level.distinct[h];
    probability =
        (count + distinct * probability) / (level.totals[h] + distinct);
  }
  return probability;
}

double NgramModel::NatsPerToken(std::span<const int32_t> tokens) const {
  TERRACE_CHECK(tokens.size() >= 2, "[ngram] needs two tokens, got ",
                tokens.size());
  double sum = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    sum -= std::log(Probability(tokens.first(i), tokens[i]));
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

std::vector<std::string> Words(std::string_view text, size_t least) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && IsLetter(text[i])) {
      const char c = text[i];
      word.push_back(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
      continue;
    }
    if (!word.empty() && word.size() >= least) words.push_back(word);
    word.clear();
  }
  return words;
}

double KnownWordShare(std::string_view sample, std::string_view training_text) {
  const std::vector<std::string> all = Words(training_text, 3);
  const std::set<std::string> known(all.begin(), all.end());
  const std::vector<std::string> words = Words(sample, 3);
  if (words.empty()) return 0;
  int64_t hits = 0;
  for (const std::string& word : words) hits += known.count(word);
  return static_cast<double>(hits) / static_cast<double>(words.size());
}

}  // namespace terrace::reference
