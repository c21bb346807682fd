// Tokenizers: text to token ids and back, and a stream that prints only whole
// characters.
//
//   auto tokenizer = models::MakeTokenizer("byte");
//   std::vector<int32_t> ids = tokenizer->Encode("Q: why?");
//   models::Utf8Stream out;
//   for (int32_t id : ids) std::cout << out.Push(tokenizer->Decode({&id, 1}));
//   std::cout << out.Finish();
//
// Decode(Encode(text)) == text byte for byte, for any bytes. Encode never makes
// a control id out of plain text; control ids decode to nothing. A Tokenizer is
// immutable: any number of threads may share one. A Utf8Stream belongs to one
// reader.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/function_ref.h"

namespace terrace::models {

using TokenSink = FunctionRef<void(std::span<const int32_t>)>;

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // As the run file spells it: "byte".
  virtual std::string_view name() const = 0;
  // Ids are 0 .. vocab_size() - 1.
  virtual int64_t vocab_size() const = 0;
  // Stands between documents.
  virtual int32_t end_of_text() const = 0;
  // Calls `sink` with the ids of `text`, piece by piece: memory for a piece,
  // however long the text is.
  virtual void EncodeTo(std::string_view text, TokenSink sink) const = 0;
  std::vector<int32_t> Encode(std::string_view text) const;
  // The bytes of `ids`, which may end inside a character. Throws kData naming
  // position and id of the first one outside the vocabulary.
  virtual std::string Decode(std::span<const int32_t> ids) const = 0;
};

// "byte": ids 0-255 are the byte values, 256 is the end of text. Another name
// throws kConfig, listing the valid ones.
std::unique_ptr<Tokenizer> MakeTokenizer(std::string_view name);

// Throws kData unless every id is in [0, vocab_size): "[where] id 300 at
// position 17 ...". `first` is the position of ids[0].
void CheckIds(std::string_view where, std::span<const int32_t> ids,
              int64_t vocab_size, int64_t first = 0);

// Throws kConfig, naming both sizes and `key`, which set the model's, when the
// tokenizer can make ids that the model's embedding table does not have. A
// larger table is allowed: tables are often padded.
void CheckVocabulary(const Tokenizer& tokenizer, int64_t model_vocab_size,
                     std::string_view key = "model.vocab_size");

// Cuts a stream of bytes into whole UTF-8 characters. Bytes of a character that
// is not complete yet are held back (three at most). Each maximal part that
// cannot become a character gives one U+FFFD, as the Unicode standard advises.
class Utf8Stream {
 public:
  // The characters that `bytes` completed; always valid UTF-8.
  std::string Push(std::string_view bytes);
  // Ends the text: U+FFFD when it was cut inside a character, else "".
  std::string Finish();

 private:
  std::string pending_;  // a proper prefix of one character
};

}  // namespace terrace::models
