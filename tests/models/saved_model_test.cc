#include "terrace/models/saved_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/models/gpt2.h"
#include "terrace/models/resume_notices.h"
#include "terrace/models/text_data.h"
#include "terrace/tests/support/meanwhile.h"
#include "terrace/tests/support/one_rank.h"

namespace terrace::models {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] =
    R"({"model_type": "gpt2", "vocab_size": 257, "n_positions": 8,
        "n_embd": 4, "n_layer": 1, "n_head": 1})";

std::string DataOf(const std::string& text_file) {
  return StrCat(
      "{\"train\": [\"", text_file,
      "\"], \"validation\": [], \"sequence_length\": 8, \"seed\": 1}");
}

// A checkpoint that says `extras` of itself, in a folder of its own.
std::string Save(const std::string& name,
                 const zero::CheckpointExtras& extras) {
  const std::string folder = ::testing::TempDir() + "/terrace_" + name;
  std::filesystem::remove_all(folder);
  testing::RunOneRank([&](zero::Runtime& rt) {
    Gpt2Config config;
    config.vocab_size = 257;
    config.n_positions = 8;
    config.n_embd = 4;
    config.n_layer = config.n_head = 1;
    const Gpt2 model(nn::Scope(rt.store()), config);
    zero::Engine engine(rt);
    zero::SaveCheckpoint(engine, folder, extras);
  });
  return folder;
}

std::string Text() {
  const std::string path = ::testing::TempDir() + "/terrace_saved_model.txt";
  std::ofstream(path) << "one line and then\n%\nanother of about its length\n";
  return path;
}

// Reads everything that the commands read of a checkpoint.
void ReadAll(const std::string& folder) {
  const SavedModel saved = ReadSavedModel(folder);
  zero::FirstFailure failure;
  zero::Launch(
      InferenceOptions(1),
      [&](zero::Runtime& rt) { LoadedModel loaded(rt, saved); }, &failure);
  if (failure.failed) TERRACE_THROW(failure.code, failure.message);
  EXPECT_GT(ReadEvaluationText(saved, {}).tokens.token_count(), 0);
}

TEST(SavedModelTest, AWholeManifestIsRead) {
  const std::string text = Text();
  const std::string folder =
      Save("whole", {.model_json = kModel,
                     .more = {{"tokenizer", "byte"}, {"data", DataOf(text)}}});
  ReadAll(folder);
  const SavedModel saved = ReadSavedModel(folder);
  // Both documents, 18 and 28 bytes, and their ends.
  EXPECT_EQ(ReadEvaluationText(saved, {text}).tokens.token_count(),
            18 + 28 + 2);
}

// Files that are given are the caller's to know; checkpoints of earlier
// versions do not say what text they are of.
TEST(SavedModelTest, TellsWhenTheTextIsNoLongerTheRuns) {
  const std::string text = Text();
  const std::vector<std::string> none, given = {text};
  const auto notice = [&](zero::CheckpointExtras extras,
                          const std::vector<std::string>& patterns) {
    extras.model_json = kModel;
    extras.more.insert({{"tokenizer", "byte"}, {"data", DataOf(text)}});
    const SavedModel saved = ReadSavedModel(Save("grown", extras));
    return ReadEvaluationText(saved, patterns).notice;
  };
  const std::string print = StrCat(LoadTextData({.train = {text},
                                                 .validation = {},
                                                 .base = "",
                                                 .sequence_length = 8,
                                                 .seed = 1},
                                                *MakeTokenizer("byte"))
                                       .text_fingerprint);
  const std::string key = kTextFingerprint;
  EXPECT_EQ(notice({.more = {{key, print}}}, none), "");
  EXPECT_EQ(notice({}, none), "");
  std::ofstream(text, std::ios::app) << "%\na third one\n";
  EXPECT_EQ(notice({.more = {{key, print}}}, given), "");
  const std::string grown = notice({.more = {{key, print}}}, none);
  EXPECT_EQ(grown.find("the text is not that of "), 0u) << grown;
  EXPECT_NE(grown.find("step-0: what is held out of it now may"), grown.npos)
      << grown;
  // Files of their own that are held out were not trained on.
  const std::string other = notice(
      {.more = {{key, print},
                {"data",
                 StrCat("{\"train\": [\"", text, "\"], \"validation\": [\"",
                        text, "\"], \"sequence_length\": 8, \"seed\": 1}")}}},
      none);
  EXPECT_EQ(other.find("the text is not that of "), 0u) << other;
  EXPECT_EQ(other.find("may have been"), other.npos) << other;
}

// The latest is replaced and removed while its manifest is read, and after.
TEST(SavedModelTest, TheLatestIsFoundAgainWhenItIsRemovedMeanwhile) {
  namespace fs = std::filesystem;
  const std::string folder =
      Save("rotated", {.model_json = kModel, .more = {{"tokenizer", "byte"}}});
  const auto step = [&](int n) { return StrCat(folder, "/step-", n); };
  const auto rotate = [&](int from, int to) {
    WriteFileAtomically(folder + "/latest", StrCat("step-", to, "\n"));
    fs::remove_all(step(from));
  };
  fs::copy(step(0), step(5));
  fs::copy(step(0), step(9));
  SavedModel saved;
  {
    const testing::Meanwhile writer(step(0) + "/manifest.json", "",
                                    [&] { rotate(0, 5); });
    saved = ReadSavedModel(folder);
    EXPECT_EQ(saved.path, step(5));
  }
  const SavedModel exact = ReadSavedModel(step(5));
  rotate(5, 9);
  testing::RunOneRank([&](zero::Runtime& rt) {
    EXPECT_EQ(LoadedModel(rt, saved).path(), step(9));
  });
  // The folder that was given is the one that is loaded.
  zero::FirstFailure failure;
  zero::Launch(
      InferenceOptions(1), [&](zero::Runtime& rt) { LoadedModel(rt, exact); },
      &failure);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message, HasSubstr(step(5)));
}

// A manifest is data: whatever is wrong with it is kData and names its file.
TEST(SavedModelTest, ADamagedManifestIsDataAndNamed) {
  const std::string data = DataOf(Text());
  struct Case {
    const char* name;
    std::string model, tokenizer, data;
    const char* part;  // of the message
  };
  for (const Case& bad : {
           Case{"no_model", "", "byte", data, "must say which model"},
           Case{"cut_model", "{\"model_type\": ", "byte", data, "model:1"},
           Case{"other_model", R"({"model_type": "rnn"})", "byte", data,
                "gpt2"},
           Case{"model_key", R"({"model_type": "gpt2", "n_hed": 2})", "byte",
                data, "n_head"},
           Case{"model_value",
                R"({"model_type": "gpt2", "n_embd": 5, "n_head": 2})", "byte",
                data, "n_embd"},
           Case{"tokenizer", kModel, "words", data, "words"},
           Case{"cut_data", kModel, "byte", "{\"train\": [", "data:1"},
           Case{"no_length", kModel, "byte",
                R"({"train": ["a"], "validation": []})", "'sequence_length'"},
           Case{"length", kModel, "byte",
                R"({"train": ["a"], "validation": [], "sequence_length": 0})",
                "got 0"},
           Case{"length_type", kModel, "byte",
                R"({"train": ["a"], "validation": [], "sequence_length": "8"})",
                "'sequence_length'"},
           Case{"no_train", kModel, "byte",
                R"({"validation": [], "sequence_length": 8})", "'train'"},
           Case{"train_type", kModel, "byte",
                R"({"train": [3], "validation": [], "sequence_length": 8})",
                "'train'"},
       }) {
    SCOPED_TRACE(bad.name);
    const std::string folder = Save(
        bad.name, {.model_json = bad.model,
                   .more = {{"tokenizer", bad.tokenizer}, {"data", bad.data}}});
    try {
      ReadAll(folder);
      ADD_FAILURE() << "nothing thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData) << error.message();
      EXPECT_THAT(error.message(), HasSubstr(folder + "/step-0"));
      EXPECT_THAT(error.message(), HasSubstr(bad.part));
    }
  }
}

}  // namespace
}  // namespace terrace::models
