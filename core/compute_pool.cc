#include "terrace/core/compute_pool.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/float_env.h"
#include "terrace/core/shape.h"

#ifdef TERRACE_OPENMP
#include <omp.h>
#endif

namespace terrace {
namespace {

// Keeps the exception of the lowest chunk: the one a serial loop would meet.
class FirstError {
 public:
  void Keep(int64_t chunk) {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr || chunk < chunk_) {
      error_ = std::current_exception();
      chunk_ = chunk;
    }
  }
  void Rethrow() {
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  int64_t chunk_ = 0;
};

thread_local bool t_inside_loop = false;

struct InsideLoop {
  InsideLoop() { t_inside_loop = true; }
  ~InsideLoop() { t_inside_loop = false; }
};

void RunChunk(int64_t chunk, int64_t n, int64_t grain,
              FunctionRef<void(int64_t, int64_t)> body, FirstError& error) {
  try {
    body(chunk * grain, std::min(n, (chunk + 1) * grain));
  } catch (...) {
    error.Keep(chunk);
  }
}

}  // namespace

int64_t ComputePool::AtOnce(int64_t n, int64_t grain) const {
  return std::min<int64_t>(CeilDiv(n, grain), threads_);
}

#ifdef TERRACE_OPENMP

struct ComputePool::Impl {};

const char* ComputePool::Kind() { return "openmp"; }

ComputePool::ComputePool(int threads, bool dry)
    : threads_(std::max(threads, 1)), dry_(dry) {
  if (dry) return;
  omp_set_dynamic(0);
  omp_set_num_threads(threads_);  // of the calling thread alone
  SetFlushToZero();
#pragma omp parallel num_threads(threads_)
  SetFlushToZero();
}

ComputePool::~ComputePool() = default;

void ComputePool::Bind() const { omp_set_num_threads(threads_); }

void ComputePool::ParallelFor(int64_t n, int64_t grain,
                              FunctionRef<void(int64_t, int64_t)> body) {
  if (dry_) return;
  const int64_t chunks = CeilDiv(n, grain);
  FirstError error;
  if (chunks <= 1 || threads_ == 1 || t_inside_loop) {
    for (int64_t c = 0; c < chunks; ++c) RunChunk(c, n, grain, body, error);
  } else {
#pragma omp parallel num_threads(threads_)
    {
      const InsideLoop inside;
      if (!FlushesToZero()) SetFlushToZero();
#pragma omp for schedule(static)
      for (int64_t c = 0; c < chunks; ++c) RunChunk(c, n, grain, body, error);
    }
  }
  error.Rethrow();
}

#else

struct ComputePool::Impl {
  std::mutex mutex;
  std::condition_variable wake, done;
  int64_t generation = 0;
  int busy = 0;
  bool stop = false;
  FunctionRef<void(int)>* share = nullptr;
  std::vector<std::thread> workers;

  void Work(int worker) {
    SetFlushToZero();
    const InsideLoop inside;
    int64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      FunctionRef<void(int)> run = *share;
      lock.unlock();
      run(worker);
      lock.lock();
      if (--busy == 0) done.notify_one();
    }
  }
};

const char* ComputePool::Kind() { return "std::thread"; }

ComputePool::ComputePool(int threads, bool dry)
    : threads_(std::max(threads, 1)),
      dry_(dry),
      impl_(std::make_unique<Impl>()) {
  if (dry) return;
  SetFlushToZero();
  for (int w = 1; w < threads_; ++w)
    impl_->workers.emplace_back([this, w] { impl_->Work(w); });
}

ComputePool::~ComputePool() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (std::thread& worker : impl_->workers) worker.join();
}

void ComputePool::Bind() const {}

void ComputePool::ParallelFor(int64_t n, int64_t grain,
                              FunctionRef<void(int64_t, int64_t)> body) {
  if (dry_) return;
  const int64_t chunks = CeilDiv(n, grain);
  FirstError error;
  // Contiguous shares, as OpenMP's static schedule deals them.
  const auto run = [&](int worker) {
    const int64_t begin = chunks * worker / threads_;
    const int64_t end = chunks * (worker + 1) / threads_;
    for (int64_t c = begin; c < end; ++c) RunChunk(c, n, grain, body, error);
  };
  if (chunks <= 1 || threads_ == 1 || t_inside_loop) {
    for (int64_t c = 0; c < chunks; ++c) RunChunk(c, n, grain, body, error);
  } else {
    FunctionRef<void(int)> share = run;
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->share = &share;
      impl_->busy = threads_ - 1;
      ++impl_->generation;
    }
    impl_->wake.notify_all();
    {
      const InsideLoop inside;
      run(0);
    }
    std::unique_lock lock(impl_->mutex);
    impl_->done.wait(lock, [&] { return impl_->busy == 0; });
  }
  error.Rethrow();
}

#endif

}  // namespace terrace
