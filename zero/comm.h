// Communication between ranks: one interface for threads, MPI and NCCL.
//
// All collectives are asynchronous. They are issued from each rank's main walk
// into one queue and executed in one total order; the returned event is done
// when the result is in place and no peer will read this rank's buffers any
// more. Buffers passed in belong to the transfer until then.
//
// Each collective carries (sequence number, operation, tag, bytes, dtype).
// Ranks compare them before any data moves; a difference ends all ranks with
// both descriptions side by side. Every wait has three exits: done, abort,
// deadline.
//
// Reduction is always: exchange slices, then our own sum in rank order in fp32,
// ((g0 + g1) + g2) + ..., so every communicator gives the same bits (A4).
//
//   Event done = comm.AllGather({"h.0", 3}, segments);
//   done.Wait();                      // throws what went wrong, on every rank
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/core/error.h"
#include "terrace/core/memory.h"
#include "terrace/core/stream.h"

namespace terrace::zero {

enum class CollectiveOp : uint8_t {
  kAllGather,
  kReduceScatter,
  kExchange,
  kBroadcast,
};
inline constexpr int kCollectiveOps = 4;
std::string_view Name(CollectiveOp op);  // "all_gather", "reduce_scatter", ...

// What a collective is about, compared on all ranks. `what` is a short name for
// messages ("gather h.3", "boundary"); `unit` the unit's id, or -1.
struct CollectiveTag {
  std::string what;
  int32_t unit = -1;
};

// One flat segment gathered in place: N equal slices, rank r's at r *
// slice_nbytes. `own` is this rank's slice; where it is not already inside
// `full`, it is copied there as part of the operation. Peers may read `own`.
struct GatherSegment {
  const std::byte* own = nullptr;
  std::byte* full = nullptr;
  int64_t slice_nbytes = 0;
};

// One flat segment reduced: `local` holds N slices of slice_numel elements in
// grad_dtype; `out` receives this rank's slice of the sum, in grad_dtype. With
// accumulate, out = round(out + sum). out may be this rank's slice of local.
struct ReduceSegment {
  const void* local = nullptr;
  void* out = nullptr;
  int64_t slice_numel = 0;
  DType grad_dtype = DType::kF32;
  bool accumulate = false;
};

struct CollectiveStats {
  int64_t calls = 0;
  int64_t nbytes = 0;       // sent by this rank: what a peer read of it counts
  double busy_seconds = 0;  // in the communication thread
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Event AllGather(CollectiveTag tag,
                          std::vector<GatherSegment> segments) = 0;

  // `wire` is what is sent: each value is rounded to it once, the own slice
  // too; at size 1 nothing is rounded. piece_numel bounds the elements of one
  // bucket (all slices together); 0 means whole segments. Staging for the wire
  // comes from the arena given at construction.
  virtual Event ReduceScatterOrdered(CollectiveTag tag,
                                     std::vector<ReduceSegment> segments,
                                     DType wire, int64_t piece_numel) = 0;

  // Small and of equal length: `all` receives every rank's `mine`, in rank
  // order. Both must stay alive until the event is done.
  virtual Event Exchange(CollectiveTag tag, std::span<const std::byte> mine,
                         std::span<std::byte> all) = 0;

  // `data`, of equal length on all ranks, receives the source's. The source
  // sends size() - 1 times its length, the others nothing.
  virtual Event Broadcast(CollectiveTag tag, int source,
                          std::span<std::byte> data) = 0;

  // Ends the group: every wait on every rank throws kAborted naming the first
  // rank that failed. Out of band; may be called from any thread, repeatedly.
  virtual void Abort(ErrorCode code, std::string_view message) noexcept = 0;

  // Counters since construction, by CollectiveOp. Call between steps.
  virtual std::array<CollectiveStats, kCollectiveOps> Stats() const = 0;
};

// The group that thread ranks of one process share.
struct ThreadGroupOptions {
  int ranks = 1;
  double timeout_s = 600;  // terrace.communication_timeout_s
  // Added to each collective before it moves data; for benchmarks of overlap.
  double delay_s = 0;
  // Called in each rank's communication thread when a collective is issued to
  // be executed and all ranks agree on it, before data moves; for tests that
  // decide when collectives complete. May block.
  std::function<void(int rank, CollectiveOp op, const CollectiveTag& tag)> gate;
};

struct FirstFailure {
  bool failed = false;
  int rank = -1;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
};

class ThreadGroup {
 public:
  static std::shared_ptr<ThreadGroup> Create(const ThreadGroupOptions& options);
  virtual ~ThreadGroup() = default;
  virtual int ranks() const = 0;
  // As Communicator::Abort, for a rank that has no communicator (yet).
  virtual void Abort(int rank, ErrorCode code,
                     std::string_view message) noexcept = 0;
  // The first Abort of any rank, for the launcher's exit code and message.
  virtual FirstFailure first_failure() const = 0;
};

// To be called once per rank. `arena` serves staging, under the tag
// `communication`.
std::unique_ptr<Communicator> MakeThreadCommunicator(
    std::shared_ptr<ThreadGroup> group, int rank, std::shared_ptr<Arena> arena);

}  // namespace terrace::zero
