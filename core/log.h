// Log lines in one format, on standard error:
//
//   2025-01-31T12:00:00.123Z info  [rank 0] step 10 loss 2.31
//
//   Logger logger({.min_level = LogLevel::kInfo, .all_ranks = false});
//   logger.Log(LogLevel::kWarning, rank, "io_uring is not there, ...");
//
// Rank 0 alone is printed unless all_ranks is set. A text of several lines
// gives as many whole lines, written in one go. One Logger serves all ranks
// and threads of a process; it is passed along by reference, there is no
// global one.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace terrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warn", "error"
std::string_view Name(LogLevel level);

struct LogOptions {
  LogLevel min_level = LogLevel::kInfo;
  bool all_ranks = false;
  int descriptor = 2;  // not owned
};

class Logger {
 public:
  explicit Logger(LogOptions options = {}) : options_(options) {}

  // Whether Log would print: for texts that cost something to build.
  bool Wants(LogLevel level, int rank) const {
    return level >= options_.min_level && (rank == 0 || options_.all_ranks);
  }
  // Never throws on a failed write: a lost log line ends no run.
  void Log(LogLevel level, int rank, std::string_view text) const;

 private:
  const LogOptions options_;
  mutable std::mutex mutex_;  // a pipe splits writes above 4 KiB
};

// The line(s) that Log prints, with the given time in milliseconds since 1970.
std::string FormatLog(int64_t unix_ms, LogLevel level, int rank,
                      std::string_view text);

}  // namespace terrace
