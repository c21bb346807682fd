// Something that happens while a file is read: a pipe in the file's place.
//
//   const Meanwhile writer(folder + "/manifest.json", text, [&] { Rotate(); });
//   Read(folder);   // waits at the file; Rotate() runs; the file says `text`
//
// Once, for the first reader. The end does not wait for a reader that never
// came, and runs `change` all the same.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>

namespace terrace::testing {

class Meanwhile {
 public:
  Meanwhile(const std::string& path, const std::string& text,
            std::function<void()> change)
      : path_(path) {
    std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves early
    std::filesystem::remove(path);
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    writer_ = std::thread([=, change = std::move(change)] {
      const int pipe = open(path.c_str(), O_WRONLY);  // once it is read
      change();
      EXPECT_EQ(write(pipe, text.data(), text.size()), std::ssize(text));
      close(pipe);
    });
  }
  ~Meanwhile() {
    // A writer that waits for a reader goes on; one that has gone on has
    // removed the pipe, or its reader has had all.
    const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
    writer_.join();
    if (reader >= 0) close(reader);
  }

 private:
  const std::string path_;
  std::thread writer_;
};

}  // namespace terrace::testing
