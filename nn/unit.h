// Unit: a module whose parameters are gathered, released, reduced, offloaded
// and recomputed together (decision C2).
//
//   nn::Unit<Block> block = scope.Unit<Block>("h.0", options);
//   x = block(ctx, x, mask);
//
// The call holds the unit's lease and, where the store's options say
// recompute_units, is a recompute region: backward keeps its inputs and runs it
// again. Values and gradients have the same bits either way.
//
// Variables travel as arguments and results alone, by themselves, in a vector
// or a WeightedLoss, or in tuples and pairs of those. Every other argument is
// captured by value (pointers as pointers: what they point to outlives the
// graph). Other templates around a Variable (optional, array, nested vectors)
// do not compile. A Variable in a struct, a lambda or a member cannot be seen
// here: where it wants a gradient, a recomputed call that reads it throws
// kInvalidArgument. Calls are pure: statistics and auxiliary losses are
// returned, never collected in members, which would count them twice.
//
// The module is shared by copies of the Unit and by the graphs that it is part
// of. With nested units, each that lies in another's region is a region of the
// recomputation.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "terrace/autograd/checkpoint.h"
#include "terrace/autograd/loss.h"
#include "terrace/core/profiler.h"
#include "terrace/nn/module.h"

namespace terrace::nn {

namespace internal {

template <class T>
constexpr bool kIsTuple = false;
template <class... T>
constexpr bool kIsTuple<std::tuple<T...>> = true;
template <class A, class B>
constexpr bool kIsTuple<std::pair<A, B>> = true;

// Calls f on every Variable in `value`, in a fixed order.
template <class T, class F>
void ForEachVariable(T& value, F&& f) {
  if constexpr (std::is_same_v<T, Variable>) {
    f(value);
  } else if constexpr (std::is_same_v<T, std::vector<Variable>>) {
    for (Variable& x : value) f(x);
  } else if constexpr (std::is_same_v<T, autograd::WeightedLoss>) {
    f(value.sum);
  } else if constexpr (kIsTuple<T>) {
    std::apply([&](auto&... items) { (ForEachVariable(items, f), ...); },
               value);
  }
}

// Whether T is, or by its template arguments contains, a Variable.
template <class T>
constexpr bool kHoldsVariable =
    std::is_same_v<T, Variable> || std::is_same_v<T, autograd::WeightedLoss>;
template <class T>
constexpr bool kHoldsVariable<const T> = kHoldsVariable<T>;
template <class T>
constexpr bool kHoldsVariable<T*> = kHoldsVariable<T>;
template <class T, size_t N>
constexpr bool kHoldsVariable<T[N]> = kHoldsVariable<T>;
template <class T, size_t N>
constexpr bool kHoldsVariable<std::array<T, N>> = kHoldsVariable<T>;
template <class T, size_t N>
constexpr bool kHoldsVariable<std::span<T, N>> = kHoldsVariable<T>;
template <template <class...> class C, class... T>
constexpr bool kHoldsVariable<C<T...>> = (kHoldsVariable<T> || ...);

// Whether T contains a Variable that ForEachVariable does not find.
template <class T>
constexpr bool kHidesVariable =
    kHoldsVariable<T> && !std::is_same_v<T, Variable> &&
    !std::is_same_v<T, std::vector<Variable>> &&
    !std::is_same_v<T, autograd::WeightedLoss>;
template <class... T>
constexpr bool kHidesVariable<std::tuple<T...>> = (kHidesVariable<T> || ...);
template <class A, class B>
constexpr bool kHidesVariable<std::pair<A, B>> =
    kHidesVariable<A> || kHidesVariable<B>;

// Takes the Variables out of `value` and leaves its form.
template <class T>
std::vector<Variable> TakeVariables(T& value) {
  std::vector<Variable> variables;
  ForEachVariable(value, [&](Variable& x) {
    variables.push_back(std::exchange(x, Variable()));
  });
  return variables;
}

// Puts them back.
template <class T>
void PutVariables(std::span<const Variable> variables, T& form) {
  size_t next = 0;
  ForEachVariable(form, [&](Variable& x) { x = variables[next++]; });
}

template <class T>
constexpr bool kIsResult =
    std::is_same_v<T, Variable> || std::is_same_v<T, std::vector<Variable>> ||
    std::is_same_v<T, autograd::WeightedLoss> || kIsTuple<T>;

// The call as a function from Variables to Variables, run now and in backward.
template <class Out, class M, class... In>
Out CallInRegion(Context& ctx, std::shared_ptr<const M> module,
                 std::shared_ptr<const OpenUnit> unit, const In&... in) {
  std::tuple<std::decay_t<const In>...> form(in...);
  std::vector<Variable> inputs = TakeVariables(form);
  // Where the first run leaves what is no Variable; gone in backward.
  auto result = std::make_shared<std::optional<Out>>();
  auto run = [module = std::move(module), unit = std::move(unit),
              form = std::move(form), result = std::weak_ptr(result)](
                 Context& c, std::span<const Variable> values) {
    auto args = form;
    PutVariables(values, args);
    const zero::UnitLease lease = unit->Hold(c);
    Out out = std::apply(
        [&](const auto&... args) -> Out { return (*module)(c, args...); },
        args);
    std::vector<Variable> outputs = TakeVariables(out);
    if (const auto place = result.lock()) *place = std::move(out);
    return outputs;
  };
  const std::vector<Variable> outputs =
      autograd::Recompute(ctx, std::move(run), std::move(inputs));
  Out out = std::move(**result);
  PutVariables(outputs, out);
  return out;
}

}  // namespace internal

template <class M>
class Unit {
 public:
  Unit() = default;
  // Made by Scope::Unit: `module` was constructed in the scope `own`.
  Unit(const Scope& own, std::shared_ptr<const M> module)
      : module_(std::move(module)),
        unit_(own.unit()),
        recompute_(own.recompute_units()) {}

  template <class... In>
  auto operator()(Context& ctx, const In&... in) const {
    using Out = std::decay_t<
        std::invoke_result_t<const M&, Context&, const std::decay_t<In>&...>>;
    static_assert(
        internal::kIsResult<Out> && !internal::kHidesVariable<Out>,
        "a unit returns a Variable, a vector of them, a WeightedLoss, "
        "or a tuple or pair of those");
    static_assert(!(internal::kHidesVariable<std::decay_t<In>> || ...),
                  "a unit takes Variables by themselves, in a vector, or in "
                  "tuples and pairs of those");
    const Profiler::Zone zone(ctx.profiler, "unit forward");
    if (recompute_ && ctx.grad_enabled())
      return internal::CallInRegion<Out>(ctx, module_, unit_, in...);
    const zero::UnitLease lease = unit_->Hold(ctx);
    return Out((*module_)(ctx, in...));
  }

  const M& operator*() const { return *module_; }
  const M* operator->() const { return module_.get(); }

 private:
  std::shared_ptr<const M> module_;
  std::shared_ptr<const internal::OpenUnit> unit_;
  bool recompute_ = false;
};

template <class M, class... Args>
nn::Unit<M> Scope::Unit(std::string_view name, Args&&... args) const {
  const Scope own = ChildUnit(name);
  if constexpr (std::is_constructible_v<M, const Scope&, Args...>) {
    return nn::Unit<M>(
        own, std::make_shared<const M>(own, std::forward<Args>(args)...));
  } else {
    // Named from here, declared into the new unit.
    const Scope parent(store_, path_, own.unit_);
    return nn::Unit<M>(own, std::make_shared<const M>(
                                parent, name, std::forward<Args>(args)...));
  }
}

}  // namespace terrace::nn
