#include "terrace/nn/module.h"

#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"

namespace terrace::nn {

namespace internal {

autograd::Parameter OpenUnit::Declare(const zero::ParamSpec& spec) {
  if (id_ < 0) id_ = store_.OpenUnit(name_);
  return store_.Declare(id_, spec);
}

zero::UnitLease OpenUnit::Hold(Context& ctx) const {
  return id_ < 0 ? zero::UnitLease() : store_.HoldUnit(ctx, id_);
}

}  // namespace internal

Scope::Scope(zero::ParameterStore& store, std::string_view path)
    : store_(&store),
      path_(path),
      unit_(std::make_shared<internal::OpenUnit>(
          store, path.empty() ? "root" : std::string(path))) {}

std::string Scope::Path(std::string_view name) const {
  TERRACE_CHECK(!name.empty() && name.front() != '.' && name.back() != '.' &&
                    name.find("..") == std::string_view::npos,
                "[scope] a name must be words joined by single dots, got '",
                name, "' under '", path_, "'");
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

Scope Scope::Child(std::string_view name) const {
  return Scope(store_, Path(name), unit_);
}

Scope Scope::ChildUnit(std::string_view name) const {
  std::string path = Path(name);
  auto unit = std::make_shared<internal::OpenUnit>(*store_, path);
  return Scope(store_, std::move(path), std::move(unit));
}

autograd::Parameter Scope::Parameter(std::string_view name, const Shape& shape,
                                     const Init& init,
                                     const ParameterOptions& options) const {
  return unit_->Declare(
      {Path(name), shape, init, options.dtype, options.trainable});
}

autograd::Parameter Scope::Tie(std::string_view alias,
                               const autograd::Parameter& param) const {
  TERRACE_CHECK(param.defined() && param.source() == store_, "[scope] '",
                Path(alias), "' must be tied to a parameter of its own store");
  return store_->Tie(Path(alias), param);
}

uint64_t Scope::path_hash() const { return RngKey(0, path_).bits(); }

}  // namespace terrace::nn
