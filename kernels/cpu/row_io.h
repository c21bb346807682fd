// Rows in and out of padded scratch: widening loads and rounding stores between
// an element type and the type that arithmetic happens in (float, or double
// for f64).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

#include "terrace/core/context.h"
#include "terrace/core/dtype.h"
#include "terrace/kernels/cpu/cast.h"

namespace terrace::kernels::cpu {

// Rows that one chunk of a parallel loop takes: about 16 K elements.
inline int64_t RowGrain(int64_t row_numel) {
  return std::clamp<int64_t>(16384 / std::max<int64_t>(row_numel, 1), 1, 1024);
}

// to[0, n) = from, to[n, padded) = fill.
template <class T, class A>
void LoadRow(const T* from, int64_t n, A* to, int64_t padded, A fill) {
  for (int64_t i = 0; i < n; ++i) to[i] = Cast<A>(from[i]);
  std::fill(to + n, to + padded, fill);
}

template <class T, class A>
void StoreRow(const A* from, int64_t n, T* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = Cast<T>(from[i]);
}

// Scratch of one chunk of work, counted as workspace.
template <class A>
class Scratch {
 public:
  Scratch(const Context& ctx, int64_t numel)
      : buffer_(ctx.device_arena().Allocate(
            numel * static_cast<int64_t>(sizeof(A)), MemoryTag::kWorkspace)),
        data_(reinterpret_cast<A*>(buffer_->data())) {}

  A* data() const { return data_; }
  // The next `numel` elements of it.
  A* Take(int64_t numel) {
    A* taken = data_ + used_;
    used_ += numel;
    return taken;
  }

 private:
  std::shared_ptr<Buffer> buffer_;
  A* data_;
  int64_t used_ = 0;
};

// In a dry context, what `n` chunks of a loop that run at once
// (ComputePool::AtOnce) take for themselves: a T made of `args` each, all there
// at the same time.
template <class T, class... Args>
void TakeAtOnce(int64_t n, const Args&... args) {
  std::list<T> taken;  // stays where it is
  for (int64_t i = 0; i < n; ++i) taken.emplace_back(args...);
}

}  // namespace terrace::kernels::cpu
