#include "terrace/models/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "terrace/core/error.h"
#include "terrace/tests/support/errors.h"

namespace terrace::models {
namespace {

using support::ExpectError;
using ::testing::ElementsAre;

// One-, two-, three- and four-byte characters, a combining mark, an emoji made
// of several characters.
const char kText[] =
    "a\xC3\xA9 e\xCC\x81 \xE2\x82\xAC \xF0\x9F\x98\x80 "
    "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x92\xBB\n";

TEST(TokenizerTest, ByteIdsAreTheBytesThenEndOfText) {
  const auto tokenizer = MakeTokenizer("byte");
  EXPECT_EQ(tokenizer->name(), "byte");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_THAT(tokenizer->Encode("a\xC3\xBF"), ElementsAre(97, 195, 191));
  EXPECT_THAT(tokenizer->Encode(""), ElementsAre());
}

TEST(TokenizerTest, B118DecodeOfEncodeIsTheTextByteForByte) {
  const auto tokenizer = MakeTokenizer("byte");
  std::string every_byte;
  for (int b = 0; b < 256; ++b) every_byte.push_back(static_cast<char>(b));
  for (const std::string& text : {std::string(kText), every_byte}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
  }
}

TEST(TokenizerTest, TextThatSpellsAControlTokenStaysText) {
  const auto tokenizer = MakeTokenizer("byte");
  const std::string text = "<|endoftext|>";
  const auto ids = tokenizer->Encode(text);
  EXPECT_THAT(ids, testing::Not(testing::Contains(256)));
  EXPECT_EQ(tokenizer->Decode(ids), text);
}

TEST(TokenizerTest, EndOfTextDecodesToNothing) {
  const auto tokenizer = MakeTokenizer("byte");
  const std::vector<int32_t> ids = {'a', 256, 'b'};
  EXPECT_EQ(tokenizer->Decode(ids), "ab");
}

TEST(TokenizerTest, B125RefusesIdsOutsideTheVocabulary) {
  const auto tokenizer = MakeTokenizer("byte");
  for (int32_t bad : {257, -1}) {
    const std::vector<int32_t> ids = {1, 2, bad};
    ExpectError(ErrorCode::kData,
                "[0, 257), got id " + std::to_string(bad) + " at position 2",
                [&] { tokenizer->Decode(ids); });
  }
}

TEST(TokenizerTest, B125RefusesAModelWithASmallerTable) {
  const auto tokenizer = MakeTokenizer("byte");
  CheckVocabulary(*tokenizer, 257);
  CheckVocabulary(*tokenizer, 320);
  ExpectError(ErrorCode::kConfig, "= 257, got 256",
              [&] { CheckVocabulary(*tokenizer, 256); });
}

TEST(TokenizerTest, UnknownNameListsTheValidOnes) {
  ExpectError(ErrorCode::kConfig, "must be one of: \"byte\", got \"bytes\"",
              [] { MakeTokenizer("bytes"); });
}

TEST(Utf8StreamTest, B118ByteByByteGivesWholeCharacters) {
  Utf8Stream stream;
  std::string text;
  for (const char& c : std::string(kText)) {
    const std::string piece = stream.Push({&c, 1});
    // A piece is empty or starts with a character's first byte.
    if (!piece.empty()) {
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80);
    }
    text += piece;
  }
  EXPECT_EQ(text, kText);
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8StreamTest, B118HoldsBackUntilTheCharacterIsComplete) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("x\xF0\x9F"), "x");
  EXPECT_EQ(stream.Push("\x98"), "");
  EXPECT_EQ(stream.Push("\x80y"), "\xF0\x9F\x98\x80y");
}

TEST(Utf8StreamTest, B118ReplacementOnlyAtATrueCut) {
  const std::string character = "\xF0\x9F\x98\x80";
  for (size_t cut = 1; cut < character.size(); ++cut) {
    Utf8Stream stream;
    EXPECT_EQ(stream.Push(character.substr(0, cut)), "");
    EXPECT_EQ(stream.Finish(), "\xEF\xBF\xBD");
    EXPECT_EQ(stream.Finish(), "");
    EXPECT_EQ(stream.Push("a"), "a");  // ready for the next text
  }
}

TEST(Utf8StreamTest, EachMaximalIllFormedPartGivesOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  const struct {
    std::string bytes, text;
  } cases[] = {
      {"\x80", r},  // stray continuation
      {"\xE2\x82"
       "A",
       r + "A"},                            // cut, then text
      {"\xE2\xC3\xA9", r + "\xC3\xA9"},     // cut by a character
      {"\xC0\xAF", r + r},                  // overlong
      {"\xE0\x80\xAF", r + r + r},          // overlong
      {"\xED\xA0\x80", r + r + r},          // surrogate
      {"\xF4\x90\x80\x80", r + r + r + r},  // above U+10FFFF
      {"\xFF"
       "a\xFE",
       r + "a" + r},
      // The example of the Unicode standard, table 3-11.
      {"\xF1\x80\x80\xE1\x80\xC2"
       "b\x80"
       "c\x80\xBF"
       "d",
       r + r + r + "b" + r + "c" + r + r + "d"},
  };
  for (const auto& c : cases) {
    Utf8Stream whole;
    EXPECT_EQ(whole.Push(c.bytes) + whole.Finish(), c.text);
    Utf8Stream stream;
    std::string text;
    for (const char& byte : c.bytes) text += stream.Push({&byte, 1});
    EXPECT_EQ(text + stream.Finish(), c.text);
  }
}

}  // namespace
}  // namespace terrace::models
