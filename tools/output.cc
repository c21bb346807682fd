#include "terrace/tools/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "terrace/core/error.h"

namespace terrace::tools {
namespace {

void AppendEscaped(std::string& out, unsigned char byte) {
  char text[8];
  std::snprintf(text, sizeof text, "\\x%02x", byte);
  out += text;
}

bool ReaderIsGone() {
  pollfd output = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

}  // namespace

std::string ForTerminal(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next =
        static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte == 0xC2 && 0x80 <= next && next < 0xA0) {
      AppendEscaped(out, byte);
      AppendEscaped(out, next);
      ++i;
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      AppendEscaped(out, byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

void PrintText(std::string_view text) {
  std::string escaped;
  if (isatty(STDOUT_FILENO) == 1) text = escaped = ForTerminal(text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  CheckOutput();
}

void CheckOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  int error = errno;
  if (ReaderIsGone()) return;
  // What failed earlier has left no cause: the end of its cut line meets it.
  if (error == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  TERRACE_THROW(ErrorCode::kIo, "[output] cannot write the standard output: ",
                error != 0 ? std::generic_category().message(error)
                           : "an earlier line did not arrive");
}

}  // namespace terrace::tools
