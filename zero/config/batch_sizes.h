// The batch triangle: train_batch_size = micro-batch x accumulation x ranks.
//
//   BatchSizes sizes = ResolveBatchSizes(values, /*world_size=*/2);
//
// Any one or two of the three may be missing, but not both train_batch_size
// and the micro-batch. Throws Error{kConfig} with the four numbers, where each
// came from, and the nearest choices that fit.
#pragma once

#include <cstdint>

#include "terrace/zero/config/key_values.h"

namespace terrace::zero {

struct BatchSizes {
  int64_t train = 0;         // samples of one optimizer step, all ranks
  int64_t micro = 0;         // samples of one forward pass, one rank
  int64_t accumulation = 0;  // micro-steps of one optimizer step
};

BatchSizes ResolveBatchSizes(KeyValues& values, int world_size);

}  // namespace terrace::zero
