#include "terrace/core/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace terrace {
namespace {

// A file without a name that collects what is logged.
class Sink {
 public:
  Sink() : file_(std::tmpfile()) {}
  ~Sink() { std::fclose(file_); }
  int descriptor() const { return ::fileno(file_); }
  std::string Text() const {
    std::string text(1 << 20, '\0');
    text.resize(::pread(descriptor(), text.data(), text.size(), 0));
    return text;
  }

 private:
  std::FILE* file_;
};

TEST(LogTest, LinesHaveOneFormat) {
  EXPECT_EQ(FormatLog(0, LogLevel::kInfo, 0, "hello"),
            "1970-01-01T00:00:00.000Z info  [rank 0] hello\n");
  EXPECT_EQ(FormatLog(1738324800123, LogLevel::kError, 12, ""),
            "2025-01-31T12:00:00.123Z error [rank 12] \n");
}

TEST(LogTest, EachLineOfATextIsAWholeLine) {
  const std::string prefix = "1970-01-01T00:00:01.005Z warn  [rank 3] ";
  EXPECT_EQ(FormatLog(1005, LogLevel::kWarning, 3, "a\n\nb\n"),
            prefix + "a\n" + prefix + "\n" + prefix + "b\n");
}

TEST(LogTest, PrintsRankZeroFromTheLevelOn) {
  const Sink sink;
  const Logger logger({.descriptor = sink.descriptor()});
  logger.Log(LogLevel::kDebug, 0, "too low");
  logger.Log(LogLevel::kInfo, 0, "printed");
  logger.Log(LogLevel::kError, 1, "other rank");
  const std::string text = sink.Text();
  EXPECT_NE(text.find("info  [rank 0] printed\n"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(LogTest, LinesOfManyThreadsStayWhole) {
  const Sink sink;
  const Logger logger({.all_ranks = true, .descriptor = sink.descriptor()});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 50; ++i) {
        logger.Log(LogLevel::kInfo, rank, std::string(100, 'a' + rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::istringstream lines(sink.Text());
  std::map<std::string, int> count;
  for (std::string line; std::getline(lines, line);) {
    ++count[line.substr(line.find('['))];
  }
  ASSERT_EQ(count.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(count["[rank " + std::to_string(rank) + "] " +
                    std::string(100, 'a' + rank)],
              50);
  }
}

TEST(LogTest, ABadDescriptorIsIgnored) {
  Logger({.descriptor = -1}).Log(LogLevel::kError, 0, "lost");
}

}  // namespace
}  // namespace terrace
