#include "terrace/core/context.h"

#include "terrace/core/error.h"

namespace terrace {

Context::Context(const ContextOptions& options)
    : device_(options.device),
      pool_(std::make_unique<ComputePool>(options.threads, options.dry)),
      dry_(options.dry) {
  if (options.device.kind != DeviceKind::kCpu)
    TERRACE_THROW(ErrorCode::kUnimplemented,
                  "[context] device must be cpu in this build, got cuda:",
                  options.device.index);
  std::shared_ptr<MemoryLedger> ledger = options.ledger;
  if (ledger == nullptr && !dry_) ledger = std::make_shared<MemoryLedger>();
  device_arena_ =
      Arena::Create(Tier::kDevice, options.device_budget_nbytes, ledger, dry_);
  host_arena_ =
      Arena::Create(Tier::kHost, options.host_budget_nbytes, ledger, dry_);
  random_.seed = options.seed;
}

Context::~Context() = default;

}  // namespace terrace
