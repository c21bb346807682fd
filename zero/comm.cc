#include "terrace/zero/comm.h"

namespace terrace::zero {

std::string_view Name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kExchange:
      return "exchange";
    case CollectiveOp::kBroadcast:
      return "broadcast";
  }
  return "?";
}

}  // namespace terrace::zero
