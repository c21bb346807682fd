#include "terrace/models/tokenizer.h"

#include <algorithm>
#include <array>

#include "terrace/core/error.h"

namespace terrace::models {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view name() const override { return "byte"; }
  int64_t vocab_size() const override { return 257; }
  int32_t end_of_text() const override { return 256; }

  void EncodeTo(std::string_view text, TokenSink sink) const override {
    std::array<int32_t, 4096> ids;
    while (!text.empty()) {
      const size_t count = std::min(text.size(), ids.size());
      for (size_t i = 0; i < count; ++i) {
        ids[i] = static_cast<unsigned char>(text[i]);
      }
      sink(std::span(ids).first(count));
      text.remove_prefix(count);
    }
  }

  std::string Decode(std::span<const int32_t> ids) const override {
    CheckIds("tokenizer", ids, vocab_size());
    std::string text;
    text.reserve(ids.size());
    for (int32_t id : ids) {
      if (id != end_of_text()) text.push_back(static_cast<char>(id));
    }
    return text;
  }
};

enum class Prefix { kComplete, kIncomplete, kInvalid };

// Whether `s` (not empty) is a character, may become one, or can never be one,
// by table 3-7 of the Unicode standard: no overlong forms, no surrogates,
// nothing above U+10FFFF.
Prefix Classify(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return Prefix::kComplete;
  if (lead < 0xC2 || lead > 0xF4) return Prefix::kInvalid;
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (size_t i = 1; i < s.size(); ++i) {
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (i == 1 && lead == 0xE0) low = 0xA0;
    if (i == 1 && lead == 0xED) high = 0x9F;
    if (i == 1 && lead == 0xF0) low = 0x90;
    if (i == 1 && lead == 0xF4) high = 0x8F;
    if (at(i) < low || at(i) > high) return Prefix::kInvalid;
  }
  return s.size() < length ? Prefix::kIncomplete : Prefix::kComplete;
}

}  // namespace

std::vector<int32_t> Tokenizer::Encode(std::string_view text) const {
  std::vector<int32_t> all;
  EncodeTo(text, [&](std::span<const int32_t> ids) {
    all.insert(all.end(), ids.begin(), ids.end());
  });
  return all;
}

std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  TERRACE_THROW(ErrorCode::kConfig,
                "[data.tokenizer] must be one of: \"byte\", got \"", name,
                "\"");
}

void CheckIds(std::string_view where, std::span<const int32_t> ids,
              int64_t vocab_size, int64_t first) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      TERRACE_THROW(ErrorCode::kData, "[", where, "] ids must be in [0, ",
                    vocab_size, "), got id ", ids[i], " at position ",
                    first + static_cast<int64_t>(i));
    }
  }
}

void CheckVocabulary(const Tokenizer& tokenizer, int64_t model_vocab_size,
                     std::string_view key) {
  if (tokenizer.vocab_size() <= model_vocab_size) return;
  TERRACE_THROW(ErrorCode::kConfig, "[config] ", key,
                ": must be at least the vocabulary of tokenizer \"",
                tokenizer.name(), "\" = ", tokenizer.vocab_size(), ", got ",
                model_vocab_size);
}

std::string Utf8Stream::Push(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    pending_.push_back(bytes[i]);
    switch (Classify(pending_)) {
      case Prefix::kIncomplete:
        ++i;
        break;
      case Prefix::kComplete:
        out += pending_;
        pending_.clear();
        ++i;
        break;
      case Prefix::kInvalid:
        out += kReplacement;
        // A byte that only broke the character before it starts anew.
        if (pending_.size() == 1) ++i;
        pending_.clear();
        break;
    }
  }
  return out;
}

std::string Utf8Stream::Finish() {
  if (pending_.empty()) return "";
  pending_.clear();
  return std::string(kReplacement);
}

}  // namespace terrace::models
