// Against files written as the kernel writes them (proc(5), cgroups(7)).
#include "terrace/core/machine_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "terrace/core/error.h"
#include "terrace/core/memory.h"

namespace terrace {
namespace {

constexpr int64_t kKiB = 1024;

class MachineMemoryTest : public ::testing::Test {
 protected:
  MachineMemoryTest() : root_(::testing::TempDir() + "/machine_memory") {
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
  WriteMeminfo(300);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/b/memory.current", "1024\n");
  EXPECT_EQ(Available(), 8300 * kKiB);
  Write("/sys/fs/cgroup/a/memory.max", "2048000\n");
  Write("/sys/fs/cgroup/a/memory.current", "1024000\n");
  EXPECT_EQ(Available(), 1300 * kKiB);
  // Page cache gives way.
  Write("/sys/fs/cgroup/a/memory.stat",
        "anon 7\nfile 102400\nactive_file 10240\ninactive_file 92160\n");
  EXPECT_EQ(Available(), 1400 * kKiB);
  // Over its limit: nothing.
  Write("/sys/fs/cgroup/a/b/memory.max", "1000\n");
  EXPECT_EQ(Available(), 300 * kKiB);
}

TEST_F(MachineMemoryTest, GroupsOfTheFirstVersion) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "5:devices:/x\n4:cpu,memory:/job\n0::/\n");
  const std::string job = "/sys/fs/cgroup/memory/job";
  Write(job + "/memory.limit_in_bytes", "9223372036854771712\n");
  Write(job + "/memory.usage_in_bytes", "2048\n");
  EXPECT_EQ(Available(), 8000 * kKiB);
  Write(job + "/memory.limit_in_bytes", "4096000\n");
  Write(job + "/memory.stat",
        "inactive_file 9\ntotal_inactive_file 1024\ntotal_active_file 0\n");
  EXPECT_EQ(Available(), 4096000 - 2048 + 1024);
}

// In a container the path may be that of the host, and the group the mount.
TEST_F(MachineMemoryTest, TheMountCountsWhereThePathIsNotThere) {
  WriteMeminfo();
  Write("/proc/self/cgroup", "4:memory:/host/path\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(Available(), 2000);
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

}  // namespace
}  // namespace terrace
