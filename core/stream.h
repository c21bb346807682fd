// Streams and events (decision G5).
//
// The CPU compute stream runs inline. Copy, communication and I/O streams are
// Queues: first in, first out, one worker thread each. An Event is the only
// bridge between them: it is done when its task is, and an error in the task
// surfaces at every Wait on it. After a failed task the queue runs nothing
// more; later events carry the same error.
//
//   Queue queue("communication");
//   Event done = queue.Enqueue([&] { Exchange(); });
//   done.Wait();
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace terrace {

class Event {
 public:
  Event() = default;  // already done
  // Done by the first Wait, whose thread runs `finish`: for what is planned and
  // not run, which thus takes as long as it may.
  static Event Deferred(std::function<void()> finish);
  // Blocks until the task has run; rethrows what it threw.
  void Wait() const;
  bool Done() const;

 private:
  friend class Queue;
  struct State;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

class Queue {
 public:
  explicit Queue(std::string name);
  // Runs what is enqueued, then joins. Never throws.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Event Enqueue(std::function<void()> task);
  // Waits for all that was enqueued before; rethrows the first error.
  void Synchronize();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
