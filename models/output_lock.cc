#include "terrace/models/output_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "terrace/core/error.h"
#include "terrace/core/file.h"

namespace terrace::models {
namespace {

// Each but the last is a holder's end at the very moment.
constexpr int kMostTries = 1000;

// What the holder wrote: " by process 12", or "" if it has not come to that.
std::string Holder(int fd) {
  char text[32] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  std::string id(text, n > 0 ? static_cast<size_t>(n) : 0);
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id.empty() ? "" : " by process " + id;
}

[[noreturn]] void Fail(const char* what, const std::string& path) {
  const int error = errno;
  TERRACE_THROW(ErrorCode::kIo, "[train] cannot ", what, " ", path, ": ",
                std::generic_category().message(error));
}

}  // namespace

OutputLock::OutputLock(const std::string& folder)
    : folder_(folder), path_(folder + "/.lock") {
  std::error_code none;
  made_folder_ = !std::filesystem::exists(folder_, none);
  // Again where the holder's end took the file or the folder from under us.
  for (int tries = 0; tries < kMostTries; ++tries)
    if (TryLock()) return;
  TERRACE_THROW(ErrorCode::kIo, "[train] cannot lock ", path_,
                ": the file or its folder was gone again each time, in ",
                kMostTries, " tries");
}

bool OutputLock::TryLock() {
  MakeDirectories(folder_);
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd_ < 0) {
    if (errno == ENOENT || errno == EINTR) return false;
    if (errno == ELOOP)
      TERRACE_THROW(ErrorCode::kIo, "[train] ", path_,
                    " must be a plain file, it is a symbolic link: remove it");
    Fail("create", path_);
  }
  const auto close = [&] {
    ::close(fd_);
    fd_ = -1;
  };
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EINTR) {
      close();
      return false;
    }
    if (error == EWOULDBLOCK) {
      const std::string holder = Holder(fd_);
      close();
      TERRACE_THROW(ErrorCode::kAlreadyExists, "[train] ", folder_,
                    " is being written", holder,
                    ": wait for that run to end, or choose another folder by "
                    "--out");
    }
    notice_ = StrCat(folder_, " cannot be locked (",
                     std::generic_category().message(error),
                     "): start no second run into it");
  }
  if (!IsThere()) {
    close();
    return false;
  }
  const std::string id = StrCat(::getpid(), "\n");
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, id.data(), id.size(), 0) !=
                                      static_cast<ssize_t>(id.size())) {
    const int error = errno;
    close();
    errno = error;
    Fail("write", path_);
  }
  return true;
}

bool OutputLock::IsThere() const { return IsFileAt(fd_, path_); }

void OutputLock::CheckHeld() const {
  if (IsThere()) return;
  TERRACE_THROW(ErrorCode::kIo, "[train] ", folder_,
                " must stay while the run writes into it, but it or ", path_,
                " was removed, moved or replaced");
}

OutputLock::~OutputLock() {
  if (fd_ < 0) return;
  // While it is held: nobody else can think that the file is theirs. Where the
  // folder was removed meanwhile, another run may have made it anew.
  if (IsThere()) ::unlink(path_.c_str());
  if (made_folder_) ::rmdir(folder_.c_str());  // refused where it holds a run
  ::close(fd_);
}

}  // namespace terrace::models
