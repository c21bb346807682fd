// Scope: where a module declares its parameters. It knows the store, the path
// of names so far and the unit that is open.
//
//   class Mlp {
//    public:
//     Mlp(const Scope& parent, std::string_view name, int64_t width)
//         : scope_(parent.Child(name)),
//           up_(scope_, "up", width, 4 * width),         // "mlp.up.weight"
//           gain_(scope_.Parameter("gain", {width}, Init::Ones())) {}
//
// A module is any class that declares in its constructor and computes in a
// const call operator; there is no base class. A constructor takes the parent's
// scope and a name, or, where the module is made as a unit, its own scope.
//
// Names. A parameter's name is the path of attribute names joined by dots,
// "h.3.attn.qkv.weight". It is unique in the store and is the checkpoint's key.
//
// Units. A parameter belongs to the nearest enclosing unit: what Unit and
// ModuleList make (decision C10), finally the ordinary unit "root". An inner
// unit is no part of the outer: neither its parameters nor its lease. A unit
// exists from its first parameter on.
//
// Scopes are cheap values; they end with construction, before the store is
// sealed. Parameters are handles and hold no data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "terrace/autograd/parameter.h"
#include "terrace/autograd/variable.h"
#include "terrace/nn/init.h"
#include "terrace/zero/parameter_store.h"

namespace terrace::nn {

using autograd::Variable;

template <class M>
class Unit;

struct ParameterOptions {
  std::optional<DType> dtype = {};  // absent: the store's working dtype
  bool trainable = true;
};

namespace internal {

// A unit of the store, opened with its first parameter.
class OpenUnit {
 public:
  OpenUnit(zero::ParameterStore& store, std::string name)
      : store_(store), name_(std::move(name)) {}

  autograd::Parameter Declare(const zero::ParamSpec& spec);
  // Keeps the unit resident while the lease lives; nothing without parameters.
  zero::UnitLease Hold(Context& ctx) const;

 private:
  zero::ParameterStore& store_;
  std::string name_;
  zero::UnitId id_ = -1;
};

}  // namespace internal

class Scope {
 public:
  // The root scope of a model; `path` goes before all its names. The store
  // outlives what is made in the scope.
  explicit Scope(zero::ParameterStore& store, std::string_view path = "");

  // The scope of an attribute, in the same unit.
  Scope Child(std::string_view name) const;
  // The scope of an attribute that is a unit of its own.
  Scope ChildUnit(std::string_view name) const;

  // Throws kAlreadyExists for a name that is taken.
  autograd::Parameter Parameter(std::string_view name, const Shape& shape,
                                const Init& init,
                                const ParameterOptions& options = {}) const;
  // `alias`, an attribute of this scope, names `param` once more: a tied
  // weight, stored once.
  autograd::Parameter Tie(std::string_view alias,
                          const autograd::Parameter& param) const;

  // The module M as a unit: M(own scope, args...) or, for modules made by
  // name, M(scope, name, args...). Defined in nn/unit.h.
  template <class M, class... Args>
  nn::Unit<M> Unit(std::string_view name, Args&&... args) const;

  zero::ParameterStore& store() const { return *store_; }
  const std::string& path() const { return path_; }
  // What addresses a module's random draws: a hash of its path.
  uint64_t path_hash() const;
  // Whether unit calls are recomputed in backward.
  bool recompute_units() const { return store_->options().recompute_units; }
  const std::shared_ptr<internal::OpenUnit>& unit() const { return unit_; }

 private:
  Scope(zero::ParameterStore* store, std::string path,
        std::shared_ptr<internal::OpenUnit> unit)
      : store_(store), path_(std::move(path)), unit_(std::move(unit)) {}
  std::string Path(std::string_view name) const;

  zero::ParameterStore* store_;
  std::string path_;
  std::shared_ptr<internal::OpenUnit> unit_;
};

}  // namespace terrace::nn
