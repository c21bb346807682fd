// A numbered list of modules, each a unit of its own: the default grain of
// gathering, offload and recomputation (decision C10).
//
//   nn::ModuleList<Block> h(scope, "h", layers, options);   // units h.0, h.1..
//   for (const auto& block : h) x = block(ctx, x);
//
// Copies share the modules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/nn/unit.h"

namespace terrace::nn {

template <class M>
class ModuleList {
 public:
  ModuleList(const Scope& scope, std::string_view name)
      : scope_(scope), name_(name) {}
  // `count` modules from the same arguments.
  template <class... Args>
  ModuleList(const Scope& scope, std::string_view name, int64_t count,
             const Args&... args)
      : ModuleList(scope, name) {
    TERRACE_CHECK(count >= 0, "[module_list] '", name,
                  "' must have at least 0 modules, got ", count);
    for (int64_t i = 0; i < count; ++i) Append(args...);
  }

  // Adds M(own scope, args...), or M(scope, name, args...).
  template <class... Args>
  const Unit<M>& Append(Args&&... args) {
    const std::string name = StrCat(name_, ".", items_.size());
    return items_.emplace_back(
        scope_.template Unit<M>(name, std::forward<Args>(args)...));
  }

  int64_t size() const { return static_cast<int64_t>(items_.size()); }
  const Unit<M>& operator[](int64_t i) const {
    return items_[static_cast<size_t>(i)];
  }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  Scope scope_;
  std::string name_;
  std::vector<Unit<M>> items_;
};

}  // namespace terrace::nn
