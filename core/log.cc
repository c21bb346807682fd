#include "terrace/core/log.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace terrace {

std::string_view Name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warn";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

std::string FormatLog(int64_t unix_ms, LogLevel level, int rank,
                      std::string_view text) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm utc = {};
  ::gmtime_r(&seconds, &utc);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char prefix[96];
  std::snprintf(prefix, sizeof(prefix), "%s.%03dZ %-5s [rank %d] ", date,
                static_cast<int>(unix_ms % 1000), Name(level).data(), rank);
  std::string lines;
  do {
    const size_t end = text.find('\n');
    lines.append(prefix).append(text.substr(0, end)) += '\n';
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
  } while (!text.empty());
  return lines;
}

void Logger::Log(LogLevel level, int rank, std::string_view text) const {
  if (!Wants(level, rank)) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t unix_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::string lines = FormatLog(unix_ms, level, rank, text);
  // One write also keeps lines whole between processes that share the
  // descriptor; a rare short one is completed.
  const std::lock_guard lock(mutex_);
  std::string_view left = lines;
  while (!left.empty()) {
    const ssize_t n = ::write(options_.descriptor, left.data(), left.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    left.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace terrace
