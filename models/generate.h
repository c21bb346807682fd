// Continues a prompt token by token, with a cache of keys and values.
//
//   auto text = models::Generate(ctx, model, prompt,
//                                {.max_tokens = 50, .sampler = {.seed = 1}},
//                                [](int32_t id) { Print(id); return true; });
//
// Runs without gradients and without dropout. A token is a function of the
// seed, its position and the logits (models/sampler.h). When the context is
// full, the last context_length / 2 tokens are read again as a new beginning
// and generation goes on from there; a longer prompt is cut to its last
// context_length tokens.
//
// Where parameters are sharded every rank calls it with the same arguments, and
// callbacks return the same.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "terrace/models/model.h"
#include "terrace/models/sampler.h"

namespace terrace::models {

struct GenerateOptions {
  int64_t max_tokens = 64;
  SamplerOptions sampler = {};
  std::optional<int32_t> end_of_text = {};  // ends the text, and is in it
  // Ids that may be drawn are below it: the tokenizer's size, where the
  // model's table is larger. 0: the whole table.
  int64_t vocabulary = 0;
  int64_t sequence = 0;  // numbers texts of one seed: each draws its own
};

// Called with each token; false ends the text.
using TokenFunction = std::function<bool(int32_t id)>;

// The new tokens. Throws kInvalidArgument for an empty prompt, an id outside
// the vocabulary, a negative max_tokens or a top_k beyond the vocabulary.
std::vector<int32_t> Generate(Context& ctx, const CausalModel& model,
                              std::span<const int32_t> prompt,
                              const GenerateOptions& options = {},
                              const TokenFunction& on_token = {});

// What a caller should be told of a prompt of `tokens` tokens, or "": one
// longer than the context is cut to its end.
std::string PromptNotice(const CausalModel& model, int64_t tokens);

// What a caller should be told before it generates with this model, or "": with
// sharded parameters each token gathers every unit that is not resident.
std::string GenerateNotice(const CausalModel& model);

}  // namespace terrace::models
