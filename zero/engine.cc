#include "terrace/zero/engine.h"

#include <algorithm>
#include <span>
#include <sstream>
#include <utility>

#include "terrace/autograd/backward.h"
#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/kernels/copy.h"
#include "terrace/zero/boundary.h"
#include "terrace/zero/gather.h"
#include "terrace/zero/reduce.h"
#include "terrace/zero/seal_check.h"
#include "terrace/zero/state_hash.h"
#include "terrace/zero/update.h"

namespace terrace::zero {
namespace {

// What repeats itself from the arena's view: the first micro-step of a window,
// a later one, and what lies between the end of one and the next.
constexpr int kFirstPass = 0, kLaterPass = 1, kBetweenPass = 2;

double ScalarOf(const Tensor& tensor, const char* what) {
  TERRACE_CHECK(tensor.numel() == 1, "[engine] ", what,
                " must have one element, got ", tensor.shape());
  return VisitFloat(tensor.dtype(), "engine", [&]<class T>(Tag<T>) {
    return static_cast<double>(*tensor.data<T>());
  });
}

// All options that decide results or the order of collectives, by name: ranks
// that differ in one must not start.
std::vector<NamedText> OptionTexts(const StoreOptions& o,
                                   const ScheduleConfig& schedule) {
  std::vector<NamedText> items;
  const auto add = [&](std::string name, const auto& value) {
    std::ostringstream text;
    text.precision(17);  // doubles as they are
    text << std::boolalpha << value;
    items.push_back({std::move(name), std::move(text).str()});
  };
  add("seed", o.seed);
  add("optimizer kind", static_cast<int>(o.optimizer.kind));
  add("lr", o.optimizer.lr);
  add("beta1", o.optimizer.beta1);
  add("beta2", o.optimizer.beta2);
  add("eps", o.optimizer.eps);
  add("weight_decay", o.optimizer.weight_decay);
  add("momentum", o.optimizer.momentum);
  add("decoupled decay", o.optimizer.decoupled);
  add("bias_correction", o.optimizer.bias_correction);
  add("schedule kind", static_cast<int>(schedule.kind));
  add("warmup shape", static_cast<int>(schedule.warmup_shape));
  add("warmup_num_steps", schedule.warmup_num_steps);
  add("total_num_steps", schedule.total_num_steps);
  add("warmup_min_lr", schedule.warmup_min_lr);
  add("warmup_max_lr", schedule.warmup_max_lr);
  add("warmup_min_ratio", schedule.warmup_min_ratio);
  add("cos_min_ratio", schedule.cos_min_ratio);
  add("gradient_clipping", o.clip);
  add("check_grad_overflow", o.check_finite);
  add("working dtype", o.working);
  add("grad_accum_dtype", o.grad);
  add("communication_data_type", o.wire);
  add("gradient_reduction by micro-step",
      o.moment == ReductionMoment::kMicroStep);
  add("gradient_accumulation_steps", o.micro_steps);
  add("train_micro_batch_size_per_gpu", o.micro_batch);
  add("optimizer states sharded", o.shard_optimizer);
  add("gradients sharded", o.shard_gradient);
  add("parameters sharded", o.shard_parameter);
  add("reduce_bucket_size", o.bucket_numel);
  add("overlap_comm", o.overlap);
  add("stage3_prefetch_bucket_size", o.prefetch_numel.value_or(-1));
  add("stage3_param_persistence_threshold", o.persistence_numel);
  add("stage3_max_reuse_distance", o.reuse_numel);
  add("stage3_max_live_parameters", o.live_numel.value_or(-1));
  add("activation checkpointing", o.recompute_units);
  add("check_replicas_every", o.check_replicas_every);
  return items;
}

// The optimizer's rate is the one that counts, wherever it was set.
ScheduleConfig ScheduleOf(const EngineConfig& config) {
  ScheduleConfig schedule = config.schedule;
  schedule.lr = config.optimizer.lr;
  return schedule;
}

}  // namespace

Engine::Engine(Runtime& runtime)
    : runtime_(runtime),
      context_(runtime.context()),
      store_(runtime.store()),
      schedule_(ScheduleOf(runtime.config())) {
  CheckEqual(runtime.communicator(), "the resolved configuration",
             OptionTexts(store_.options(), runtime.config().schedule));
  store_.Seal();
  counters_.parameter_steps.assign(store_.layout().params().size(), 0);
  Address();
  context_.device_arena().BeginPass(kFirstPass);
}

// Rank r takes a contiguous block of the global batch, micro-steps in order, so
// that a sample's number in the global batch does not depend on the split.
void Engine::Address() {
  RandomAddress& random = context_.random();
  const int64_t per_micro = store_.options().micro_batch;
  random.iteration = counters_.iteration;
  random.first_sample =
      (int64_t{runtime_.rank()} * micro_steps() + micro_) * per_micro;
  random.occurrences.clear();
}

void Engine::Backward(const autograd::WeightedLoss& loss,
                      const BackwardCall& call) {
  TERRACE_CHECK(micro_ < micro_steps(), "[engine] the window already has its ",
                micro_steps(),
                " micro-steps: call Step before the next Backward");
  // A dry step is an ordinary one, which is applied.
  const bool dry = context_.dry();
  const double sum = dry ? 0 : ScalarOf(loss.sum.value(), "the loss");
  const double weight =
      loss.weight.defined() && !dry ? ScalarOf(loss.weight, "the weight") : 1;
  TERRACE_CHECK(!(weight < 0), "[engine] the weight must not be negative, got ",
                weight);
  TERRACE_CHECK(!micro_weight_.has_value() || *micro_weight_ == weight,
                "[engine] losses of one micro-step must have one weight, got ",
                weight, " after ", micro_weight_.value_or(0));
  if (nominal_weight_ == 0) {
    const double nominal = loss.nominal_weight > 0 ? loss.nominal_weight : 1;
    nominal_weight_ = nominal * micro_steps() * store_.state().mesh.data;
  }
  Tensor seed = context_.Empty(loss.sum.shape(), loss.sum.dtype());
  kernels::Fill(context_, seed.mut(), 1 / nominal_weight_);
  store_.reducer().SetLast(call.last);
  autograd::Backward(context_, loss.sum, std::move(seed), {&store_});
  // Only now does the loss count: a pass that failed has added nothing.
  loss_sum_ += sum;
  if (!micro_weight_.has_value()) weight_sum_ += weight;
  micro_weight_ = weight;
  if (!call.last) return;
  micro_weight_.reset();
  ++micro_;
  Address();
  context_.device_arena().BeginPass(kBetweenPass);
}

std::optional<StepResult> Engine::Step() {
  TERRACE_CHECK(micro_ > 0, "[engine] Step needs a Backward before it");
  if (micro_ < micro_steps()) {
    context_.device_arena().BeginPass(kLaterPass);
    return std::nullopt;
  }
  Reducer& reducer = store_.reducer();
  Gatherer& gatherer = store_.gatherer();
  reducer.Await();

  BoundaryInput input;
  input.loss_sum = loss_sum_;
  input.weight_sum = weight_sum_;
  input.nominal_weight = nominal_weight_;
  input.plan_hash = gatherer.PlanHash();
  input.order_hash = reducer.OrderHash();
  input.stop_requested = stop_;
  const size_t params = store_.layout().params().size();
  for (size_t i = 0; i < params; ++i)
    input.touched.push_back(reducer.touched(static_cast<ParamId>(i)));
  const BoundaryResult boundary = ExchangeBoundary(store_.state(), input);
  gatherer.SetAgreed(boundary.plans_agree);
  reducer.AgreeOrder(boundary.orders_agree);

  StepResult result;
  result.plans_agree = boundary.plans_agree;
  result.weight = boundary.weight_sum;
  result.loss =
      boundary.weight_sum > 0 ? boundary.loss_sum / boundary.weight_sum : 0;
  result.lr = LearningRate();
  result.grad_norm = boundary.grad_norm;
  result.grad_norm_clipped = boundary.grad_norm * boundary.clip_factor;
  result.skipped = boundary.weight_sum == 0 ||
                   (!boundary.finite && store_.options().check_finite);
  result.stop_requested = boundary.stop_requested;
  if (result.skipped) {
    ++counters_.skipped;
  } else {
    UpdateParameters(store_.state(), boundary.touched,
                     {.q = boundary.q, .lr = result.lr},
                     counters_.parameter_steps);
    ++counters_.applied_steps;
  }
  ++counters_.iteration;
  const int64_t every = store_.options().check_replicas_every;
  if (every > 0 && counters_.iteration % every == 0 && !context_.dry())
    CheckReplicas(store_.state());
  counters_.samples += int64_t{store_.state().mesh.data} * micro_steps() *
                       store_.options().micro_batch;
  result.iteration = counters_.iteration;
  result.applied_steps = counters_.applied_steps;
  reducer.ClearWindow();
  micro_ = 0;
  ForgetLosses();
  stop_ = false;
  Address();
  context_.device_arena().BeginPass(kFirstPass);
  return result;
}

void Engine::ForgetLosses() {
  loss_sum_ = weight_sum_ = nominal_weight_ = 0;
  micro_weight_.reset();
}

void Engine::DiscardWindow() {
  store_.reducer().DiscardWindow();
  store_.EndPass();
  micro_ = 0;
  ForgetLosses();
  Address();
  context_.device_arena().DropPass();
  context_.device_arena().BeginPass(kFirstPass);
}

std::vector<double> Engine::ExchangeMetrics(const std::vector<double>& values) {
  std::vector<double> all(values.size() * static_cast<size_t>(runtime_.size()));
  runtime_.communicator()
      .Exchange({"metric", -1}, std::as_bytes(std::span(values)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  return all;
}

std::vector<double> Engine::Reduce(const std::vector<double>& values) {
  const std::vector<double> all = ExchangeMetrics(values);
  std::vector<double> sums(all.begin(),
                           all.begin() + static_cast<ptrdiff_t>(values.size()));
  for (size_t i = values.size(); i < all.size(); ++i)
    sums[i % values.size()] += all[i];
  return sums;
}

std::vector<double> Engine::ReduceMax(const std::vector<double>& values) {
  const std::vector<double> all = ExchangeMetrics(values);
  std::vector<double> most(all.begin(),
                           all.begin() + static_cast<ptrdiff_t>(values.size()));
  for (size_t i = values.size(); i < all.size(); ++i)
    most[i % values.size()] = std::max(most[i % values.size()], all[i]);
  return most;
}

CommunicationStats Engine::communication() const {
  CommunicationStats out;
  const auto by_op = runtime_.communicator().Stats();
  for (size_t i = 0; i < by_op.size(); ++i) {
    out.ops.push_back({std::string(Name(static_cast<CollectiveOp>(i))),
                       by_op[i].calls, by_op[i].nbytes});
    out.busy_s += by_op[i].busy_seconds;
  }
  const StoreStats stats = store_.stats();
  out.exposed_s = stats.gather_wait_seconds + stats.reduce_wait_seconds +
                  store_.state().boundary_wait_seconds;
  return out;
}

double Engine::Reduce(double value) {
  return Reduce(std::vector<double>{value})[0];
}

void Engine::SetCounters(Counters counters) {
  TERRACE_CHECK(micro_ == 0,
                "[engine] counters are set at a boundary, not inside a window");
  TERRACE_CHECK(
      counters.parameter_steps.size() == counters_.parameter_steps.size(),
      "[engine] step counts must be given for ",
      counters_.parameter_steps.size(), " parameters, got ",
      counters.parameter_steps.size());
  counters_ = std::move(counters);
  Address();
}

EvalScope::EvalScope(Engine& engine, Phase phase)
    : engine_(engine),
      before_(engine.store().gatherer().phase()),
      occurrences_(std::exchange(engine.context().random().occurrences, {})),
      pause_(engine.context().device_arena()),
      grad_(engine.context(), false),
      training_(engine.context(), false) {
  engine.store().BeginPhase(phase);
}

EvalScope::~EvalScope() {
  engine_.context().random().occurrences = std::move(occurrences_);
  engine_.store().gatherer().LeavePass(before_);
}

}  // namespace terrace::zero
