// The communicator of a dry run (Runtime, core/context.h): a rank among peers
// that are not there.
//
// Arguments are checked, staging is taken and given back, calls and bytes are
// counted as communicators do; gathers, reductions and broadcasts move nothing.
// A reduction, and what is issued behind it, is done when somebody waits for
// it, and its staging is given back then or with a later one: so it meets all
// that it may meet, whichever way a real one is timed. An exchange answers for
// every rank what this one says, so that ranks agree.
#pragma once

#include <memory>

#include "terrace/core/memory.h"
#include "terrace/zero/comm.h"

namespace terrace::zero {

// `rank` is in [0, size); throws kInvalidArgument. `arena` serves staging.
std::unique_ptr<Communicator> MakeDryCommunicator(int rank, int size,
                                                  std::shared_ptr<Arena> arena);

}  // namespace terrace::zero
