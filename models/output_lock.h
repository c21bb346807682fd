// One writer of an output folder: a second run is refused before it writes.
//
//   const OutputLock lock("runs/a");   // until the end of the run
//
// Holds an flock on FOLDER/.lock, which the kernel lets go of however the
// process ends; the file holds the process id, for the message. It makes the
// folder where there is none. The end removes the file, and the folder if it
// was made here and holds nothing. Throws kAlreadyExists naming folder and
// holder, kIo for a folder that cannot be written. Readers need no lock.
//
// A lock is lost with its file: whoever removes or moves the folder lets
// another run in. So a run asks by CheckHeld before it opens a file there.
#pragma once

#include <string>

namespace terrace::models {

class OutputLock {
 public:
  explicit OutputLock(const std::string& folder);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

  // Of a file system without locks: nobody keeps a second run away. Else "".
  const std::string& notice() const { return notice_; }

  // The file that is held is the one in the folder.
  bool IsThere() const;
  // Throws kIo where it is not: what the folder holds is another run's.
  void CheckHeld() const;

 private:
  bool TryLock();

  const std::string folder_, path_;
  std::string notice_;
  bool made_folder_ = false;
  int fd_ = -1;
};

}  // namespace terrace::models
