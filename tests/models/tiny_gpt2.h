// The smallest GPT-2 with more than one of everything, for tests: two layers,
// width 16, two heads, no dropout.
#pragma once

#include <cstdint>

#include "terrace/models/gpt2.h"

namespace terrace::models {

inline Gpt2Config TinyGpt2(int64_t vocab_size, int64_t n_positions) {
  Gpt2Config config;
  config.vocab_size = vocab_size;
  config.n_positions = n_positions;
  config.n_embd = 16;
  config.n_layer = 2;
  config.n_head = 2;
  config.embd_pdrop = config.resid_pdrop = config.attn_pdrop = 0;
  return config;
}

}  // namespace terrace::models
