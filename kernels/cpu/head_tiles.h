// The vector half of the fused head (cpu/linear_cross_entropy.cc): what one
// chunk of rows does in each of its parallel loops, dispatched at run time.
//
//   1. blocks of the vocabulary: logits, their maximum and sum of exponentials
//   2. blocks of the vocabulary: dlogits in place, dW
//   3. panels of h's columns: dh, over the vocabulary in order
//
// Logits lie as [V, rows]: a row is a lane, so the softmax needs no sum over
// lanes and no padding of V; W is read as it is, by broadcasts, and dW is
// written in place. Each loop is bound by the multiply-adds of its product; dW
// is fetched a block ahead, and W, where it is not converted, a tile (1) or a
// block (3). Elements of dW are one chain over all rows,
// those of dh are sums of one chain a block.
//
// Where a library multiplies bf16 faster, logits lie as rows and only the
// softmax is ours: HeadRowStatistics and HeadRowGradient.
#pragma once

#include <cstdint>

#include "terrace/core/half.h"

namespace terrace::kernels::cpu {

inline constexpr int64_t kHeadRows = 48;  // a panel of rows: vectors and tiles
inline constexpr int64_t kHeadColumns = 64;  // a panel of h's columns
inline constexpr int64_t kHeadBlock = 72;    // of the vocabulary: whole tiles

// One chunk, A being float or double and T the type of W.
template <class A, class T>
struct HeadChunk {
  int64_t rows = 0;     // valid ones
  int64_t padded = 0;   // rows rounded up to whole panels
  int64_t width = 0;    // C
  int64_t columns = 0;  // C rounded up to whole panels
  int64_t vocabulary = 0;
  const T* weight = nullptr;        // [V, C]
  const int32_t* labels = nullptr;  // [rows]
  A* by_row = nullptr;     // h as [padded / 48, C, 48], zero beyond rows
  A* by_column = nullptr;  // h as [columns / 64, rows, 64], zero beyond C
  A* logits = nullptr;     // [V, padded]
  A* max = nullptr;        // [padded]
  A* sum = nullptr;        // [padded]
  A* dhidden = nullptr;    // [C, padded]
  A* dweight = nullptr;    // [V, C], or null
  bool first = true;       // dweight is to be overwritten
};

// Loop 1 for words [begin, end), with max and sum [padded] of them. `scratch`
// [kHeadBlock, C] where T is not A.
template <class A, class T>
void HeadLogits(const HeadChunk<A, T>& h, int64_t begin, int64_t end, A* max,
                A* sum, A* scratch);
// max and sum [padded] of `parts` of them, one after the other, in order.
template <class A>
void HeadCombine(const A* maxes, const A* sums, int64_t parts, int64_t padded,
                 A* max, A* sum);
// Loop 2 for words [begin, end).
template <class A, class T>
void HeadWeightGradient(const HeadChunk<A, T>& h, int64_t begin, int64_t end);
// Loop 3 for panels [begin, end).
template <class A, class T>
void HeadHiddenGradient(const HeadChunk<A, T>& h, int64_t begin, int64_t end);

// max and sum of exp(x - max) of one row of n logits.
void HeadRowStatistics(const float* x, int64_t n, float* max, float* sum);
// softmax(x) - onehot(label), rounded to bf16, over the row's first half.
void HeadRowGradient(float* x, int64_t n, int32_t label, float max, float sum);

// to (+)= factor * from, rounded once.
template <class A, class T>
void HeadScale(const A* from, A factor, T* to, int64_t n, bool accumulate);

}  // namespace terrace::kernels::cpu
