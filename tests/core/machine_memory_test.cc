// Against files written as the kernel writes them (proc(5), cgroups(7)).
#include "terrace/core/machine_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/memory.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1024;

class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest()
      : root_(::testing::TempDir() + "/terrace_machine_memory") {
    std::filesystem::remove_all(root_);
  }
  ~MachineMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMeminfo(int64_t swap_kb = 0) const {
    Write("/proc/meminfo",
          "MemTotal:        9000 kB\nMemFree:           50 kB\n"
          "MemAvailable:    8000 kB\nSwapTotal:        700 kB\n"
          "SwapFree:         " +
              std::to_string(swap_kb) + " kB\n");
  }
  std::optional<int64_t> Available() const { return AvailableMemory(root_); }
  const std::string& root() const { return root_; }

 private:
  const std::string root_;
};

TEST_F(MachineMemoryTest, NothingIsSaidWhereNothingIsKnown) {
  EXPECT_EQ(Available(), std::nullopt);
}

TEST_F(MachineMemoryTest, AvailableMemoryAndFreeSwapWithoutGroups) {
  WriteMeminfo();
  EXPECT_EQ(Available(), 8000 * kKiB);
  WriteMeminfo(300);
  EXPECT_EQ(Available(), 8300 * kKiB);
}

TEST_F(MachineMemoryTest, TheLeastRoomOfTheGroupsOnThePath) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "1024\n");
  EXPECT_EQ(Available(), 8000 * kKiB);
  Write("/sys/fs/cgroup/a/memory.max", "2048000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1024000\n");
  EXPECT_EQ(Available(), 1000 * kKiB);
  // Page cache gives way.
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 7\nfile 102400\nactive_file 10240\ninactive_file 92160\n");
  EXPECT_EQ(Available(), 1100 * kKiB);
  // Over its limit: nothing.
  Write("/sys/fs/cgroup/a/b/memory.max", "1000\n");
  EXPECT_EQ(Available(), 0);
}

// The machine's free swap is a group's as far as it may take it.
TEST_F(MachineMemoryTest, SwapOfAGroupIsWhatBothHaveLeft) {
  WriteMeminfo(300);
  Write("/proc/self/cgroup", "0::/a\n");
  Write("/sys/fs/cgroup/a/memory.max", "2048000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1024000\n");
  EXPECT_EQ(Available(), 1000 * kKiB);  // it does not say
  Write("/sys/fs/cgroup/a/memory.swap.max", "max\n");
  EXPECT_EQ(Available(), 1300 * kKiB);
  Write("/sys/fs/cgroup/a/memory.swap.current", "10240\n");
  for (const auto& [limit, swap] : {std::pair(0, 0), std::pair(5, 0),
                                    std::pair(110, 100), std::pair(900, 300)}) {
    Write("/sys/fs/cgroup/a/memory.swap.max", std::to_string(limit * kKiB));
    EXPECT_EQ(Available(), (1000 + swap) * kKiB) << limit;
  }
}

TEST_F(MachineMemoryTest, GroupsOfTheFirstVersion) {
  WriteMeminfo(300);
  Write("/proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/job\n0::/\n");
  const std::string job = "/sys/fs/cgroup/memory/job";
  Write(job + "/memory.limit_in_bytes", "9223372036854771712\n");
  Write(job + "/memory.usage_in_bytes", "2048\n");
  EXPECT_EQ(Available(), 8300 * kKiB);
  Write(job + "/memory.limit_in_bytes", "4096000\n");
  Write(job + "/memory.stat",
        "inactive_file 9\ntotal_inactive_file 1024\ntotal_active_file 0\n");
  const int64_t memory = 4096000 - 2048 + 1024;
  EXPECT_EQ(Available(), memory);
  // The limit of memory and swap together.
  Write(job + "/memory.memsw.usage_in_bytes", "2048\n");
  for (const auto& [more, swap] :
       {std::pair(0, 0), std::pair(100, 100), std::pair(900, 300)}) {
    Write(job + "/memory.memsw.limit_in_bytes",
          std::to_string(4096000 + more * kKiB));
    EXPECT_EQ(Available(), memory + swap * kKiB) << more;
  }
}

// In a container the path may be that of the host, and the group the mount.
TEST_F(MachineMemoryTest, TheMountCountsWhereThePathIsNotThere) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "4:memory:/host/path\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Available(), 2000);
}

// A machine of 8000 KiB that stays as it is, whatever is allocated here.
TEST_F(MachineMemoryTest, ALedgerCountsWhatIsPromisedAndNotTouched) {
  WriteMeminfo();
  const int64_t page = ::getpagesize();
  // A thousand pages of its own, of data that was read before, and six more.
  Write("/proc/self/statm", "5000 1004 4 1 0 99 0\n");
  MemoryLedger ledger(root());
  EXPECT_EQ(ledger.Available(), 8000 * kKiB);
  ledger.Add(7 * page);
  EXPECT_EQ(ledger.Available(), 8000 * kKiB - 7 * page);
  Write("/proc/self/statm", "5000 1020 14 1 0 99 0\n");
  EXPECT_EQ(ledger.Available(), 8000 * kKiB - page);
  ledger.Add(-2 * page);
  EXPECT_EQ(ledger.Available(), 8000 * kKiB);
  ledger.Add(2 * page);
  EXPECT_EQ(ledger.Available(), 8000 * kKiB - page);
  EXPECT_TRUE(ledger.Reserve(5000 * kKiB));
  EXPECT_FALSE(ledger.Reserve(3000 * kKiB));
  EXPECT_EQ(ledger.Available(), 3000 * kKiB - page);
  EXPECT_TRUE(ledger.Reserve(3000 * kKiB - page));
  EXPECT_FALSE(ledger.Reserve(1));
  ledger.Add(-1);
  EXPECT_TRUE(ledger.Reserve(1));
}

// Where it has fewer pages than before, nothing of what is held was touched.
TEST_F(MachineMemoryTest, ALedgerCountsNoLessThanNothingAsTouched) {
  WriteMeminfo();
  Write("/proc/self/statm", "5000 104 4\n");
  MemoryLedger ledger(root());
  Write("/proc/self/statm", "5000 24 4\n");
  ledger.Add(1000);
  EXPECT_EQ(ledger.Available(), 8000 * kKiB - 1000);
}

// Each alone would fit, and no page of them is ever touched.
TEST_F(MachineMemoryTest, ArenasOfOneLedgerDoNotPromiseTheSameMemoryTwice) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  Write("/proc/meminfo", "MemAvailable: 102400 kB\n");
  Write("/proc/self/statm", "1 1 1\n");
  const auto ledger = std::make_shared<MemoryLedger>(root());
  const auto one = Arena::Create(Tier::kDevice, 0, ledger);
  const auto other = Arena::Create(Tier::kDevice, 0, ledger);
  auto first = one->Allocate(60 * kMiB, MemoryTag::kActivation);
  EXPECT_EQ(ledger->Available(), 40 * kMiB);
  try {
    other->Allocate(60 * kMiB, MemoryTag::kActivation);
    FAIL() << "120 MiB of 100 were given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(e.message(),
              "[memory] the machine has no 60.0 MiB left for activation: it "
              "can give 40.0 MiB");
  }
  first.reset();
  EXPECT_NO_THROW(other->Allocate(60 * kMiB, MemoryTag::kActivation));
}

TEST_F(MachineMemoryTest, AnArenaRefusesWhatTheMachineDoesNotHave) {
  const auto available = AvailableMemory();
  if (!available) GTEST_SKIP() << "this system does not say what it has";
  // Far above what other processes may free meanwhile.
  const int64_t nbytes = 2 * *available + (int64_t{64} << 30);
  const auto arena = Arena::Create(Tier::kDevice);
  try {
    arena->Allocate(nbytes, MemoryTag::kParameter);
    FAIL() << "2 x " << *available << " bytes were given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kOutOfMemory);
    EXPECT_NE(e.message().find("the machine has no "), std::string::npos)
        << e.message();
    EXPECT_NE(e.message().find("it can give"), std::string::npos)
        << e.message();
  }
}

// Sanitizers reserve far more addresses than any such limit.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[noreturn]] void AllocateBeyondALimitOfAddresses() {
  const auto arena = Arena::Create(Tier::kDevice);
  const rlimit limit = {rlim_t{256} << 20, rlim_t{256} << 20};
  ::setrlimit(RLIMIT_AS, &limit);
  try {
    arena->Allocate(int64_t{300} << 20, MemoryTag::kOptimizer);
  } catch (const Error& e) {
    std::fputs(e.message().c_str(), stderr);
    std::_Exit(4);
  }
  std::_Exit(0);
}

TEST_F(MachineMemoryTest, ALimitOfAddressesIsNotTakenForALackOfMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(AllocateBeyondALimitOfAddresses(), ::testing::ExitedWithCode(4),
              "no 300.0 MiB left for optimizer: the system refused it");
}
#endif

}  // namespace
}  // namespace terrace
