#include "terrace/kernels/cpu/onednn.h"

#ifndef TERRACE_HAVE_DNNL
#error "of @terrace_dnnl//:defs.bzl, by local_defines"
#endif
#if TERRACE_HAVE_DNNL
#include <array>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace terrace::kernels::cpu {
namespace {

using DataType = dnnl::memory::data_type;

struct Product {
  dnnl::matmul::primitive_desc desc;
  dnnl::matmul primitive;
};

const dnnl::engine& Engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

DataType TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? DataType::bf16 : DataType::f32;
}

dnnl::memory::desc Matrix(const Gemm& g, const GemmOperand& x, int64_t rows,
                          int64_t columns) {
  const int64_t row = x.transposed ? 1 : x.ld;
  const int64_t column = x.transposed ? x.ld : 1;
  if (g.batch == 1) return {{rows, columns}, TypeOf(g.dtype), {row, column}};
  // A shared matrix is a batch of one, which oneDNN stretches.
  const int64_t batch = x.batch_stride == 0 ? 1 : g.batch;
  const int64_t stride = x.batch_stride == 0 ? rows * columns : x.batch_stride;
  return {{batch, rows, columns}, TypeOf(g.dtype), {stride, row, column}};
}

dnnl::memory::desc Result(const Gemm& g) {
  if (g.batch == 1) return {{g.m, g.n}, TypeOf(g.c_dtype), {g.c_ld, 1}};
  return {
      {g.batch, g.m, g.n}, TypeOf(g.c_dtype), {g.c_batch_stride, g.c_ld, 1}};
}

dnnl::memory::desc Bias(const Gemm& g) {
  if (g.batch == 1) return {{1, g.n}, TypeOf(g.bias_dtype), {g.n, 1}};
  return {{1, 1, g.n}, TypeOf(g.bias_dtype), {g.n, g.n, 1}};
}

// oneDNN's own, which DNNL_MAX_CPU_ISA lowers; one without a name here as its
// number.
std::string InstructionSet() {
  using enum dnnl::cpu_isa;
  constexpr std::pair<dnnl::cpu_isa, const char*> kNames[] = {
      {sse41, "sse41"},
      {avx, "avx"},
      {avx2, "avx2"},
      {avx512_core, "avx512_core"},
      {avx512_core_vnni, "avx512_core_vnni"},
      {avx512_core_bf16, "avx512_core_bf16"},
      {avx512_core_amx, "avx512_core_amx"}};
  const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  for (const auto& [known, name] : kNames)
    if (isa == known) return name;
  return StrCat("isa ", static_cast<int64_t>(isa));
}

bool IsKind(const dnnl::matmul::primitive_desc& desc, std::string_view kind) {
  return std::string_view(desc.impl_info_str()).starts_with(kind);
}

// The brgemm kernels read a dense fp32 b in place, line by line, and where its
// rows lie whole pages apart the lines share one set of the first cache.
// gemm:jit packs b: mostly faster, and twice where they collide
// (docs/benchmarks.md, matmul has the exceptions). A batch of small ones gains
// by the latter only. It packs into memory that oneDNN takes for the call, some
// MiB beside scratchpad and plan.
bool WantsPackedB(const Gemm& g) {
  constexpr int64_t kPage = 4096;
  if (g.dtype != DType::kF32 || g.b.transposed || g.k == 1) return false;
  return g.batch == 1 || g.b.ld * SizeOf(g.dtype) % kPage == 0;
}

// What oneDNN prefers of what `make` describes, but for the above.
template <class Make>
dnnl::matmul::primitive_desc Choose(const Gemm& g, Make make) {
  dnnl::matmul::primitive_desc first = make();
  if (!WantsPackedB(g) || !IsKind(first, "brg")) return first;
  dnnl::matmul::primitive_desc other = make();
  while (IsKind(other, "brg") && other.next_impl()) {
  }
  return IsKind(other, "gemm:jit") ? other : first;
}

dnnl::matmul::primitive_desc Describe(const Gemm& g) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attr.set_post_ops(ops);
  }
  const auto a = Matrix(g, g.a, g.m, g.k), b = Matrix(g, g.b, g.k, g.n);
  const auto c = Result(g);
  using Desc = dnnl::matmul::primitive_desc;
#if DNNL_VERSION_MAJOR >= 3
  return Choose(g, [&] {
    return g.bias != nullptr ? Desc(Engine(), a, b, Bias(g), c, attr)
                             : Desc(Engine(), a, b, c, attr);
  });
#else
  // next_impl reads it again.
  const dnnl::matmul::desc desc = g.bias != nullptr
                                      ? dnnl::matmul::desc(a, b, Bias(g), c)
                                      : dnnl::matmul::desc(a, b, c);
  return Choose(g, [&] { return Desc(desc, attr, Engine()); });
#endif
}

[[noreturn]] void Refuse(const dnnl::error& e, const char* what,
                         const Gemm& g) {
  TERRACE_THROW(e.status == dnnl_out_of_memory ? ErrorCode::kOutOfMemory
                                               : ErrorCode::kInternal,
                "[matmul] oneDNN must ", what, " ", g.m, " x ", g.k, " x ", g.n,
                " ", g.dtype, ", got: ", e.what());
}

// Null when oneDNN has no optimised kernel for it.
std::unique_ptr<const Product> Create(const Gemm& g) {
  try {
    const auto desc = Describe(g);
    if (IsKind(desc, "ref")) return nullptr;
    return std::make_unique<const Product>(Product{desc, dnnl::matmul(desc)});
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments)
      return nullptr;
    Refuse(e, "make", g);
  }
}

using Key = std::array<int64_t, 17>;

// Creating a primitive takes milliseconds, since code is generated. One cache
// for each rank thread: no lock, and oneDNN shares the code behind them.
const Product* Cached(const Context& ctx, const Gemm& g) {
  constexpr size_t kMost = 512;
  thread_local std::map<Key, std::unique_ptr<const Product>> cache;
  const Key key = {g.batch,
                   g.m,
                   g.n,
                   g.k,
                   static_cast<int64_t>(g.dtype),
                   static_cast<int64_t>(g.c_dtype),
                   g.bias == nullptr ? -1 : static_cast<int64_t>(g.bias_dtype),
                   g.accumulate,
                   g.a.transposed,
                   g.b.transposed,
                   g.a.ld,
                   g.b.ld,
                   g.c_ld,
                   g.a.batch_stride,
                   g.b.batch_stride,
                   g.c_batch_stride,
                   ctx.pool().threads()};
  if (const auto it = cache.find(key); it != cache.end())
    return it->second.get();
  if (cache.size() >= kMost) cache.clear();
  return cache.emplace(key, Create(g)).first->second.get();
}

// Layouts in which rows overlap (an expanded axis) are left to Eigen.
bool HasDenseRows(const GemmOperand& x, int64_t rows, int64_t columns) {
  return x.ld >= (x.transposed ? rows : columns);
}

bool Supports(const Gemm& g) {
  const auto type = [](DType t) {
    return t == DType::kF32 || t == DType::kBF16;
  };
  return std::string_view(ComputePool::Kind()) == "openmp" && g.k > 0 &&
         type(g.dtype) && type(g.c_dtype) &&
         (g.bias == nullptr || type(g.bias_dtype)) &&
         HasDenseRows(g.a, g.m, g.k) && HasDenseRows(g.b, g.k, g.n) &&
         g.c_ld >= g.n;
}

}  // namespace

bool OnednnGemm(const Context& ctx, const Gemm& g) {
  if (!Supports(g)) return false;
  ctx.pool().Bind();  // before creation too: scratchpads are sized for threads
  const Product* product = Cached(ctx, g);
  if (product == nullptr) return false;
  const auto& desc = product->desc;
  const Tensor scratch =
      ctx.Empty({static_cast<int64_t>(desc.scratchpad_desc().get_size())},
                DType::kU8, MemoryTag::kWorkspace);
  if (ctx.dry()) return true;
  try {
    const auto memory = [](const dnnl::memory::desc& d, const void* data) {
      return dnnl::memory(d, Engine(), const_cast<void*>(data));
    };
    std::unordered_map<int, dnnl::memory> args = {
        {DNNL_ARG_SRC, memory(desc.src_desc(), g.a.data)},
        {DNNL_ARG_WEIGHTS, memory(desc.weights_desc(), g.b.data)},
        {DNNL_ARG_DST, memory(desc.dst_desc(), g.c)},
        {DNNL_ARG_SCRATCHPAD, memory(desc.scratchpad_desc(), scratch.raw())}};
    if (g.bias != nullptr) args.emplace(DNNL_ARG_BIAS, memory(Bias(g), g.bias));
    thread_local dnnl::stream stream(Engine());
    product->primitive.execute(stream, args);
    stream.wait();
  } catch (const dnnl::error& e) {
    Refuse(e, "run", g);
  }
  return true;
}

std::string OnednnKernel(const Context& ctx, DType dtype, bool transposed_b) {
  Gemm g;
  g.dtype = dtype;
  g.m = g.n = g.k = 256;
  g.a.ld = g.b.ld = g.c_ld = 256;
  g.b.transposed = transposed_b;
  if (!Supports(g)) return "";
  ctx.pool().Bind();
  const Product* product = Cached(ctx, g);
  return product == nullptr ? "" : product->desc.impl_info_str();
}

std::string OnednnBackend(const Context& ctx) {
  const std::string forward = OnednnKernel(ctx, DType::kF32, true),
                    gradient = OnednnKernel(ctx, DType::kF32, false);
  if (forward.empty()) return "";
  const dnnl_version_t* version = dnnl_version();
  return StrCat("onednn ", version->major, ".", version->minor, ".",
                version->patch, " ", forward,
                gradient == forward ? "" : " and " + gradient, " on ",
                InstructionSet());
}

}  // namespace terrace::kernels::cpu

#else

namespace terrace::kernels::cpu {
bool OnednnGemm(const Context&, const Gemm&) { return false; }
std::string OnednnKernel(const Context&, DType, bool) { return ""; }
std::string OnednnBackend(const Context&) { return ""; }
}  // namespace terrace::kernels::cpu

#endif
