#include "terrace/zero/dry_comm.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "terrace/zero/collective.h"

namespace terrace::zero {
namespace {

// The staging of reductions on their way. One runs at a time, so that of the
// one that takes most is held.
class StagingOnItsWay {
 public:
  explicit StagingOnItsWay(std::shared_ptr<Arena> arena)
      : arena_(std::move(arena)) {}

  bool empty() const { return pending_.empty(); }
  int64_t last() const { return next_ - 1; }
  void Start(const StagingBytes& staging) {
    pending_.push_back({next_++, staging});
    Hold();
  }
  // What was started up to the one of this number.
  void Finish(int64_t number) {
    while (!pending_.empty() && pending_.front().number <= number)
      pending_.pop_front();
    Hold();
  }

 private:
  struct Pending {
    int64_t number;
    StagingBytes staging;
  };

  void Hold() {
    StagingBytes most;
    for (const Pending& p : pending_)
      if (p.staging.sent + p.staging.sum > most.sent + most.sum)
        most = p.staging;
    if (most.sent == held_.sent && most.sum == held_.sum) return;
    sent_ = sum_ = nullptr;
    held_ = {};
    if (most.sent > 0)
      sent_ = arena_->Allocate(most.sent, MemoryTag::kCommunication);
    held_.sent = most.sent;
    if (most.sum > 0)
      sum_ = arena_->Allocate(most.sum, MemoryTag::kCommunication);
    held_.sum = most.sum;
  }

  const std::shared_ptr<Arena> arena_;
  std::deque<Pending> pending_;
  StagingBytes held_;
  std::shared_ptr<Buffer> sent_, sum_;
  int64_t next_ = 0;
};

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(int rank, int size, std::shared_ptr<Arena> arena)
      : rank_(rank),
        size_(size),
        staging_(std::make_shared<StagingOnItsWay>(std::move(arena))) {
    TERRACE_CHECK(rank >= 0 && rank < size,
                  "[communication] rank must be in [0, ", size, "), got ",
                  rank);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Event AllGather(CollectiveTag, std::vector<GatherSegment> segments) override {
    CheckGather(segments, rank_, size_);
    int64_t slice_nbytes = 0;
    for (const GatherSegment& segment : segments)
      slice_nbytes += segment.slice_nbytes;
    return Done(CollectiveOp::kAllGather, (size_ - 1) * slice_nbytes);
  }

  Event ReduceScatterOrdered(CollectiveTag, std::vector<ReduceSegment> segments,
                             DType wire, int64_t piece_numel) override {
    CheckReduce(segments, wire, piece_numel, rank_, size_);
    staging_->Start(StagingOf(segments, wire, piece_numel, size_));
    int64_t numel = 0;
    for (const ReduceSegment& segment : segments) numel += segment.slice_numel;
    return Done(CollectiveOp::kReduceScatter,
                (size_ - 1) * numel * SizeOf(wire));
  }

  Event Exchange(CollectiveTag, std::span<const std::byte> mine,
                 std::span<std::byte> all) override {
    TERRACE_CHECK(all.size() == static_cast<size_t>(size_) * mine.size(),
                  "[exchange] all must hold ", size_, " x ", mine.size(),
                  " bytes, got ", all.size());
    for (size_t at = 0; at < all.size(); at += mine.size())
      std::ranges::copy(mine, all.begin() + static_cast<ptrdiff_t>(at));
    return Done(CollectiveOp::kExchange, (size_ - 1) * std::ssize(mine));
  }

  Event Broadcast(CollectiveTag tag, int source,
                  std::span<std::byte> data) override {
    DescribeBroadcast(std::move(tag), source, std::ssize(data), size_);
    return Done(CollectiveOp::kBroadcast,
                rank_ == source ? (size_ - 1) * std::ssize(data) : 0);
  }

  void Abort(ErrorCode, std::string_view) noexcept override {}

  std::array<CollectiveStats, kCollectiveOps> Stats() const override {
    return stats_;
  }

 private:
  Event Done(CollectiveOp op, int64_t nbytes) {
    CollectiveStats& stats = stats_[static_cast<size_t>(op)];
    ++stats.calls;
    stats.nbytes += nbytes;
    if (staging_->empty()) return {};
    return Event::Deferred([staging = staging_, number = staging_->last()] {
      staging->Finish(number);
    });
  }

  const int rank_, size_;
  const std::shared_ptr<StagingOnItsWay> staging_;
  std::array<CollectiveStats, kCollectiveOps> stats_;
};

}  // namespace

std::unique_ptr<Communicator> MakeDryCommunicator(
    int rank, int size, std::shared_ptr<Arena> arena) {
  return std::make_unique<DryCommunicator>(rank, size, std::move(arena));
}

}  // namespace terrace::zero
