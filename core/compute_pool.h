// The one compute pool of a rank (decision G1).
//
// In builds with oneDNN a parallel loop is an OpenMP region, so that library
// products and our kernels share one team; elsewhere it is a pool of
// std::thread with the same interface. Chunks are a function of n and grain
// alone, never of the thread count: a result that combines them in order has
// the same bits for any number of threads.
//
// A pool belongs to the rank thread that made it; only that thread opens loops.
// A loop inside a loop runs inline. Every worker flushes subnormals to zero.
//
// The pool of a dry context (context.h) has no workers and skips its loops.
#pragma once

#include <cstdint>
#include <memory>

#include "terrace/core/function_ref.h"

namespace terrace {

class ComputePool {
 public:
  explicit ComputePool(int threads, bool dry = false);
  ~ComputePool();
  ComputePool(const ComputePool&) = delete;
  ComputePool& operator=(const ComputePool&) = delete;

  int threads() const { return threads_; }
  // Of the chunks of such a loop, those that run at once.
  int64_t AtOnce(int64_t n, int64_t grain) const;

  // Calls body(begin, end) once for each chunk of `grain` indices of [0, n),
  // the last one shorter. Rethrows the exception of the first chunk that threw.
  void ParallelFor(int64_t n, int64_t grain,
                   FunctionRef<void(int64_t, int64_t)> body);

  // Makes libraries that open OpenMP regions on the calling thread use a team
  // of threads() from now on. Only needed where one thread owns several pools:
  // the last one made is bound.
  void Bind() const;

  // "openmp" or "std::thread".
  static const char* Kind();

 private:
  struct Impl;
  int threads_;
  const bool dry_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
