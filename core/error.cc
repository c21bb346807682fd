#include "terrace/core/error.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace terrace {

std::string_view Name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal error";
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kAlreadyExists:
      return "already exists";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kUnimplemented:
      return "not supported";
    case ErrorCode::kUsage:
      return "usage";
    case ErrorCode::kConfig:
      return "configuration";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kCommunication:
      return "communication";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

int ExitCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return 1;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnimplemented:
    case ErrorCode::kUsage:
    case ErrorCode::kConfig:
      return 2;
    case ErrorCode::kData:
      return 3;
    case ErrorCode::kOutOfMemory:
      return 4;
    case ErrorCode::kIo:
      return 5;
    case ErrorCode::kCommunication:
    case ErrorCode::kAborted:
      return 6;
    case ErrorCode::kInterrupted:
      return 130;
  }
  return 1;
}

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::move(message)) {}

namespace internal {

void Throw(ErrorCode code, std::string message) {
  throw Error(code, std::move(message));
}

// Optimal string alignment: rows of the usual table, the last three of which
// are needed.
int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    next[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int change = row[j] + (a[i] == b[j] ? 0 : 1);
      next[j + 1] = std::min({next[j] + 1, row[j + 1] + 1, change});
      if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
        next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
    }
    before.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

}  // namespace internal
}  // namespace terrace
