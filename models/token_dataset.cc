#include "terrace/models/token_dataset.h"

#include <algorithm>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/models/tokenizer.h"

namespace terrace::models {

SampleRange DealRank(int64_t rank, int64_t ranks, int64_t micro_step,
                     int64_t micro_batch, int64_t accumulation) {
  TERRACE_CHECK(rank >= 0 && rank < ranks,
                "[deal_rank] rank must be in [0, ranks = ", ranks, "), got ",
                rank);
  TERRACE_CHECK(micro_step >= 0 && micro_step < accumulation,
                "[deal_rank] micro_step must be in [0, accumulation = ",
                accumulation, "), got ", micro_step);
  TERRACE_CHECK(micro_batch > 0, "[deal_rank] micro_batch must be > 0, got ",
                micro_batch);
  return {.begin = (rank * accumulation + micro_step) * micro_batch,
          .count = micro_batch};
}

TokenVector::TokenVector(int64_t vocab_size, std::string name)
    : name_(std::move(name)),
      vocab_size_(vocab_size),
      is_narrow_(vocab_size <= 65536) {}

void TokenVector::Reserve(int64_t count) {
  const auto n = static_cast<size_t>(count);
  is_narrow_ ? narrow_.reserve(n) : wide_.reserve(n);
}

void TokenVector::Append(std::span<const int32_t> ids) {
  CheckIds(name_, ids, vocab_size_, size());
  if (is_narrow_)
    narrow_.insert(narrow_.end(), ids.begin(), ids.end());
  else
    wide_.insert(wide_.end(), ids.begin(), ids.end());
}

int64_t TokenVector::size() const {
  return is_narrow_ ? std::ssize(narrow_) : std::ssize(wide_);
}

namespace {

TokenVector Copy(std::span<const int32_t> tokens, int64_t vocab_size,
                 const std::string& name) {
  TokenVector copy(vocab_size, name);
  copy.Append(tokens);
  return copy;
}

}  // namespace

TokenDataset::TokenDataset(std::span<const int32_t> tokens, int64_t vocab_size,
                           const Options& options)
    : TokenDataset(Copy(tokens, vocab_size, options.name), options) {}

TokenDataset::TokenDataset(TokenVector tokens, const Options& options)
    : options_(options), token_count_(tokens.size()) {
  const int64_t length = options.sequence_length;
  TERRACE_CHECK(length > 0, "[data.sequence_length] must be > 0, got ", length);
  const int64_t least = options.keep_partial ? 2 : length + 1;
  if (token_count_ < least) {
    TERRACE_THROW(ErrorCode::kData, "[", options.name, "] must hold at least ",
                  least, " tokens (one sample of sequence_length ", length,
                  "), got ", token_count_);
  }
  const int64_t targets = token_count_ - 1;
  sample_count_ =
      options.keep_partial ? (targets + length - 1) / length : targets / length;
  tokens_ = std::make_shared<const TokenVector>(std::move(tokens));
}

std::vector<int32_t> TokenDataset::Tokens(int64_t begin, int64_t end) const {
  TERRACE_CHECK(0 <= begin && begin <= end && end <= token_count_,
                "[tokens] range must lie in [0, ", token_count_, "], got [",
                begin, ", ", end, ")");
  std::vector<int32_t> tokens(end - begin);
  for (int64_t i = begin; i < end; ++i) tokens[i - begin] = (*tokens_)[i];
  return tokens;
}

GlobalBatch TokenDataset::TrainBatch(int64_t cursor,
                                     int64_t global_batch_size) const {
  TERRACE_CHECK(!empty(), "[train_batch] the dataset must not be empty");
  TERRACE_CHECK(cursor >= 0 && global_batch_size > 0,
                "[train_batch] cursor must be >= 0 and the batch size > 0, "
                "got ",
                cursor, " and ", global_batch_size);
  GlobalBatch global;
  global.samples.reserve(global_batch_size);
  for (int64_t i = cursor; i < cursor + global_batch_size; ++i) {
    const int64_t epoch = i / sample_count_;
    const RngKey key(options_.seed, "sample order", epoch);
    global.samples.push_back(
        PermuteIndex(key, sample_count_, i % sample_count_));
  }
  return global;
}

int64_t TokenDataset::EvalBatchCount(int64_t global_batch_size) const {
  TERRACE_CHECK(global_batch_size > 0,
                "[eval_batch] the batch size must be > 0, got ",
                global_batch_size);
  return (sample_count_ + global_batch_size - 1) / global_batch_size;
}

GlobalBatch TokenDataset::EvalBatch(int64_t index,
                                    int64_t global_batch_size) const {
  const int64_t count = EvalBatchCount(global_batch_size);
  TERRACE_CHECK(index >= 0 && index < count,
                "[eval_batch] index must be in [0, ", count, "), got ", index);
  GlobalBatch global;
  global.samples.resize(global_batch_size);
  for (int64_t i = 0; i < global_batch_size; ++i) {
    const int64_t sample = index * global_batch_size + i;
    global.samples[i] = sample < sample_count_ ? sample : kPaddingSample;
  }
  return global;
}

HostBatch TokenDataset::Fetch(const GlobalBatch& global,
                              SampleRange range) const {
  const int64_t size = static_cast<int64_t>(global.samples.size());
  TERRACE_CHECK(
      range.begin >= 0 && range.count >= 0 && range.begin <= size - range.count,
      "[fetch] rows must lie in a global batch of ", size, ", got ",
      range.count, " from ", range.begin);
  const int64_t time = options_.sequence_length;
  HostBatch batch{
      .batch = range.count,
      .time = time,
      .input_ids = std::vector<int32_t>(range.count * time, 0),
      .labels = std::vector<int32_t>(range.count * time, kIgnoreLabel)};
  for (int64_t row = 0; row < range.count; ++row) {
    const int64_t sample = global.samples[range.begin + row];
    if (sample == kPaddingSample) continue;
    TERRACE_CHECK(sample >= 0 && sample < sample_count_,
                  "[fetch] samples must be in [0, ", sample_count_, "), got ",
                  sample);
    const int64_t begin = sample * time;
    const int64_t targets = std::min(time, token_count_ - 1 - begin);
    for (int64_t t = 0; t < targets; ++t) {
      batch.input_ids[row * time + t] = (*tokens_)[begin + t];
      batch.labels[row * time + t] = (*tokens_)[begin + t + 1];
    }
    batch.valid += targets;
  }
  return batch;
}

}  // namespace terrace::models
