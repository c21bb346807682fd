#include "terrace/core/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "terrace/core/error.h"

namespace terrace {
namespace {

std::string SystemText(int error) {
  return std::generic_category().message(error);  // strerror is not reentrant
}

// Reads errno, so it must follow the failed call at once.
[[noreturn]] void ThrowErrno(std::string_view what, const std::string& path) {
  const int error = errno;
  TERRACE_THROW(ErrorCode::kIo, "[file] cannot ", what, " ", path, ": ",
                SystemText(error));
}

[[noreturn]] void ThrowErrnoAt(std::string_view what, const std::string& path,
                               int64_t offset, size_t nbytes) {
  const int error = errno;
  TERRACE_THROW(ErrorCode::kIo, "[file] cannot ", what, " ", nbytes,
                " bytes at offset ", offset, " of ", path, ": ",
                SystemText(error));
}

int OpenOrThrow(const std::string& path, int flags, std::string_view what) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) ThrowErrno(what, path);
  return fd;
}

int64_t SizeOrThrow(int fd, const std::string& path) {
  struct stat status;
  if (::fstat(fd, &status) != 0) ThrowErrno("stat", path);
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    ThrowErrno("read", path);
  }
  return status.st_size;
}

// Of a folder that cannot be made, whose system text is "File exists": the link
// on the way that leads nowhere, or "".
std::string DanglingLink(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code none;
  fs::path part;
  for (const fs::path& component : fs::path(path)) {
    part /= component;
    if (!fs::is_symlink(fs::symlink_status(part, none))) continue;
    if (fs::status(part, none).type() != fs::file_type::not_found) continue;
    return StrCat(part.string(), " is a symbolic link to ",
                  fs::read_symlink(part, none).string(),
                  ", which is not there");
  }
  return "";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Unique among the live threads of a machine. A leftover of a crash is
// overwritten at the latest when its number comes round again.
std::string TemporaryName(const std::string& path) {
  return StrCat(path, ".tmp.", ::getpid(), ".", ::gettid());
}

}  // namespace

namespace internal {

ssize_t FileCalls::Read(int fd, void* to, size_t nbytes, off_t offset) const {
  return ::pread(fd, to, nbytes, offset);
}
ssize_t FileCalls::Write(int fd, const void* from, size_t nbytes,
                         off_t offset) const {
  return ::pwrite(fd, from, nbytes, offset);
}
int FileCalls::Sync(int fd) const { return ::fsync(fd); }

const FileCalls& SystemFileCalls() {
  static const FileCalls calls;
  return calls;
}

}  // namespace internal

// --- File ---

File File::OpenRead(const std::string& path, const Calls& calls) {
  return File(path, O_RDONLY, calls);
}
File File::Create(const std::string& path, const Calls& calls) {
  return File(path, O_RDWR | O_CREAT | O_TRUNC, calls);
}
File File::OpenWrite(const std::string& path, const Calls& calls) {
  return File(path, O_RDWR | O_CREAT, calls);
}

File::File(const std::string& path, int flags, const Calls& calls)
    : path_(path),
      fd_(OpenOrThrow(path, flags, flags & O_CREAT ? "create" : "open")),
      calls_(&calls) {}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      calls_(other.calls_) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(calls_, other.calls_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

size_t File::ReadUpTo(int64_t offset, std::span<std::byte> to) const {
  size_t done = 0;
  while (done < to.size()) {
    const size_t left = to.size() - done;
    const int64_t at = offset + static_cast<int64_t>(done);
    const ssize_t n = calls_->Read(fd_, to.data() + done, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowErrnoAt("read", path_, at, left);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

void File::ReadAt(int64_t offset, std::span<std::byte> to) const {
  const size_t done = ReadUpTo(offset, to);
  if (done != to.size()) {
    TERRACE_THROW(ErrorCode::kIo, "[file] ", path_, " must hold ", to.size(),
                  " bytes at offset ", offset, ", it ends after ", done);
  }
}

void File::WriteAt(int64_t offset, std::span<const std::byte> from) {
  size_t done = 0;
  while (done < from.size()) {
    const size_t left = from.size() - done;
    const int64_t at = offset + static_cast<int64_t>(done);
    ssize_t n = calls_->Write(fd_, from.data() + done, left, at);
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) {  // would repeat for ever
      errno = ENOSPC;
      n = -1;
    }
    if (n < 0) ThrowErrnoAt("write", path_, at, left);
    done += static_cast<size_t>(n);
  }
}

void File::Sync() {
  int result;
  do {
    result = calls_->Sync(fd_);
  } while (result != 0 && errno == EINTR);
  if (result != 0) ThrowErrno("sync", path_);
}

void File::Resize(int64_t nbytes) {
  int result;
  do {
    result = ::ftruncate(fd_, nbytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) ThrowErrno("resize", path_);
}

int64_t File::nbytes() const { return SizeOrThrow(fd_, path_); }

void File::Close() {
  if (fd_ < 0) return;
  // On Linux the descriptor is gone even when close was interrupted.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    ThrowErrno("close", path_);
  }
}

// --- MappedFile ---

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const File file = File::OpenRead(path);  // the mapping outlives it
  const size_t nbytes = static_cast<size_t>(file.nbytes());
  if (nbytes == 0) return;  // mmap refuses an empty range
  void* data =
      ::mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) ThrowErrno("map", path);
  bytes_ = {static_cast<const std::byte*>(data), nbytes};
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

// --- Whole files and folders ---

AtomicFile::AtomicFile(const std::string& path,
                       const internal::FileCalls& calls)
    : path_(path),
      temporary_path_(TemporaryName(path)),
      file_(File::Create(temporary_path_, calls)),
      calls_(calls) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_path_.c_str());
}

void AtomicFile::Commit() {
  file_.Sync();
  file_.Close();
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    ThrowErrno("rename " + temporary_path_ + " to", path_);
  }
  committed_ = true;
  SyncDirectory(FolderOf(path_), calls_);
}

void WriteFileAtomically(const std::string& path,
                         std::span<const std::byte> bytes,
                         const internal::FileCalls& calls) {
  AtomicFile file(path, calls);
  file.file().WriteAt(0, bytes);
  file.Commit();
}

void WriteFileAtomically(const std::string& path, std::string_view text,
                         const internal::FileCalls& calls) {
  WriteFileAtomically(path, std::as_bytes(std::span(text)), calls);
}

std::string ReadFile(const std::string& path, int64_t most_nbytes) {
  const File file = File::OpenRead(path);
  const auto most = static_cast<size_t>(most_nbytes);
  std::string text(std::min(static_cast<size_t>(file.nbytes()) + 1, most),
                   '\0');
  size_t done = 0;
  while (done < most) {
    // read, not pread: a pipe has no offsets.
    const ssize_t n =
        ::read(file.descriptor(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      ThrowErrnoAt("read", path, static_cast<int64_t>(done),
                   text.size() - done);
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
    if (done == text.size())
      text.resize(std::min(2 * text.size() + 4096, most));
  }
  text.resize(done);
  return text;
}

void MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error) && !error) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) {
    const std::string link = DanglingLink(path);
    TERRACE_THROW(ErrorCode::kIo, "[file] cannot create the folder ", path,
                  ": ", link.empty() ? error.message() : link);
  }
}

bool IsFileAt(int descriptor, const std::string& path) {
  struct stat open = {}, there = {};
  return ::fstat(descriptor, &open) == 0 && ::stat(path.c_str(), &there) == 0 &&
         open.st_ino == there.st_ino && open.st_dev == there.st_dev;
}

void SyncDirectory(const std::string& path, const internal::FileCalls& calls) {
  const File folder = File::OpenRead(path);
  int result;
  do {
    result = calls.Sync(folder.descriptor());
  } while (result != 0 && errno == EINTR);
  // EINVAL: a file system that has no such thing, as some network ones.
  if (result != 0 && errno != EINVAL) ThrowErrno("sync", path);
}

std::vector<std::string> ExpandGlob(const std::string& pattern) {
  struct stat status;
  if (::lstat(pattern.c_str(), &status) == 0) return {pattern};
  // A folder that is not there matches nothing; one that cannot be read would
  // leave data out in silence.
  const auto on_error = [](const char*, int error) -> int {
    return error != ENOENT && error != ENOTDIR;
  };
  glob_t found = {};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, on_error, &found);
  const int error = errno;
  std::vector<std::string> paths(found.gl_pathv,
                                 found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result != 0 && result != GLOB_NOMATCH) {
    TERRACE_THROW(ErrorCode::kIo, "[file] cannot expand ", pattern, ": ",
                  result == GLOB_NOSPACE ? "out of memory" : SystemText(error));
  }
  std::sort(paths.begin(), paths.end());  // glob's own order is the locale's
  return paths;
}

}  // namespace terrace
