// Ranks that do something together: the same thing, which fails on all or on
// none.
//
//   RunAgreed(comm, "checkpoint", [&] { WriteMyFile(); });
//
// Collective. Each rank runs `work`, then outcomes are exchanged. Where one
// failed, all throw: the ranks that failed their own error, the others one of
// the first failing rank's code that names it. So nobody waits for a rank that
// is gone, and callers on all ranks take the same branch. Launch prints a
// relayed error as the failing rank's own.
//
//   EnterTogether(comm, "read h.0.* (weight)");
//
// Collective, and nothing more: whoever does something else, or nothing, is
// told so by the communicator, whether or not `what` would have communicated.
#pragma once

#include <string>
#include <string_view>

#include "terrace/core/error.h"
#include "terrace/core/function_ref.h"
#include "terrace/zero/comm.h"

namespace terrace::zero {

// On a rank whose own work was done: what another one failed of.
class RelayedError : public Error {
 public:
  RelayedError(ErrorCode code, std::string_view where, int rank,
               std::string own_message);
  int rank() const noexcept { return rank_; }  // the one that failed
  // As it was thrown there; a very long one is cut.
  const std::string& own_message() const noexcept { return own_message_; }

 private:
  int rank_;
  std::string own_message_;
};

// `work` must not communicate. `where` stands in the messages.
void RunAgreed(Communicator& comm, std::string_view where,
               FunctionRef<void()> work);

// `what` is compared on all ranks.
void EnterTogether(Communicator& comm, std::string what);

}  // namespace terrace::zero
