// One writer of an output folder: a second run is refused before it writes.
//
//   const OutputLock lock("runs/a");   // until the end of the run
//
// Holds an flock on FOLDER/.lock, which the kernel lets go of however the
// process ends; the file holds the process id, for the message. It makes the
// folder where there is none. The end removes the file, and the folder if it
// was made here and holds nothing. Throws kAlreadyExists naming folder and
// holder, kIo for a folder that cannot be written. Readers need no lock.
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

 private:
  bool TryLock();
  // The file that is held is the one at path_.
  bool IsThere() const;

  const std::string folder_, path_;
  std::string notice_;
  bool made_folder_ = false;
  int fd_ = -1;
};

}  // namespace terrace::models
