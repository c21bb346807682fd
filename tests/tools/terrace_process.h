// Runs the binary `terrace` in a child process, as a shell would.
//
//   const Outcome run = RunTerrace({"train", "--config", path});
//   EXPECT_EQ(run.code, 0) << run.err;
//
// The child has the test's environment, and paths are relative to its folder.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace terrace::testing {

struct Outcome {
  int code = -1;  // of the exit; -1 for a signal
  std::string out, err;
};

// The file of the binary among the test's runfiles.
inline std::string TerraceBinary() {
  const char* sources = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  const char* given = std::getenv("TERRACE_BINARY");  // outside Bazel
  if (given != nullptr) return given;
  return std::string(sources) + "/" + workspace + "/tools/terrace";
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

inline void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

// An empty folder of its own for each test.
inline std::string FreshFolder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/terrace_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

// Output goes to `out` and to `log`.err.
inline pid_t StartProcess(std::vector<std::string> words,
                          const std::string& log, const std::string& out) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string err = log + ".err";
  const pid_t child = fork();
  if (child != 0) return child;
  // Whatever the test itself inherits.
  for (const int stop : {SIGINT, SIGTERM, SIGHUP}) signal(stop, SIG_DFL);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  dup2(open(out.c_str(), flags, 0644), STDOUT_FILENO);
  dup2(open(err.c_str(), flags, 0644), STDERR_FILENO);
  execv(argv[0], argv.data());
  _exit(127);
}

// Output goes to `given_out`, or else `log`.out, and to `log`.err.
inline pid_t StartTerrace(const std::vector<std::string>& args,
                          const std::string& log,
                          const std::string& given_out = "") {
  std::vector<std::string> words = {TerraceBinary()};
  words.insert(words.end(), args.begin(), args.end());
  return StartProcess(std::move(words), log,
                      given_out.empty() ? log + ".out" : given_out);
}

inline Outcome FinishTerrace(pid_t child, const std::string& log) {
  int status = 0;
  waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadText(log + ".out"),
          ReadText(log + ".err")};
}

// With the standard output in a file or device; Outcome::out is empty.
inline Outcome RunTerraceInto(const std::string& out,
                              const std::vector<std::string>& args) {
  const std::string log = ::testing::TempDir() + "/terrace_into";
  return FinishTerrace(StartTerrace(args, log, out), log);
}

inline Outcome RunTerrace(const std::vector<std::string>& args) {
  const std::string log = ::testing::TempDir() + "/terrace";
  return FinishTerrace(StartTerrace(args, log), log);
}

// A line of sh, in which $0 is the binary.
inline Outcome RunShell(const std::string& line) {
  const std::string log = ::testing::TempDir() + "/terrace_shell";
  return FinishTerrace(
      StartProcess({"/bin/sh", "-c", line, TerraceBinary()}, log, log + ".out"),
      log);
}

}  // namespace terrace::testing
