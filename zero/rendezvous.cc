#include "terrace/zero/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <sstream>
#include <utility>

namespace terrace::zero {
namespace {

std::chrono::steady_clock::duration Seconds(double seconds) {
  // About three years, so that the clock does not overflow.
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(std::min(seconds, 1e8)));
}

constexpr double kMostSliceS = 1;

// "rank 1", "ranks 0, 2".
std::string RankList(const std::vector<int>& ranks) {
  std::ostringstream out;
  out << (ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < ranks.size(); ++i)
    out << (i == 0 ? "" : ", ") << ranks[i];
  return std::move(out).str();
}

}  // namespace

Rendezvous::Rendezvous(int ranks, double timeout_s)
    : ranks_(ranks),
      timeout_s_(timeout_s),
      posts_(static_cast<size_t>(ranks)),
      arrived_(static_cast<size_t>(ranks)),
      left_(static_cast<size_t>(ranks)) {}

void Rendezvous::Agree(int rank, const Post& post) {
  {
    const std::lock_guard lock(mutex_);
    posts_[static_cast<size_t>(rank)] = &post;
  }
  Arrive(rank, post.descriptor, Point::kEnter);
}

void Rendezvous::Meet(int rank, const Descriptor& descriptor) {
  Arrive(rank, descriptor, Point::kFinish);
}

void Rendezvous::Arrive(int rank, const Descriptor& descriptor, Point point) {
  std::unique_lock lock(mutex_);
  ThrowIfFailed();
  arrived_[static_cast<size_t>(rank)] = true;
  if (++count_ == ranks_) {
    if (point == Point::kEnter) CheckAlike();
    ThrowIfFailed();
    arrived_.assign(static_cast<size_t>(ranks_), false);
    count_ = 0;
    ++generation_;
    changed_.notify_all();
    return;
  }
  const int64_t generation = generation_;
  // In slices, each of which counts as no more than itself: while the process
  // is stopped, or the machine asleep, no peer can come.
  const double slice = std::min(kMostSliceS, timeout_s_ / 8);
  double left = timeout_s_;
  while (left > 0 && !changed_.wait_for(lock, Seconds(slice), [&] {
    return generation_ != generation || failure_.failed || MissesOneThatLeft();
  }))
    left -= slice;
  if (generation_ != generation) return;
  if (!failure_.failed) {
    const std::string message = Missing(descriptor, point);
    FailLocked(rank, ErrorCode::kCommunication, message);
    TERRACE_THROW(ErrorCode::kCommunication, message);
  }
  ThrowIfFailed();
}

void Rendezvous::CheckAlike() {
  // Ranks with equal descriptions are named together, by their lowest.
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < ranks_; ++rank) {
    const auto alike = [&](const std::vector<int>& group) {
      return Same(posts_[static_cast<size_t>(group[0])]->descriptor,
                  posts_[static_cast<size_t>(rank)]->descriptor);
    };
    const auto it = std::find_if(groups.begin(), groups.end(), alike);
    if (it == groups.end()) {
      groups.push_back({rank});
    } else {
      it->push_back(rank);
    }
  }
  if (groups.size() == 1) return;
  std::ostringstream message;
  message << "[communication] all ranks must call the same collective, got";
  for (size_t i = 0; i < groups.size(); ++i) {
    message << (i == 0 ? " " : " | ") << RankList(groups[i]) << ": "
            << ToString(posts_[static_cast<size_t>(groups[i][0])]->descriptor);
  }
  disagreement_ = true;
  FailLocked(groups[1][0], ErrorCode::kCommunication, std::move(message).str());
}

bool Rendezvous::MissesOneThatLeft() const {
  for (size_t rank = 0; rank < arrived_.size(); ++rank)
    if (left_[rank] && !arrived_[rank]) return true;
  return false;
}

std::string Rendezvous::Missing(const Descriptor& descriptor,
                                Point point) const {
  std::vector<int> came, missing, left;
  for (int rank = 0; rank < ranks_; ++rank) {
    const size_t i = static_cast<size_t>(rank);
    (arrived_[i] ? came : left_[i] ? left : missing).push_back(rank);
  }
  const char* verb = point == Point::kEnter ? "entered" : "finished";
  std::ostringstream out;
  out << "[communication] " << ToString(descriptor) << " must be " << verb
      << " by all " << ranks_ << " ranks within " << timeout_s_
      << " s: " << verb << " by " << RankList(came);
  if (!missing.empty()) out << ", not by " << RankList(missing);
  if (!left.empty())
    out << ", not by " << RankList(left) << ", which left the group";
  return std::move(out).str();
}

void Rendezvous::Pause(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, std::chrono::steady_clock::now() + Seconds(seconds),
                      [&] { return failure_.failed; });
  ThrowIfFailed();
}

Rendezvous::Reading::Reading(Rendezvous& meeting) : meeting_(meeting) {
  const std::lock_guard lock(meeting_.mutex_);
  meeting_.ThrowIfFailed();
  ++meeting_.readers_;
}

Rendezvous::Reading::~Reading() {
  const std::lock_guard lock(meeting_.mutex_);
  // Who waits for readers does so only after a failure.
  if (--meeting_.readers_ == 0 && meeting_.failure_.failed)
    meeting_.changed_.notify_all();
}

const Post& Rendezvous::Reading::post(int rank) const {
  // Agree wrote it, under the mutex, before all met.
  return *meeting_.posts_[static_cast<size_t>(rank)];
}

void Rendezvous::AwaitReaders() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return readers_ == 0; });
}

void Rendezvous::Fail(int rank, ErrorCode code,
                      std::string_view message) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    FailLocked(rank, code, std::string(message));
  } catch (...) {  // no memory for the text: the group ends all the same
    FailLocked(rank, code, {});
  }
}

void Rendezvous::FailLocked(int rank, ErrorCode code, std::string message) {
  if (!failure_.failed) failure_ = {true, rank, code, std::move(message)};
  changed_.notify_all();
}

FirstFailure Rendezvous::first_failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::Leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  left_[static_cast<size_t>(rank)] = true;
  changed_.notify_all();
}

void Rendezvous::ThrowIfFailed() const {
  if (!failure_.failed) return;
  if (disagreement_) TERRACE_THROW(failure_.code, failure_.message);
  TERRACE_THROW(ErrorCode::kAborted, "[communication] ended because rank ",
                failure_.rank, " failed: ", failure_.message);
}

}  // namespace terrace::zero
