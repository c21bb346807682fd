#include "terrace/models/text_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "terrace/core/error.h"
#include "terrace/tests/support/errors.h"

namespace terrace::models {
namespace {

namespace fs = std::filesystem;

using support::ExpectError;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TextDataTest : public testing::Test {
 protected:
  TextDataTest()
      : folder_(fs::path(testing::TempDir()) / "terrace_text_data_test" /
                testing::UnitTest::GetInstance()->current_test_info()->name()),
        tokenizer_(MakeTokenizer("byte")) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  TextDataOptions Options(std::vector<std::string> train) const {
    return {.train = std::move(train),
            .validation = {},
            .base = folder_.string(),
            .sequence_length = 4,
            .seed = 1};
  }

  TextData Load(const TextDataOptions& options) const {
    return LoadTextData(options, *tokenizer_);
  }

  // A dataset's text, with '|' for each end of text.
  std::string Text(const TokenDataset& data) const {
    std::string text;
    for (int32_t id : data.Tokens(0, data.token_count())) {
      text +=
          id == tokenizer_->end_of_text() ? "|" : tokenizer_->Decode({&id, 1});
    }
    return text;
  }

  fs::path folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST(SplitDocumentsTest, PercentLinesSeparateQuotations) {
  EXPECT_THAT(SplitDocuments("one\ntwo\n%\nthree\n%\n"),
              ElementsAre("one\ntwo\n", "three\n"));
  EXPECT_THAT(SplitDocuments("%\na\n%\n \n%\n%\nb"), ElementsAre("a\n", "b"));
  EXPECT_THAT(SplitDocuments("a\r\n%\r\nb\r\n"), ElementsAre("a\r\n", "b\r\n"));
}

TEST(SplitDocumentsTest, WithoutSeparatorsTheFileIsOneDocument) {
  for (const char* text : {"a\n\nb\n", "100 %\n% off\n%%\n", "x"}) {
    EXPECT_THAT(SplitDocuments(text), ElementsAre(text));
  }
}

TEST_F(TextDataTest, DocumentsEndWithEndOfTextInTheOrderOfTheFiles) {
  Write("b.txt", "bb\n%\ncc\n");
  Write("a.txt", "aa\n");
  TextDataOptions options = Options({"*.txt"});
  options.validation_fraction = 0;
  TextData data = Load(options);
  EXPECT_EQ(Text(data.train), "aa\n|bb\n|cc\n|");
  EXPECT_TRUE(data.validation.empty());
  EXPECT_EQ(data.train_documents, 3);
  EXPECT_EQ(data.validation_documents, 0);
  options.train = {"b.txt", "a.txt"};
  EXPECT_EQ(Text(Load(options).train), "bb\n|cc\n|aa\n|");
}

TEST_F(TextDataTest, AFileReachedTwiceCountsOnce) {
  Write("a.txt", "aaaa\n");
  fs::create_symlink("a.txt", folder_ / "link.txt");
  TextDataOptions options =
      Options({"*.txt", "a.txt", (folder_ / "a.txt").string()});
  options.validation_fraction = 0;
  EXPECT_EQ(Text(Load(options).train), "aaaa\n|");
  const std::string file = (folder_ / "a.txt").string(),
                    link = (folder_ / "link.txt").string();
  EXPECT_THAT(Load(options).notices,
              ElementsAre(StrCat("data.train names more than once: \"", file,
                                 "\" (as \"", link, "\"), \"", file, "\", \"",
                                 file, "\"; each file counts once")));
  // A second name of the same file is one too.
  fs::remove(folder_ / "link.txt");
  fs::create_hard_link(folder_ / "a.txt", folder_ / "link.txt");
  options.train = {"*.txt"};
  EXPECT_EQ(Text(Load(options).train), "aaaa\n|");
  EXPECT_THAT(
      Load(options).notices,
      ElementsAre(StrCat("data.train names more than once: \"", file,
                         "\" (as \"", link, "\"); each file counts once")));
}

TEST_F(TextDataTest, AFileThatIsTrainedAndHeldOutIsNoted) {
  std::string expected;
  for (int i = 0; i < 5; ++i) {
    Write(StrCat("t", i), StrCat("text ", i, "\n"));
    if (i >= 1 && i <= 3)
      expected += StrCat(i > 1 ? ", \"" : "\"",
                         (folder_ / StrCat("t", i)).string(), "\"");
  }
  Write("v", "other\n");
  TextDataOptions options = Options({"t*"});
  options.validation = {"v"};
  EXPECT_THAT(Load(options).notices, IsEmpty());
  options.validation = {"v", "t[1-4]"};
  EXPECT_THAT(
      Load(options).notices,
      ElementsAre(StrCat("data.train and data.validation both name ", expected,
                         " and 1 more: the held-out loss is in part of trained "
                         "text")));
  // In both lists each still counts: the notice is all.
  EXPECT_EQ(Text(Load(options).validation),
            "other\n|text 1\n|text 2\n|text 3\n|text 4\n|");
}

TEST_F(TextDataTest, OnlyRegularFilesAreRead) {
  Write("a", "some text\n");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/urandom", folder_ / "device");
  for (const auto& [name, what] :
       {std::pair("pipe", "a pipe"), std::pair("device", "a device")}) {
    const std::string path = (folder_ / name).string();
    const std::string part = StrCat(
        "] each file must be a regular file, got \"", path, "\", ", what);
    ExpectError(ErrorCode::kData, "[data.train" + part, [&] {
      Load(Options({"a", name}));
    });
    TextDataOptions options = Options({"a"});
    options.validation = {name};
    ExpectError(ErrorCode::kData, "[data.validation" + part,
                [&] { Load(options); });
    ExpectError(ErrorCode::kData, "[--text" + part, [&] {
      LoadText({path}, *tokenizer_, {.sequence_length = 4, .name = "--text"});
    });
  }
}

TEST_F(TextDataTest, TheHeldOutShareIsExactAndDisjoint) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(1000 + i) + "\n%\n";
  Write("q", text);
  const TextData data = Load(Options({"q"}));
  EXPECT_EQ(data.train_documents, 95);
  EXPECT_EQ(data.validation_documents, 5);
  const std::string train = Text(data.train);
  const std::string held = Text(data.validation);
  for (int i = 0; i < 100; ++i) {
    const std::string document = std::to_string(1000 + i) + "\n|";
    EXPECT_NE(train.find(document) == std::string::npos,
              held.find(document) == std::string::npos);
  }
}

TEST_F(TextDataTest, TheSplitIsAFunctionOfSeedAndFiles) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(1000 + i) + "\n%\n";
  Write("q", text);
  TextDataOptions options = Options({"q"});
  const std::string first = Text(Load(options).validation);
  EXPECT_EQ(Text(Load(options).validation), first);
  options.seed = 2;
  EXPECT_NE(Text(Load(options).validation), first);
}

TEST_F(TextDataTest, FewDocumentsStillHoldOutOne) {
  Write("q", "first\n%\nsecond\n");
  const TextData data = Load(Options({"q"}));
  EXPECT_EQ(data.train_documents, 1);
  EXPECT_EQ(data.validation_documents, 1);
}

TEST_F(TextDataTest, ASingleDocumentHoldsOutItsEndFromALine) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "line " + std::to_string(10 + i) + "\n";
  Write("one.txt", text);
  const TextData data = Load(Options({"one.txt"}));
  EXPECT_EQ(Text(data.validation), "line 48\nline 49\n|");
  EXPECT_EQ(Text(data.train), text.substr(0, 38 * 8) + "|");
}

// Of two documents one is held out, whichever the seed draws.
TEST_F(TextDataTest, HoldingOutMostOfTheTextIsNoted) {
  Write("long", std::string(400, 'x') + "\n");
  Write("short", "some text\n");
  int noted = 0;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    TextDataOptions options = Options({"long", "short"});
    options.seed = seed;
    const TextData data = Load(options);
    const bool most = data.validation.token_count() > 400;
    noted += most;
    if (most)
      EXPECT_THAT(data.notices,
                  ElementsAre(::testing::HasSubstr(
                      "holds out 402 of 413 tokens, more than it trains on")));
    else
      EXPECT_THAT(data.notices, IsEmpty());
  }
  EXPECT_GT(noted, 0);
  EXPECT_LT(noted, 16);
}

TEST_F(TextDataTest, ASingleLineIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += "\xE2\x82\xAC";  // 30 bytes, cut at 28
  Write("one.txt", text);
  const TextData data = Load(Options({"one.txt"}));
  EXPECT_EQ(Text(data.validation), "\xE2\x82\xAC|");
  EXPECT_EQ(Text(data.train), text.substr(3) + "|");
}

TEST_F(TextDataTest, GivenValidationFilesAreTheValidation) {
  Write("t", "train\n%\ntext\n");
  Write("v", "ok\n");
  TextDataOptions options = Options({"t"});
  options.validation = {"v"};
  const TextData data = Load(options);
  EXPECT_EQ(Text(data.train), "train\n|text\n|");
  EXPECT_EQ(Text(data.validation), "ok\n|");  // shorter than one sample
  EXPECT_EQ(data.validation.sample_count(), 1);
}

TEST_F(TextDataTest, FingerprintFollowsContentAndSettings) {
  Write("a", "some text\n");
  Write("b", "more text\n");
  const TextDataOptions options = Options({"a", "b"});
  const uint64_t before = Load(options).fingerprint;
  EXPECT_EQ(Load(options).fingerprint, before);
  TextDataOptions other = options;
  other.seed = 2;
  EXPECT_NE(Load(other).fingerprint, before);
  other = options;
  other.sequence_length = 5;
  EXPECT_NE(Load(other).fingerprint, before);
  other = options;
  other.train = {"b", "a"};
  EXPECT_NE(Load(other).fingerprint, before);
  other = options;
  other.train = {"a"};
  other.validation = {"b"};
  EXPECT_NE(Load(other).fingerprint, before);
  Write("b", "more Text\n");
  EXPECT_NE(Load(options).fingerprint, before);
  // Not on where the files lie.
  Write("b", "more text\n");
  fs::rename(folder_ / "a", folder_ / "c");
  other = options;
  other.train = {"c", "b"};
  EXPECT_EQ(Load(other).fingerprint, before);
}

TEST_F(TextDataTest, TheTextsFingerprintFollowsContentAlone) {
  Write("a", "some text\n");
  Write("b", "more text\n");
  const TextDataOptions options = Options({"a", "b"});
  const uint64_t before = Load(options).text_fingerprint;
  TextDataOptions other = options;
  other.seed = 2;
  other.sequence_length = 5;
  EXPECT_EQ(Load(other).text_fingerprint, before);
  other.train = {"a"};
  other.validation = {"b"};
  EXPECT_NE(Load(other).text_fingerprint, before);
  Write("b", "more Text\n");
  EXPECT_NE(Load(options).text_fingerprint, before);
}

TEST_F(TextDataTest, FolderNamesAreNotPatterns) {
  const fs::path odd = folder_ / "run [1] *?";
  fs::create_directories(odd);
  std::ofstream(odd / "a.txt") << "inside\n";
  TextDataOptions options = Options({"*.txt"});
  options.base = odd.string();
  options.validation_fraction = 0;
  EXPECT_EQ(Text(Load(options).train), "inside\n|");
}

TEST_F(TextDataTest, AWrongPatternIsNamed) {
  Write("a", "some text\n");
  ExpectError(ErrorCode::kData,
              "[data.train] each pattern must match a file, got \"*.text\"",
              [&] {
                Load(Options({"a", "*.text"}));
              });
  TextDataOptions options = Options({"a"});
  options.validation = {"absent"};
  ExpectError(ErrorCode::kData, "[data.validation] each pattern must match",
              [&] { Load(options); });
  ExpectError(ErrorCode::kInvalidArgument, "at least one file, got none",
              [&] { Load(Options({})); });
}

TEST_F(TextDataTest, AFileWithoutTextIsNamed) {
  for (const char* text : {"", " \n\n"}) {
    Write("empty.txt", text);
    ExpectError(ErrorCode::kData, "empty.txt\" of ",
                [&] { Load(Options({"empty.txt"})); });
  }
  Write("empty.txt", "%\n%\n");
  ExpectError(ErrorCode::kData, "empty.txt\" of ",
              [&] { Load(Options({"empty.txt"})); });
}

TEST_F(TextDataTest, AFolderIsRefused) {
  fs::create_directories(folder_ / "corpus");
  ExpectError(ErrorCode::kData, "got folder",
              [&] { Load(Options({"corpus"})); });
}

TEST_F(TextDataTest, TooShortSaysWhichSplitAndHowManyTokens) {
  Write("a", "abc");
  TextDataOptions options = Options({"a"});
  options.validation_fraction = 0;
  // Three bytes and the end of text; a sample is 4 + 1 tokens.
  ExpectError(ErrorCode::kData, "[data.train] must hold at least 5 tokens",
              [&] { Load(options); });
  ExpectError(ErrorCode::kData, "got 4", [&] { Load(options); });
}

TEST_F(TextDataTest, RefusesAFractionThatLeavesNothing) {
  Write("a", "some text\n");
  for (double fraction : {-0.1, 1.0}) {
    TextDataOptions options = Options({"a"});
    options.validation_fraction = fraction;
    ExpectError(ErrorCode::kInvalidArgument, "must be in [0, 1), got ",
                [&] { Load(options); });
  }
}

}  // namespace
}  // namespace terrace::models
