#include "terrace/models/output_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/file.h"

namespace terrace::models {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/terrace_lock_" + name;
  fs::remove_all(path);
  return path;
}

void ExpectHeld(const std::string& folder, pid_t holder) {
  try {
    const OutputLock second(folder);
    ADD_FAILURE() << "a second lock must be refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
    EXPECT_THAT(error.message(), HasSubstr(folder + " is being written by"));
    EXPECT_THAT(error.message(), HasSubstr(StrCat("process ", holder, ":")));
  }
}

TEST(OutputLockTest, OneHolderAtATime) {
  const std::string folder = Folder("one");
  for (int i = 0; i < 2; ++i) {
    const OutputLock lock(folder);
    EXPECT_EQ(lock.notice(), "");
    ExpectHeld(folder, ::getpid());
    ExpectHeld(folder, ::getpid());  // the refusal has not let go of it
  }
}

TEST(OutputLockTest, LeavesNothingWhereNothingWasWritten) {
  const std::string folder = Folder("nothing");
  { const OutputLock lock(folder); }
  EXPECT_FALSE(fs::exists(folder));
  fs::create_directories(folder);  // somebody's own, though empty
  { const OutputLock lock(folder); }
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove(folder);
  {
    const OutputLock lock(folder);
    WriteFileAtomically(folder + "/metrics.jsonl", "x");
  }
  EXPECT_EQ(ReadFile(folder + "/metrics.jsonl"), "x");
  EXPECT_FALSE(fs::exists(folder + "/.lock"));
}

// The kernel lets go; the file stays, with the number of a process that is
// gone.
TEST(OutputLockTest, AKilledHolderHoldsNothing) {
  const std::string folder = Folder("killed");
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const OutputLock lock(folder);
    [[maybe_unused]] const ssize_t n = write(ends[1], "x", 1);
    pause();
    _exit(0);
  }
  char held = 0;
  ASSERT_EQ(read(ends[0], &held, 1), 1);
  ExpectHeld(folder, child);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  EXPECT_EQ(ReadFile(folder + "/.lock"), StrCat(child, "\n"));
  const OutputLock lock(folder);
  ExpectHeld(folder, ::getpid());
}

// Its folder was removed, and another run has made it anew.
TEST(OutputLockTest, TheEndLeavesAnothersFileAlone) {
  const std::string folder = Folder("anothers");
  auto first = std::make_unique<OutputLock>(folder);
  fs::remove_all(folder);
  EXPECT_FALSE(first->IsThere());
  const OutputLock second(folder);
  EXPECT_FALSE(first->IsThere());
  EXPECT_TRUE(second.IsThere());
  second.CheckHeld();
  try {
    first->CheckHeld();
    ADD_FAILURE() << "the folder is another's";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.message(),
              StrCat("[train] ", folder,
                     " must stay while the run writes into it, but it or ",
                     folder, "/.lock was removed, moved or replaced"));
  }
  first.reset();
  ExpectHeld(folder, ::getpid());
}

TEST(OutputLockTest, AFolderThatCannotBeMadeIsIo) {
  const std::string file = Folder("file");
  WriteFileAtomically(file, "x");
  try {
    const OutputLock lock(file + "/below");
    ADD_FAILURE() << "a file has no folders";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.message(), HasSubstr(file + "/below"));
  }
}

// Threads that take it from each other open files that their holders remove:
// they must try again, and never hold it together.
TEST(OutputLockTest, ManyThatTakeItInTurnsHoldItAlone) {
  const std::string folder = Folder("turns");
  fs::create_directories(folder);
  constexpr int kThreads = 4, kTurns = 300;
  std::atomic<int> holders = 0, turns = 0, together = 0, failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (int turn = 0; turn < kTurns;) {
        try {
          const OutputLock lock(folder);
          if (++holders > 1) ++together;
          ++turn;
          ++turns;
          --holders;
        } catch (const Error& error) {
          if (error.code() == ErrorCode::kAlreadyExists) {
            std::this_thread::yield();
            continue;
          }
          ++failures;
          return;
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(turns, kThreads * kTurns);
  EXPECT_EQ(together, 0);
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(fs::is_empty(folder));
}

void ExpectRefused(const std::string& folder, const std::string& part) {
  try {
    const OutputLock lock(folder);
    ADD_FAILURE() << folder << " cannot be locked";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.message(), HasSubstr(folder + "/.lock"));
    EXPECT_THAT(error.message(), HasSubstr(part));
  }
}

TEST(OutputLockTest, ASymbolicLinkIsRefused) {
  const std::string folder = Folder("link");
  fs::create_directories(folder);
  for (const char* target : {"/nowhere/at/all", "elsewhere"}) {
    fs::create_symlink(target, folder + "/.lock");
    ExpectRefused(folder, "symbolic link");
    EXPECT_FALSE(fs::exists(folder + "/elsewhere"));
    fs::remove(folder + "/.lock");
  }
}

// A folder that is there, has no name any more and takes no file.
TEST(OutputLockTest, TriesComeToAnEnd) {
  const fs::path before = fs::current_path();
  const std::string folder = Folder("gone");
  fs::create_directories(folder);
  fs::current_path(folder);
  fs::remove(folder);
  ExpectRefused(".", "tries");
  fs::current_path(before);
}

}  // namespace
}  // namespace terrace::models
