// Ranks as threads of one process: peers' buffers are read directly, so a
// collective is an agreement, copies or sums, and a last meeting after which
// nobody reads any more.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "terrace/kernels/ordered_sum.h"
#include "terrace/zero/collective.h"
#include "terrace/zero/comm.h"
#include "terrace/zero/rendezvous.h"

namespace terrace::zero {
namespace {

class ThreadGroupImpl final : public ThreadGroup {
 public:
  explicit ThreadGroupImpl(const ThreadGroupOptions& options)
      : options(options),
        meeting(options.ranks, options.timeout_s),
        joined_(static_cast<size_t>(options.ranks)) {}

  int ranks() const override { return options.ranks; }
  void Abort(int rank, ErrorCode code,
             std::string_view message) noexcept override {
    meeting.Fail(rank, code, message);
  }
  FirstFailure first_failure() const override {
    return meeting.first_failure();
  }

  void Join(int rank) {
    TERRACE_CHECK(rank >= 0 && rank < ranks(),
                  "[communication] rank must be in [0, ", ranks(), "), got ",
                  rank);
    const std::lock_guard lock(mutex_);
    const size_t i = static_cast<size_t>(rank);
    if (joined_[i])
      TERRACE_THROW(ErrorCode::kAlreadyExists, "[communication] rank ", rank,
                    " has its communicator already");
    joined_[i] = true;
  }

  const ThreadGroupOptions options;
  Rendezvous meeting;

 private:
  std::mutex mutex_;
  std::vector<bool> joined_;
};

// Adds up, per operation, what the communication thread has done.
class StatsCounter {
 public:
  void Add(CollectiveOp op, int64_t nbytes, double busy_seconds) {
    const std::lock_guard lock(mutex_);
    CollectiveStats& stats = stats_[static_cast<size_t>(op)];
    ++stats.calls;
    stats.nbytes += nbytes;
    stats.busy_seconds += busy_seconds;
  }
  std::array<CollectiveStats, kCollectiveOps> Snapshot() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  mutable std::mutex mutex_;
  std::array<CollectiveStats, kCollectiveOps> stats_;
};

// Copies every peer's slices to where they belong in `full`.
void GatherSlices(const std::vector<GatherSegment>& segments, int rank,
                  int size, Rendezvous& meeting) {
  const Rendezvous::Reading reading(meeting);
  for (int peer = 0; peer < size; ++peer) {
    for (size_t s = 0; s < segments.size(); ++s) {
      const GatherSegment& segment = segments[s];
      const std::byte* from =
          peer == rank ? segment.own : reading.post(peer).buffers[s];
      std::byte* to = segment.full + peer * segment.slice_nbytes;
      if (segment.slice_nbytes > 0 && from != to)
        std::memcpy(to, from, static_cast<size_t>(segment.slice_nbytes));
    }
  }
}

// One reduce-scatter as one rank executes it: piece by piece, each with its own
// staging where the wire differs from the gradient. The rank's slice of `local`
// is read by this rank alone, so `out` may be there.
class Reduction {
 public:
  Reduction(std::vector<ReduceSegment> segments, DType wire,
            int64_t piece_numel, int rank, int size)
      : segments_(std::move(segments)),
        wire_(wire),
        piece_numel_(piece_numel),
        rank_(rank),
        size_(size),
        inputs_(static_cast<size_t>(size)) {}

  // In the communication thread, before ranks agree.
  void Allocate(Arena& arena) {
    const StagingBytes staging =
        StagingOf(segments_, wire_, piece_numel_, size_);
    if (staging.sent > 0)
      staging_ = arena.Allocate(staging.sent, MemoryTag::kCommunication);
    if (staging.sum > 0)
      sum_ = arena.Allocate(staging.sum, MemoryTag::kCommunication);
  }

  Post MakePost(Descriptor descriptor) const {
    Post post;
    post.descriptor = std::move(descriptor);
    for (const ReduceSegment& segment : segments_)
      post.buffers.push_back(static_cast<const std::byte*>(segment.local));
    if (staging_ != nullptr) post.staging = staging_->data();
    return post;
  }

  void Run(Rendezvous& meeting, const Descriptor& descriptor) {
    bool first = true;
    for (size_t s = 0; s < segments_.size(); ++s) {
      const ReduceSegment& segment = segments_[s];
      const int64_t piece = Piece(segment);
      for (int64_t begin = 0; begin < segment.slice_numel; begin += piece) {
        const int64_t numel = std::min(piece, segment.slice_numel - begin);
        if (Staged(segment)) {
          // Nobody may still read the piece before.
          if (!first) meeting.Meet(rank_, descriptor);
          first = false;
          Stage(segment, begin, numel);
          meeting.Meet(rank_, descriptor);
        }
        const Rendezvous::Reading reading(meeting);
        Sum(reading, s, begin, numel);
      }
    }
  }

  int64_t SentNbytes() const {
    int64_t numel = 0;
    for (const ReduceSegment& segment : segments_) numel += segment.slice_numel;
    return (size_ - 1) * numel * SizeOf(wire_);
  }

 private:
  bool Staged(const ReduceSegment& segment) const {
    return size_ > 1 && segment.grad_dtype != wire_;
  }

  int64_t Piece(const ReduceSegment& segment) const {
    return PieceOfSlice(segment.slice_numel, piece_numel_, size_);
  }

  // staging[peer] = what `peer` gets of this rank, rounded once.
  void Stage(const ReduceSegment& segment, int64_t begin, int64_t numel) {
    for (int peer = 0; peer < size_; ++peer) {
      const int64_t from = peer * segment.slice_numel + begin;
      kernels::RoundTo(static_cast<const std::byte*>(segment.local) +
                           from * SizeOf(segment.grad_dtype),
                       segment.grad_dtype, numel,
                       staging_->data() + peer * numel * SizeOf(wire_), wire_);
    }
  }

  void Sum(const Rendezvous::Reading& reading, size_t s, int64_t begin,
           int64_t numel) {
    const ReduceSegment& segment = segments_[s];
    const DType grad = segment.grad_dtype;
    const bool staged = Staged(segment);
    const int64_t at = (rank_ * segment.slice_numel + begin) * SizeOf(grad);
    for (int peer = 0; peer < size_; ++peer) {
      const Post& post = reading.post(peer);
      inputs_[static_cast<size_t>(peer)] =
          staged ? post.staging + rank_ * numel * SizeOf(wire_)
                 : post.buffers[s] + at;
    }
    void* out = static_cast<std::byte*>(segment.out) + begin * SizeOf(grad);
    if (segment.accumulate && size_ == 1) {
      kernels::AddInto(inputs_[0], grad, numel, out);
      return;
    }
    // The sum is rounded to the gradient dtype before it is added (A1).
    void* sum = segment.accumulate ? sum_->data() : out;
    kernels::OrderedSum(inputs_, staged ? wire_ : grad, numel, sum, grad);
    if (segment.accumulate) kernels::AddInto(sum, grad, numel, out);
  }

  const std::vector<ReduceSegment> segments_;
  const DType wire_;
  const int64_t piece_numel_;
  const int rank_;
  const int size_;
  std::vector<const void*> inputs_;  // by peer, of the current piece
  std::shared_ptr<Buffer> staging_;  // [N, piece] in the wire's dtype
  std::shared_ptr<Buffer> sum_;      // [piece] where it is accumulated
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroupImpl> group, int rank,
                     std::shared_ptr<Arena> arena)
      : group_(std::move(group)),
        rank_(rank),
        arena_(std::move(arena)),
        queue_(std::in_place, "communication") {}

  ~ThreadCommunicator() override {
    queue_.reset();  // what was issued still runs, up to the deadline
    group_->meeting.Leave(rank_);
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->ranks(); }

  Event AllGather(CollectiveTag tag,
                  std::vector<GatherSegment> segments) override {
    return Gather(CollectiveOp::kAllGather, std::move(tag),
                  std::move(segments));
  }

  Event Exchange(CollectiveTag tag, std::span<const std::byte> mine,
                 std::span<std::byte> all) override {
    const size_t ranks = static_cast<size_t>(size());
    TERRACE_CHECK(all.size() == ranks * mine.size(),
                  "[exchange] all must hold ", ranks, " x ", mine.size(),
                  " bytes, got ", all.size());
    return Gather(
        CollectiveOp::kExchange, std::move(tag),
        {{mine.data(), all.data(), static_cast<int64_t>(mine.size())}});
  }

  Event ReduceScatterOrdered(CollectiveTag tag,
                             std::vector<ReduceSegment> segments, DType wire,
                             int64_t piece_numel) override {
    CheckReduce(segments, wire, piece_numel, rank_, size());
    Descriptor descriptor =
        DescribeReduce(std::move(tag), segments, wire, piece_numel);
    descriptor.sequence = next_sequence_++;
    auto reduction = std::make_shared<Reduction>(std::move(segments), wire,
                                                 piece_numel, rank_, size());
    return queue_->Enqueue([this, reduction, descriptor] {
      Post post;
      Guard([&] {
        reduction->Allocate(*arena_);
        post = reduction->MakePost(descriptor);
        Execute(post, reduction->SentNbytes(),
                [&] { reduction->Run(group_->meeting, descriptor); });
      });
    });
  }

  Event Broadcast(CollectiveTag tag, int source,
                  std::span<std::byte> data) override {
    const int64_t nbytes = std::ssize(data);
    Post post;
    post.descriptor = DescribeBroadcast(std::move(tag), source, nbytes, size());
    post.descriptor.sequence = next_sequence_++;
    post.buffers.push_back(data.data());
    return queue_->Enqueue([this, post = std::move(post), source, data] {
      Guard([&] {
        Execute(post, rank_ == source ? (size() - 1) * std::ssize(data) : 0,
                [&] {
                  if (rank_ == source || data.empty()) return;
                  const Rendezvous::Reading reading(group_->meeting);
                  std::memcpy(data.data(), reading.post(source).buffers[0],
                              data.size());
                });
      });
    });
  }

  void Abort(ErrorCode code, std::string_view message) noexcept override {
    group_->meeting.Fail(rank_, code, message);
  }

  std::array<CollectiveStats, kCollectiveOps> Stats() const override {
    return stats_.Snapshot();
  }

 private:
  Event Gather(CollectiveOp op, CollectiveTag tag,
               std::vector<GatherSegment> segments) {
    CheckGather(segments, rank_, size());
    Post post;
    post.descriptor = DescribeGather(op, std::move(tag), segments);
    post.descriptor.sequence = next_sequence_++;
    for (const GatherSegment& segment : segments)
      post.buffers.push_back(segment.own);
    return queue_->Enqueue(
        [this, post = std::move(post), segments = std::move(segments)] {
          Guard([&] {
            Execute(post, (size() - 1) * post.descriptor.slice_nbytes, [&] {
              GatherSlices(segments, rank_, size(), group_->meeting);
            });
          });
        });
  }

  // Busy time starts when all are there: before that, a rank waits for others
  // to compute.
  template <class MoveData>
  void Execute(const Post& post, int64_t nbytes, const MoveData& move_data) {
    Rendezvous& meeting = group_->meeting;
    const Descriptor& descriptor = post.descriptor;
    meeting.Agree(rank_, post);
    const auto start = std::chrono::steady_clock::now();
    if (group_->options.gate)
      group_->options.gate(rank_, descriptor.op, descriptor.tag);
    if (group_->options.delay_s > 0) meeting.Pause(group_->options.delay_s);
    move_data();
    meeting.Meet(rank_, descriptor);
    const std::chrono::duration<double> busy =
        std::chrono::steady_clock::now() - start;
    stats_.Add(descriptor.op, nbytes, busy.count());
  }

  // A failure on this rank ends the group; and the buffers, which go back to
  // their owner with the event, are kept while a peer reads them.
  template <class Task>
  void Guard(const Task& task) {
    try {
      task();
    } catch (const Error& error) {
      group_->meeting.Fail(rank_, error.code(), error.message());
      group_->meeting.AwaitReaders();
      throw;
    } catch (const std::exception& error) {
      group_->meeting.Fail(rank_, ErrorCode::kInternal, error.what());
      group_->meeting.AwaitReaders();
      throw;
    } catch (...) {
      group_->meeting.Fail(rank_, ErrorCode::kInternal, "unknown exception");
      group_->meeting.AwaitReaders();
      throw;
    }
  }

  const std::shared_ptr<ThreadGroupImpl> group_;
  const int rank_;
  const std::shared_ptr<Arena> arena_;
  int64_t next_sequence_ = 0;
  StatsCounter stats_;
  std::optional<Queue> queue_;  // uses all of the above
};

}  // namespace

std::shared_ptr<ThreadGroup> ThreadGroup::Create(
    const ThreadGroupOptions& options) {
  TERRACE_CHECK(options.ranks >= 1,
                "[communication] at least one rank is needed, got ",
                options.ranks);
  TERRACE_CHECK(options.timeout_s > 0,
                "[communication] the timeout must be positive, got ",
                options.timeout_s, " s");
  TERRACE_CHECK(options.delay_s >= 0,
                "[communication] the delay must not be negative, got ",
                options.delay_s, " s");
  return std::make_shared<ThreadGroupImpl>(options);
}

std::unique_ptr<Communicator> MakeThreadCommunicator(
    std::shared_ptr<ThreadGroup> group, int rank,
    std::shared_ptr<Arena> arena) {
  TERRACE_CHECK(group != nullptr && arena != nullptr,
                "[communication] a group and an arena are needed");
  auto impl = std::dynamic_pointer_cast<ThreadGroupImpl>(std::move(group));
  TERRACE_CHECK(impl != nullptr,
                "[communication] the group must come from ThreadGroup::Create");
  impl->Join(rank);
  return std::make_unique<ThreadCommunicator>(std::move(impl), rank,
                                              std::move(arena));
}

}  // namespace terrace::zero
