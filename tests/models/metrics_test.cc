#include "terrace/models/metrics.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/zero/config/json_source.h"

namespace terrace::models {
namespace {

std::string Line(int step) {
  return "{\"step\":" + std::to_string(step) + ",\"loss\":1}";
}

std::string Path(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/terrace_" + name;
  File::Create(path).Close();
  std::filesystem::remove(path + ".dropped");
  return path;
}

TEST(MetricsFileTest, GrowsByWholeLines) {
  const std::string path = Path("grows.jsonl");
  MetricsFile file(path, 0);
  file.Append(Line(1));
  file.Append(Line(2));
  EXPECT_EQ(ReadFile(path), Line(1) + "\n" + Line(2) + "\n");
}

TEST(MetricsFileTest, KeepsWhatCameBeforeTheResume) {
  const std::string path = Path("keeps.jsonl");
  {
    MetricsFile file(path, 0);
    for (int step = 1; step <= 12; ++step) file.Append(Line(step));
  }
  MetricsFile file(path, 9);
  file.Append(Line(10));
  std::string expected;
  for (int step = 1; step <= 10; ++step) expected += Line(step) + "\n";
  EXPECT_EQ(ReadFile(path), expected);
  EXPECT_EQ(file.dropped().lines, 3);
  EXPECT_EQ(file.dropped().cut_nbytes, 0);
  EXPECT_EQ(ReadFile(path + ".dropped"),
            Line(10) + "\n" + Line(11) + "\n" + Line(12) + "\n");
  // A second time adds to them.
  EXPECT_EQ(MetricsFile(path, 9).dropped().lines, 1);
  EXPECT_EQ(ReadFile(path + ".dropped"), Line(10) + "\n" + Line(11) + "\n" +
                                             Line(12) + "\n" + Line(10) + "\n");
}

// A disk that cannot keep the copy.
class NoSync : public internal::FileCalls {
 public:
  int Sync(int) const override {
    errno = EIO;
    return -1;
  }
};

TEST(MetricsFileTest, NothingIsCutBeforeItsCopyIsOnTheDisk) {
  const std::string path = Path("synced.jsonl");
  // The second is closed up, and its copy fails first.
  for (const std::string& text :
       {Line(1) + "\n" + Line(2) + "\n", "x\n" + Line(1) + "\n"}) {
    std::filesystem::remove(path + ".dropped");
    WriteFileAtomically(path, text);
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        MetricsFile(path, 1, NoSync());
        ADD_FAILURE() << "the copy is not safe";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(error.message().find(path + ".dropped"), std::string::npos)
            << error.message();
      }
      EXPECT_EQ(ReadFile(path), text);
      EXPECT_EQ(ReadFile(path + ".dropped"), "");
    }
  }
}

std::vector<std::string> Leftovers(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(path).parent_path()))
    if (entry.path().string().starts_with(path + ".tmp."))
      names.push_back(entry.path().string());
  return names;
}

// A page that was lost, from one line into the next, a lost end of line, and
// steps that no run has.
TEST(MetricsFileTest, LinesThatRanIntoEachOtherAreDamaged) {
  const std::string path = Path("joined.jsonl");
  const std::string two = Line(2), three = Line(3);
  for (const std::string& joined :
       {two.substr(0, two.size() - 3) + std::string(8, '\0') + three.substr(9),
        two + three, two + std::string(1, '\0') + three,
        std::string("{\"step\":1.5}"), std::string("{\"step\":1e9}")}) {
    std::filesystem::remove(path + ".dropped");
    WriteFileAtomically(path, Line(1) + "\n" + joined + "\n" + Line(4) + "\n");
    const MetricsFile file(path, 5);
    EXPECT_EQ(file.dropped().damaged, 1);
    EXPECT_EQ(ReadFile(path), Line(1) + "\n" + Line(4) + "\n");
    EXPECT_EQ(ReadFile(path + ".dropped"), joined + "\n");
  }
}

// The file that a link means is closed up, and keeps its mode.
TEST(MetricsFileTest, ALinkAndAModeStay) {
  namespace fs = std::filesystem;
  const std::string path = Path("link.jsonl"), real = Path("real.jsonl");
  fs::remove(path);
  WriteFileAtomically(real, "damaged\n" + Line(2) + "\n");
  fs::permissions(real, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink(real, path);
  MetricsFile file(path, 5);
  file.Append(Line(3));
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_EQ(ReadFile(real), Line(2) + "\n" + Line(3) + "\n");
  EXPECT_EQ(fs::status(real).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

// Good lines behind them stay, and the file goes on behind those.
TEST(MetricsFileTest, DamagedLinesAloneAreMovedFromTheMiddle) {
  const std::string path = Path("damaged.jsonl");
  std::filesystem::remove(path + ".dropped");
  const std::string first = "\xff\x01garbage\n", second = "{\"step\":2,\"lo\n";
  WriteFileAtomically(path, Line(1) + "\n" + first + Line(3) + "\n" + second +
                                Line(4) + "\n" + Line(9) + "\n");
  MetricsFile file(path, 5);
  EXPECT_EQ(file.dropped().lines, 1);
  EXPECT_EQ(file.dropped().damaged, 2);
  EXPECT_EQ(file.dropped().cut_nbytes, 0);
  EXPECT_EQ(ReadFile(path + ".dropped"), first + second + Line(9) + "\n");
  EXPECT_TRUE(Leftovers(path).empty());
  file.Append(Line(6));
  EXPECT_EQ(ReadFile(path),
            Line(1) + "\n" + Line(3) + "\n" + Line(4) + "\n" + Line(6) + "\n");
}

TEST(MetricsFileTest, DropsALineThatACrashCutShort) {
  const std::string path = Path("cut.jsonl");
  WriteFileAtomically(path, Line(1) + "\n" + "{\"step\":2,\"lo");
  MetricsFile file(path, 5);
  file.Append(Line(2));
  EXPECT_EQ(file.dropped().lines, 0);
  EXPECT_EQ(file.dropped().cut_nbytes, 13);
  EXPECT_FALSE(std::filesystem::exists(path + ".dropped"));
  EXPECT_EQ(ReadFile(path), Line(1) + "\n" + Line(2) + "\n");
}

TEST(MetricsFileTest, ALastLineThatLacksItsEndAloneIsKept) {
  const std::string path = Path("unended.jsonl");
  for (const std::string& before :
       {Line(1) + "\n", "x\n" + Line(1) + "\n", std::string()}) {
    WriteFileAtomically(path, before + Line(2));
    const std::string kept = before.empty() ? "" : Line(1) + "\n";
    {
      const MetricsFile file(path, 5);
      EXPECT_EQ(file.dropped().cut_nbytes, 0);
      EXPECT_EQ(file.dropped().lines, 0);
      EXPECT_EQ(ReadFile(path), kept + Line(2) + "\n");
    }
    // Of a step that will be written again.
    WriteFileAtomically(path, before + Line(2));
    MetricsFile file(path, 1);
    EXPECT_EQ(file.dropped().lines, 1);
    file.Append(Line(7));
    EXPECT_EQ(ReadFile(path), kept + Line(7) + "\n");
  }
}

TEST(MetricsFileTest, TellsHowMuchOfACutLineGoes) {
  struct Case {
    std::string cut;
    int64_t keep, lines, damaged, step;
  };
  const std::vector<Case> cases = {
      {"{\"step\":22,\"lo", 5, 0, 0, 22},
      {"{\"step\":22", 5, 0, 0, 0},  // perhaps of 220
      {"\n", 5, 0, 1, 0},            // whole: a line without a step
      {"x", 5, 0, 0, 0},
      {"{\"step\":2,\"lo", 0, 1, 0, 2}};  // behind a line that goes too
  for (const Case& c : cases) {
    SCOPED_TRACE(c.cut);
    const std::string path = Path("cut_short.jsonl");
    WriteFileAtomically(path, Line(1) + "\n" + c.cut);
    const MetricsFile file(path, c.keep);
    EXPECT_EQ(file.dropped().lines, c.lines);
    EXPECT_EQ(file.dropped().damaged, c.damaged);
    EXPECT_EQ(file.dropped().cut_nbytes, c.cut == "\n" ? 0 : std::ssize(c.cut));
    EXPECT_EQ(file.dropped().cut_step, c.step);
  }
}

TEST(MetricsFileTest, AFileThatIsTakenAwayGetsNoLines) {
  const std::string folder = ::testing::TempDir() + "/terrace_away";
  const std::string path = folder + "/metrics.jsonl";
  const auto moved = [&] { std::filesystem::rename(folder, folder + "2"); };
  const auto removed = [&] { std::filesystem::remove_all(folder); };
  const auto replaced = [&] { WriteFileAtomically(path, "mine"); };
  for (const std::function<void()>& change :
       std::initializer_list<std::function<void()>>{moved, removed, replaced}) {
    std::filesystem::remove_all(folder);
    std::filesystem::remove_all(folder + "2");
    std::filesystem::create_directories(folder);
    MetricsFile file(path, 0);
    file.Append(Line(1));
    change();
    try {
      file.Append(Line(2));
      ADD_FAILURE() << "a line into nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(error.message().find(path + " must stay"), std::string::npos)
          << error.message();
    }
  }
  EXPECT_EQ(ReadFile(path), "mine");
}

TEST(MetricsTest, LossAndNormsHaveNineDigits) {
  StepMetrics metrics;
  metrics.step.loss = 1.0 / 3;
  metrics.step.grad_norm = 2.0 / 3;
  const zero::JsonNode line = zero::ParseJson(ToJson(metrics), "line");
  // Of the float, so that it reads back to the same float.
  EXPECT_EQ(line.Member("loss")->text, "0.333333343");
  EXPECT_EQ(line.Member("grad_norm")->text, "0.666666687");
}

TEST(MetricsTest, WhatIsNoNumberIsStillJson) {
  StepMetrics metrics;
  metrics.step.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.step.grad_norm = std::numeric_limits<double>::infinity();
  const zero::JsonNode line = zero::ParseJson(ToJson(metrics), "line");
  EXPECT_EQ(line.Member("loss")->text, "nan");
  EXPECT_EQ(line.Member("grad_norm")->text, "inf");
}

TEST(MetricsTest, ANanPrintsWithoutASign) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {nan, -nan}) {
    char text[16];
    std::snprintf(text, sizeof text, "%.4f", WithoutNanSign(value));
    EXPECT_STREQ(text, "nan");
  }
  EXPECT_EQ(WithoutNanSign(-2.5), -2.5);
  EXPECT_EQ(WithoutNanSign(-INFINITY), -INFINITY);
}

TEST(MetricsTest, MedianOfEvenAndOddCounts) {
  EXPECT_EQ(Median({}), 0);
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace terrace::models
