#include "terrace/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "terrace/core/error.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

template <class F>
std::string IoError(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo) << error.message();
    return error.message();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Moves at most 3 bytes a call, is interrupted every other time, and fails
// for good once `budget` bytes are through.
class FaultyCalls : public internal::FileCalls {
 public:
  explicit FaultyCalls(size_t budget = SIZE_MAX, int error = 0)
      : budget_(budget), error_(error) {}

  ssize_t Read(int fd, void* to, size_t nbytes, off_t offset) const override {
    const size_t n = Admit(nbytes);
    return n == 0 ? -1 : FileCalls::Read(fd, to, n, offset);
  }
  ssize_t Write(int fd, const void* from, size_t nbytes,
                off_t offset) const override {
    const size_t n = Admit(nbytes);
    return n == 0 ? -1 : FileCalls::Write(fd, from, n, offset);
  }
  int Sync(int fd) const override {
    if (Interrupted()) return -1;
    if (sync_error != 0) {
      errno = sync_error;
      return -1;
    }
    return FileCalls::Sync(fd);
  }

  int sync_error = 0;

 private:
  bool Interrupted() const {
    errno = EINTR;
    return ++count_ % 2 == 1;
  }
  size_t Admit(size_t nbytes) const {
    if (Interrupted()) return 0;
    const size_t n = std::min({nbytes, size_t{3}, budget_});
    budget_ -= n;
    errno = error_;
    return n;
  }
  mutable size_t budget_;
  int error_;
  mutable int count_ = 0;
};

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = testing::TempDir() + "terrace_file_test_" + info->name();
    std::filesystem::remove_all(folder_);
    MakeDirectories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) { return folder_ + "/" + name; }
  size_t FileCount() {
    return std::distance(std::filesystem::directory_iterator(folder_), {});
  }
  std::string folder_;
};

TEST_F(FileTest, ShortAndInterruptedTransfersContinue) {
  const std::string text = "0123456789abcdef";
  const FaultyCalls calls;
  File file = File::Create(Path("a"), calls);
  file.WriteAt(5, BytesOf(text));
  file.Sync();
  EXPECT_EQ(file.nbytes(), 21);
  std::string back(16, '\0');
  file.ReadAt(5, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, text);
  EXPECT_EQ(ReadFile(Path("a")), std::string(5, '\0') + text);
}

TEST_F(FileTest, FailuresNamePathOffsetAndReason) {
  const FaultyCalls full(6, ENOSPC);
  File file = File::Create(Path("a"), full);
  EXPECT_THAT(IoError([&] { file.WriteAt(100, BytesOf("0123456789")); }),
              AllOf(HasSubstr("write 4 bytes at offset 106 of " + Path("a")),
                    HasSubstr("No space left on device")));
  const FaultyCalls bad(2, EIO);
  const File broken = File::OpenRead(Path("a"), bad);
  std::byte buffer[8];
  EXPECT_THAT(IoError([&] { broken.ReadAt(0, buffer); }),
              AllOf(HasSubstr("read 6 bytes at offset 2 of " + Path("a")),
                    HasSubstr("Input/output error")));
  EXPECT_THAT(IoError([&] { File::OpenRead(Path("none")); }),
              AllOf(HasSubstr(Path("none")), HasSubstr("No such file")));
  EXPECT_THAT(IoError([&] { File::Create(Path("none/a")); }),
              AllOf(HasSubstr(Path("none/a")), HasSubstr("No such file")));
}

TEST_F(FileTest, ReadingPastTheEndIsAnErrorOrAShortCount) {
  WriteFileAtomically(Path("a"), "12345");
  const File file = File::OpenRead(Path("a"));
  std::byte buffer[4];
  EXPECT_THAT(IoError([&] { file.ReadAt(3, buffer); }),
              HasSubstr("must hold 4 bytes at offset 3, it ends after 2"));
  EXPECT_EQ(file.ReadUpTo(3, buffer), 2u);
  EXPECT_EQ(file.ReadUpTo(50, buffer), 0u);
}

TEST_F(FileTest, OpenWriteKeepsAndCreateEmpties) {
  WriteFileAtomically(Path("a"), "12345");
  {
    File file = File::OpenWrite(Path("a"));
    file.WriteAt(file.nbytes(), BytesOf("67"));
    file.Resize(6);
    file.Close();
    file.Close();
  }
  EXPECT_EQ(ReadFile(Path("a")), "123456");
  File moved = File::Create(Path("b"));
  moved = File::Create(Path("a"));
  EXPECT_EQ(moved.path(), Path("a"));
  EXPECT_EQ(ReadFile(Path("a")), "");
}

TEST_F(FileTest, MappedFileShowsTheBytes) {
  WriteFileAtomically(Path("a"), "mapped");
  WriteFileAtomically(Path("empty"), "");
  MappedFile file(Path("a"));
  const MappedFile moved = std::move(file);
  EXPECT_TRUE(std::ranges::equal(moved.bytes(), BytesOf("mapped")));
  EXPECT_TRUE(MappedFile(Path("empty")).bytes().empty());
  EXPECT_THAT(IoError([&] { MappedFile none(folder_); }),
              HasSubstr("Is a directory"));
}

TEST_F(FileTest, AtomicWriteReplacesWholeOrNotAtAll) {
  WriteFileAtomically(Path("a"), "old");
  WriteFileAtomically(Path("a"), "newer");
  EXPECT_EQ(ReadFile(Path("a")), "newer");

  const FaultyCalls full(2, ENOSPC);
  IoError([&] { WriteFileAtomically(Path("a"), "never seen", full); });
  EXPECT_EQ(ReadFile(Path("a")), "newer");

  FaultyCalls unsynced;
  unsynced.sync_error = EIO;
  IoError([&] { WriteFileAtomically(Path("a"), "never seen", unsynced); });
  EXPECT_EQ(ReadFile(Path("a")), "newer");
  EXPECT_EQ(FileCount(), 1u);  // no temporary file is left

  MakeDirectories(Path("folder"));
  EXPECT_THAT(IoError([&] { WriteFileAtomically(Path("folder"), "x"); }),
              HasSubstr("rename"));
  EXPECT_EQ(FileCount(), 2u);
}

TEST_F(FileTest, ReadFileTakesFilesOfUnknownSize) {
  EXPECT_THAT(ReadFile("/proc/self/status"), HasSubstr("Pid:"));
  std::string large(300000, 'x');
  WriteFileAtomically(Path("large"), large);
  EXPECT_EQ(ReadFile(Path("large")), large);
  EXPECT_THAT(IoError([&] { ReadFile(folder_); }), HasSubstr(folder_));
}

TEST_F(FileTest, MakeDirectoriesMakesParentsAndRefusesFiles) {
  MakeDirectories(Path("x/y/z"));
  MakeDirectories(Path("x/y/z/"));
  EXPECT_TRUE(std::filesystem::is_directory(Path("x/y/z")));
  WriteFileAtomically(Path("file"), "1");
  EXPECT_THAT(IoError([&] { MakeDirectories(Path("file")); }),
              HasSubstr(Path("file")));
  EXPECT_THAT(IoError([&] { MakeDirectories(Path("file/below")); }),
              HasSubstr("Not a directory"));
  // A link to a folder is one, a link that leads nowhere is named.
  std::filesystem::create_symlink("x", Path("good"));
  MakeDirectories(Path("good"));
  MakeDirectories(Path("good/more"));
  EXPECT_TRUE(std::filesystem::is_directory(Path("x/more")));
  std::filesystem::create_symlink("none", Path("link"));
  for (const char* path : {"link", "link/", "link/below"}) {
    EXPECT_THAT(IoError([&] { MakeDirectories(Path(path)); }),
                HasSubstr(Path("link") +
                          " is a symbolic link to none, which is not there"));
  }
}

TEST_F(FileTest, AnOpenFileIsAtItsPathUntilItIsMovedOrReplaced) {
  const File file = File::OpenWrite(Path("a"));
  EXPECT_TRUE(IsFileAt(file.descriptor(), Path("a")));
  std::filesystem::create_symlink("a", Path("link"));
  EXPECT_TRUE(IsFileAt(file.descriptor(), Path("link")));
  std::filesystem::rename(Path("a"), Path("b"));
  EXPECT_FALSE(IsFileAt(file.descriptor(), Path("a"))) << "gone";
  EXPECT_TRUE(IsFileAt(file.descriptor(), Path("b")));
  WriteFileAtomically(Path("a"), "another");
  EXPECT_FALSE(IsFileAt(file.descriptor(), Path("a")));
  EXPECT_FALSE(IsFileAt(-1, Path("a")));
}

TEST_F(FileTest, GlobIsSortedByBytesAndEmptyWithoutMatch) {
  MakeDirectories(Path("d"));
  for (const char* name : {"b.txt", "B.txt", "a.txt", "d/c.txt", "e[1].txt"}) {
    WriteFileAtomically(Path(name), "1");
  }
  EXPECT_THAT(ExpandGlob(Path("?.txt")),
              ElementsAre(Path("B.txt"), Path("a.txt"), Path("b.txt")));
  EXPECT_THAT(ExpandGlob(Path("*/*.txt")), ElementsAre(Path("d/c.txt")));
  EXPECT_THAT(ExpandGlob(Path("a.txt")), ElementsAre(Path("a.txt")));
  EXPECT_THAT(ExpandGlob(Path("e[1].txt")), ElementsAre(Path("e[1].txt")));
  EXPECT_THAT(ExpandGlob(Path("*.none")), IsEmpty());
  EXPECT_THAT(ExpandGlob(Path("none/*.txt")), IsEmpty());
  EXPECT_THAT(ExpandGlob(Path("a.txt/*")), IsEmpty());
  if (::geteuid() != 0) {  // root reads everything
    ::chmod(Path("d").c_str(), 0);
    EXPECT_THAT(IoError([&] { ExpandGlob(Path("d/*")); }),
                HasSubstr("Permission denied"));
    ::chmod(Path("d").c_str(), 0700);
  }
}

}  // namespace
}  // namespace terrace
