// Files whose every operation is checked: short transfers and interrupted calls
// continue, anything else throws kIo with path, offset and the system's text.
//
//   File out = File::Create("slices.bin");
//   out.WriteAt(4096, bytes);
//   out.Sync();
//   const MappedFile tokens("train.bin");       // tokens.bytes()
//   WriteFileAtomically("manifest.json", text); // old or new, never half
//
// A File owns its descriptor. ReadAt and WriteAt carry their own offset, so
// several threads may use one File at once. Offsets and lengths are in bytes.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

namespace internal {
// The system calls that can fall short; tests pass their own.
class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual ssize_t Read(int fd, void* to, size_t nbytes, off_t offset) const;
  virtual ssize_t Write(int fd, const void* from, size_t nbytes,
                        off_t offset) const;
  virtual int Sync(int fd) const;
};
const FileCalls& SystemFileCalls();
}  // namespace internal

class File {
 public:
  using Calls = internal::FileCalls;

  static File OpenRead(const std::string& path,
                       const Calls& calls = internal::SystemFileCalls());
  // Reads and writes; whatever stood at `path` is emptied.
  static File Create(const std::string& path,
                     const Calls& calls = internal::SystemFileCalls());
  // Reads and writes; created when absent, else kept as it is.
  static File OpenWrite(const std::string& path,
                        const Calls& calls = internal::SystemFileCalls());

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  ~File();  // closes; what was not synced may fail unnoticed: call Close

  // Fills `to`; the file ending before that is kIo.
  void ReadAt(int64_t offset, std::span<std::byte> to) const;
  // As many bytes as there are before the end, at most to.size().
  size_t ReadUpTo(int64_t offset, std::span<std::byte> to) const;
  void WriteAt(int64_t offset, std::span<const std::byte> from);
  void Sync();
  void Resize(int64_t nbytes);
  int64_t nbytes() const;
  // Closes and reports what the system has to say; a second call does nothing.
  void Close();

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }

 private:
  File(const std::string& path, int flags, const Calls& calls);

  std::string path_;
  int fd_ = -1;
  const Calls* calls_;
};

// A file mapped for reading. The spans live as long as the object. Another
// process that shortens the file meanwhile ends this one with SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

// A file that appears under its name only when committed: written beside it
// under a temporary name, removed again if never committed.
class AtomicFile {
 public:
  explicit AtomicFile(
      const std::string& path,
      const internal::FileCalls& calls = internal::SystemFileCalls());
  AtomicFile(AtomicFile&&) = delete;
  ~AtomicFile();

  File& file() { return file_; }
  // fsync, close, rename, fsync of the folder.
  void Commit();

 private:
  std::string path_;
  std::string temporary_path_;
  File file_;
  const internal::FileCalls& calls_;
  bool committed_ = false;
};

// After a crash `path` holds either what it held before or all of `bytes`.
void WriteFileAtomically(
    const std::string& path, std::span<const std::byte> bytes,
    const internal::FileCalls& calls = internal::SystemFileCalls());
void WriteFileAtomically(
    const std::string& path, std::string_view text,
    const internal::FileCalls& calls = internal::SystemFileCalls());

// The whole file, also one whose size is not known before (a pipe, /proc); of
// a longer one (/dev/zero) its first `most_nbytes`.
std::string ReadFile(const std::string& path,
                     int64_t most_nbytes = int64_t{1} << 62);

// Like mkdir -p. Throws kIo when a part of the path is not a folder.
void MakeDirectories(const std::string& path);

// Whether the open file is the one that `path` leads to: not removed, moved or
// replaced meanwhile.
bool IsFileAt(int descriptor, const std::string& path);

// fsync of a folder: makes files created or renamed in it durable.
void SyncDirectory(const std::string& path, const internal::FileCalls& calls =
                                                internal::SystemFileCalls());

// The paths that match a shell pattern (*, ?, [...]), sorted by bytes; empty
// when none does. A file that has exactly the given name stands for itself.
// Throws kIo when a folder on the way cannot be read.
std::vector<std::string> ExpandGlob(const std::string& pattern);

}  // namespace terrace
