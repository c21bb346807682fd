#include "terrace/tools/bench_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/core/profiler.h"
#include "terrace/models/metrics.h"
#include "terrace/zero/config/json_source.h"

extern char** environ;

namespace terrace::tools {
namespace {

using zero::JsonKind;
using zero::JsonNode;

// Losses that are compared: further on, rounding grows by itself.
constexpr size_t kCompared = 3;

std::vector<std::string> Environment(const ChildOptions& options) {
  std::vector<std::string> out = options.set;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto begins = [&](std::string_view name) {
      return text.starts_with(name);
    };
    const bool replaced = std::ranges::any_of(options.set, [&](auto& set) {
      return begins(set.substr(0, set.find('=') + 1));
    });
    if (replaced || std::ranges::any_of(options.unset, begins)) continue;
    out.emplace_back(text);
  }
  return out;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

// A number, or the median of a list of them.
double NumberOf(const JsonNode& node, std::string_view key,
                const std::string& who) {
  if (node.is_number()) return node.number;
  std::vector<double> values;
  if (node.kind == JsonKind::kArray)
    for (const JsonNode& element : node.elements)
      if (element.is_number()) values.push_back(element.number);
  if (values.empty() || values.size() != node.elements.size())
    TERRACE_THROW(ErrorCode::kData, "[bench] \"", key, "\" of the peer ", who,
                  " must be a number or a list of numbers, got ",
                  zero::ToJsonText(node));
  return models::Median(std::move(values));
}

}  // namespace

std::string RunChild(const std::vector<std::string>& words,
                     const ChildOptions& options) {
  std::vector<std::string> arguments = words;
  std::vector<std::string> variables = Environment(options);
  const std::vector<char*> argv = Pointers(arguments);
  const std::vector<char*> envp = Pointers(variables);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    TERRACE_THROW(ErrorCode::kIo,
                  "[bench] cannot make a pipe: ", std::strerror(errno));
  // Not fork: it would leave our pages to be faulted in again.
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int why =
      posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (why != 0) {
    close(ends[0]);
    TERRACE_THROW(ErrorCode::kIo, "[bench] cannot start ", words[0], ": ",
                  std::strerror(why));
  }
  std::string text = ReadToEnd(ends[0]);
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::string line;
    for (const std::string& word : words)
      line += (line.empty() ? "" : " ") + word;
    TERRACE_THROW(
        ErrorCode::kData, "[bench] a command must end well, but ", line,
        WIFEXITED(status) ? " ended with exit code " : " ended by signal ",
        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
  }
  return text;
}

std::string LastJsonLine(const std::string& text, const std::string& who) {
  std::istringstream lines(text);
  std::string last;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with('{')) last = line;
  if (last.empty())
    TERRACE_THROW(ErrorCode::kData, "[bench] ", who,
                  " must print a line of JSON, {\"name\": ..., \"losses\": "
                  "[...], \"step_s\": ...}, and printed none");
  return last;
}

PeerResult RunPeer(const std::string& command, const std::string& folder,
                   int threads) {
  ChildOptions options;
  options.set = {"TERRACE_BENCH_INIT=" + folder,
                 StrCat("OMP_NUM_THREADS=", threads),
                 "TERRACE_BENCH_STARTED=" + std::to_string(NowSeconds())};
  options.unset = {"OPENBLAS_", "OMP_WAIT_POLICY="};
  const std::string text =
      RunChild({"/bin/sh", "-c", command + " \"$@\"", "sh", folder}, options);
  const std::string line = LastJsonLine(text, "the peer '" + command + "'");
  JsonNode node;
  try {
    node = zero::ParseJson(line, "peer");
  } catch (const Error& e) {
    TERRACE_THROW(ErrorCode::kData, "[bench] the line of JSON of the peer '",
                  command, "' must parse, got: ", e.message());
  }
  PeerResult result;
  result.name = command;
  if (const JsonNode* name = node.Member("name"); name && name->is_string())
    result.name = name->text;
  const JsonNode* losses = node.Member("losses");
  const JsonNode* step_s = node.Member("step_s");
  if (losses == nullptr || step_s == nullptr || losses->elements.empty())
    TERRACE_THROW(ErrorCode::kData, "[bench] the peer ", result.name,
                  " must print \"losses\" and \"step_s\", got ", line);
  for (const JsonNode& loss : losses->elements)
    result.losses.push_back(NumberOf(loss, "losses", result.name));
  result.step_s = NumberOf(*step_s, "step_s", result.name);
  if (!(result.step_s > 0))
    TERRACE_THROW(ErrorCode::kData, "[bench] \"step_s\" of the peer ",
                  result.name, " must be > 0, got ", result.step_s);
  const auto optional = [&](const char* key, double& to) {
    if (const JsonNode* member = node.Member(key))
      to = NumberOf(*member, key, result.name);
  };
  optional("peak_rss_bytes", result.peak_rss_nbytes);
  optional("baseline_bytes", result.baseline_nbytes);
  optional("startup_s", result.startup_s);
  return result;
}

double CompareLosses(const PeerResult& peer, const std::vector<double>& ours,
                     double tolerance) {
  const size_t n = std::min({peer.losses.size(), ours.size(), kCompared});
  if (n == 0)
    TERRACE_THROW(ErrorCode::kData, "[bench] the peer ", peer.name,
                  " has no loss to compare");
  double most = 0;
  for (size_t i = 0; i < n; ++i) {
    const double difference =
        std::abs(peer.losses[i] - ours[i]) / std::abs(ours[i]);
    // A NaN is no agreement.
    if (!(difference <= tolerance))
      TERRACE_THROW(ErrorCode::kData, "[bench] the losses of the peer ",
                    peer.name, " must be ours within ", tolerance,
                    " before its time counts, but of step ", i + 1, " it has ",
                    peer.losses[i], " and we ", ours[i], ": ", difference);
    most = std::max(most, difference);
  }
  return most;
}

}  // namespace terrace::tools
