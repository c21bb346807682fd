// Token ids to batches: fixed windows, shuffled by epoch, dealt to ranks.
//
//   TokenDataset data(tokens, /*vocab_size=*/257, {.sequence_length = 128});
//   GlobalBatch global = data.TrainBatch(cursor, /*global_batch_size=*/32);
//   SampleRange mine = DealRank(rank, ranks, micro_step, micro_batch, steps);
//   HostBatch batch = data.Fetch(global, mine);
//
// Sample i is the window of T + 1 tokens from i * T on, so no token is a target
// twice; training leaves out what follows the last whole window. The order of
// an epoch is a permutation of (seed, epoch) in O(1) memory; the cursor counts
// samples consumed, so a run resumes at any batch size or rank count. Global
// batches are built first and dealt to ranks in order: every rank computes the
// same ones. A TokenDataset is immutable, cheap to copy (copies share the
// tokens) and safe to read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace terrace::models {

// A label that counts in no loss.
inline constexpr int32_t kIgnoreLabel = -100;
// In GlobalBatch::samples: a row of weight 0 that fills the last batch.
inline constexpr int64_t kPaddingSample = -1;

// Rows of token ids on the host, row-major [batch, time].
struct HostBatch {
  int64_t batch = 0;
  int64_t time = 0;
  std::vector<int32_t> input_ids = {};
  std::vector<int32_t> labels = {};  // [b, t]: the target of position t
  int64_t valid = 0;  // labels other than kIgnoreLabel: the weight of the loss
};

// The samples of one step of all ranks, in order.
struct GlobalBatch {
  std::vector<int64_t> samples;  // sample numbers, or kPaddingSample
};

// A run of rows of a global batch.
struct SampleRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Rank r takes rows [r * micro_batch * accumulation, (r + 1) * ...) and micro-
// step m its m-th `micro_batch` of them. Throws kInvalidArgument out of range.
SampleRange DealRank(int64_t rank, int64_t ranks, int64_t micro_step,
                     int64_t micro_batch, int64_t accumulation);

// Token ids as a dataset keeps them: 2 bytes each where the vocabulary allows.
class TokenVector {
 public:
  // `name` is how errors call it.
  explicit TokenVector(int64_t vocab_size, std::string name = "data");

  // So that `count` tokens in all are appended without a copy of the earlier.
  void Reserve(int64_t count);
  // Throws kData when an id is outside [0, vocab_size): names position and id.
  void Append(std::span<const int32_t> ids);

  int64_t size() const;
  int32_t operator[](int64_t position) const {
    const auto i = static_cast<size_t>(position);
    return is_narrow_ ? narrow_[i] : wide_[i];
  }

 private:
  std::string name_;
  int64_t vocab_size_;
  bool is_narrow_;
  std::vector<uint16_t> narrow_;
  std::vector<int32_t> wide_;
};

class TokenDataset {
 public:
  struct Options {
    int64_t sequence_length = 0;  // T
    uint64_t seed = 0;            // of the order of training batches
    // Keeps the rest after the last whole window as a sample of its own, its
    // labels ignored beyond the text: evaluation covers every token.
    bool keep_partial = false;
    std::string name = "data";  // how errors call it
  };

  // No samples.
  TokenDataset() = default;
  // Throws kData when the tokens do not fill one sample (says how many it
  // takes): T + 1, or 2 with keep_partial.
  TokenDataset(TokenVector tokens, const Options& options);
  // Of a copy; throws as TokenVector::Append and the above.
  TokenDataset(std::span<const int32_t> tokens, int64_t vocab_size,
               const Options& options);

  int64_t sample_count() const { return sample_count_; }  // of one epoch
  int64_t token_count() const { return token_count_; }
  int64_t sequence_length() const { return options_.sequence_length; }
  bool empty() const { return sample_count_ == 0; }

  // Samples [cursor, cursor + global_batch_size) of the endless sequence of
  // shuffled epochs: always full.
  GlobalBatch TrainBatch(int64_t cursor, int64_t global_batch_size) const;
  // Batch `index` of one pass in text order, padded with kPaddingSample; all
  // ranks have EvalBatchCount() of them.
  GlobalBatch EvalBatch(int64_t index, int64_t global_batch_size) const;
  int64_t EvalBatchCount(int64_t global_batch_size) const;

  HostBatch Fetch(const GlobalBatch& global, SampleRange range) const;
  // The stored tokens [begin, end).
  std::vector<int32_t> Tokens(int64_t begin, int64_t end) const;

 private:
  Options options_;
  int64_t token_count_ = 0;
  int64_t sample_count_ = 0;
  std::shared_ptr<const TokenVector> tokens_;
};

}  // namespace terrace::models
