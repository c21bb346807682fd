#include "terrace/core/stream.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "terrace/core/float_env.h"

namespace terrace {

struct Event::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
  std::function<void()> deferred;  // to be run by the first who waits

  void Finish(std::exception_ptr result) {
    {
      const std::lock_guard lock(mutex);
      done = true;
      error = std::move(result);
    }
    changed.notify_all();
  }
};

Event Event::Deferred(std::function<void()> finish) {
  auto state = std::make_shared<State>();
  state->deferred = std::move(finish);
  return Event(std::move(state));
}

void Event::Wait() const {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  if (state_->deferred != nullptr) {
    auto finish = std::exchange(state_->deferred, nullptr);
    lock.unlock();
    std::exception_ptr error;
    try {
      finish();
    } catch (...) {
      error = std::current_exception();
    }
    finish = nullptr;  // what it captured goes before the others wake
    state_->Finish(std::move(error));
    lock.lock();
  }
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->error != nullptr) std::rethrow_exception(state_->error);
}

bool Event::Done() const {
  if (state_ == nullptr) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

struct Queue::Impl {
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Event::State> state;
  };

  std::mutex mutex;
  std::condition_variable wake;
  std::deque<Task> tasks;
  bool stop = false;
  std::exception_ptr error;  // of the first failed task; worker thread only
  std::thread worker;

  void Work() {
    SetFlushToZero();
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || !tasks.empty(); });
      if (tasks.empty()) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      if (error == nullptr) {
        try {
          task.run();
        } catch (...) {
          error = std::current_exception();
        }
      }
      task.run = nullptr;  // what it captured goes before the waiter wakes
      task.state->Finish(error);
      lock.lock();
    }
  }
};

Queue::Queue(std::string name) : impl_(std::make_unique<Impl>()) {
  impl_->worker = std::thread([impl = impl_.get()] { impl->Work(); });
  name.resize(std::min<size_t>(name.size(), 15));  // the kernel's limit
  pthread_setname_np(impl_->worker.native_handle(), name.c_str());
}

Queue::~Queue() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_one();
  impl_->worker.join();
}

Event Queue::Enqueue(std::function<void()> task) {
  auto state = std::make_shared<Event::State>();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tasks.push_back({std::move(task), state});
  }
  impl_->wake.notify_one();
  return Event(std::move(state));
}

void Queue::Synchronize() {
  Enqueue([] {}).Wait();
}

}  // namespace terrace
