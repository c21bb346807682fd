// Where the communication threads of one process meet: agreement on what comes
// next, access to each other's buffers, and the end of the group.
//
// Each rank's thread walks a collective as
//
//   meeting.Agree(rank, post);          // all are here, with one description
//   { Rendezvous::Reading reading(meeting); ... reading.post(peer) ... }
//   meeting.Meet(rank, post.descriptor);  // all have read
//
// Every wait has three exits: done, failure of the group (kAborted naming the
// first rank that failed), deadline (kCommunication naming the operation, the
// ranks that came and those that did not; time in which the process was stopped
// does not count). A failure lets nobody out, and so
// no buffer go, while a peer is between the braces: these hold finite copies
// and no waits.
//
// Thread-safe; at most one thread a rank may be inside Agree, Meet or Pause.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/zero/collective.h"

namespace terrace::zero {

// What a rank shows its peers, valid from its Agree until all have met again or
// AwaitReaders has returned.
struct Post {
  Descriptor descriptor;
  std::vector<const std::byte*> buffers;  // by segment: own, or local
  const std::byte* staging = nullptr;     // where the wire is another dtype
};

class Rendezvous {
 public:
  Rendezvous(int ranks, double timeout_s);

  void Agree(int rank, const Post& post);
  void Meet(int rank, const Descriptor& descriptor);
  // Sleeps, and throws as soon as the group has failed.
  void Pause(double seconds);

  class Reading {
   public:
    explicit Reading(Rendezvous& meeting);  // throws if the group has failed
    ~Reading();
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;
    const Post& post(int rank) const;

   private:
    Rendezvous& meeting_;
  };

  // Until no peer reads any more. To be called before a failed rank gives back
  // its buffers.
  void AwaitReaders() noexcept;

  // The first call is kept, the others are its consequences.
  void Fail(int rank, ErrorCode code, std::string_view message) noexcept;
  FirstFailure first_failure() const;

  // No more collectives come from this rank: who waits for one ends at once.
  void Leave(int rank) noexcept;

 private:
  enum class Point { kEnter, kFinish };

  void Arrive(int rank, const Descriptor& descriptor, Point point);
  void CheckAlike();
  bool MissesOneThatLeft() const;
  std::string Missing(const Descriptor& descriptor, Point point) const;
  void FailLocked(int rank, ErrorCode code, std::string message);
  void ThrowIfFailed() const;

  const int ranks_;
  const double timeout_s_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Post*> posts_;
  std::vector<bool> arrived_;
  std::vector<bool> left_;
  int count_ = 0;           // of arrived_
  int64_t generation_ = 0;  // how often all have met
  int readers_ = 0;
  FirstFailure failure_;
  bool disagreement_ = false;  // failure_ is what all found out together
};

}  // namespace terrace::zero
