// Compiled once per instruction set: foreach_target.h includes this file again
// for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "terrace/tools/machine_limits.cc"
#include "terrace/tools/machine_limits.h"

#include "hwy/foreach_target.h"  // before highway.h
// After it, what is included once per instruction set.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "hwy/highway.h"
#include "terrace/core/error.h"
#include "terrace/core/profiler.h"

#if HWY_ARCH_X86_64
#include <immintrin.h>
#endif

HWY_BEFORE_NAMESPACE();
namespace terrace::tools::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide four cycles of latency in each of two units, with some to
// spare. The values go to 1.
float FmaChains(int64_t rounds) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999f), b = hn::Set(d, 0.001f);
  // All different, or the compiler would make them one.
  auto c0 = hn::Iota(d, 0), c1 = hn::Iota(d, 1), c2 = hn::Iota(d, 2);
  auto c3 = hn::Iota(d, 3), c4 = hn::Iota(d, 4), c5 = hn::Iota(d, 5);
  auto c6 = hn::Iota(d, 6), c7 = hn::Iota(d, 7), c8 = hn::Iota(d, 8);
  auto c9 = hn::Iota(d, 9), c10 = hn::Iota(d, 10), c11 = hn::Iota(d, 11);
  for (int64_t i = 0; i < rounds; ++i) {
    c0 = hn::MulAdd(c0, a, b);
    c1 = hn::MulAdd(c1, a, b);
    c2 = hn::MulAdd(c2, a, b);
    c3 = hn::MulAdd(c3, a, b);
    c4 = hn::MulAdd(c4, a, b);
    c5 = hn::MulAdd(c5, a, b);
    c6 = hn::MulAdd(c6, a, b);
    c7 = hn::MulAdd(c7, a, b);
    c8 = hn::MulAdd(c8, a, b);
    c9 = hn::MulAdd(c9, a, b);
    c10 = hn::MulAdd(c10, a, b);
    c11 = hn::MulAdd(c11, a, b);
  }
  const auto s0 = hn::Add(hn::Add(c0, c1), hn::Add(c2, c3));
  const auto s1 = hn::Add(hn::Add(c4, c5), hn::Add(c6, c7));
  const auto s2 = hn::Add(hn::Add(c8, c9), hn::Add(c10, c11));
  return hn::GetLane(hn::Add(hn::Add(s0, s1), s2));
}

int64_t FmaFlopsPerRound() {
  return 2 * 12 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
}

// A product's tile: kTileRows rows of two vectors of sums, its operands in the
// first cache. Registers hold the sums and, at a time, two vectors of b.
#if HWY_TARGET <= HWY_AVX3  // 32 registers
inline constexpr size_t kTileRows = 12;
#else
inline constexpr size_t kTileRows = 6;
#endif
inline constexpr size_t kTileDepth = 64;

float TileProducts(int64_t rounds) {
  const hn::ScalableTag<float> d;
  constexpr size_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN float a[kTileDepth * kTileRows];
  HWY_ALIGN float b[kTileDepth * 2 * kLanes];
  std::fill(std::begin(a), std::end(a), 1e-4f);
  std::fill(std::begin(b), std::end(b), 1e-4f);
  hn::Vec<decltype(d)> sums[kTileRows][2];
#pragma GCC unroll 16
  for (size_t r = 0; r < kTileRows; ++r) sums[r][0] = sums[r][1] = hn::Zero(d);
  for (int64_t i = 0; i < rounds; ++i)
    for (size_t k = 0; k < kTileDepth; ++k) {
      const auto b0 = hn::Load(d, b + 2 * k * kLanes);
      const auto b1 = hn::Load(d, b + (2 * k + 1) * kLanes);
#pragma GCC unroll 16
      for (size_t r = 0; r < kTileRows; ++r) {
        const auto factor = hn::Set(d, a[k * kTileRows + r]);
        sums[r][0] = hn::MulAdd(factor, b0, sums[r][0]);
        sums[r][1] = hn::MulAdd(factor, b1, sums[r][1]);
      }
    }
  auto total = hn::Zero(d);
#pragma GCC unroll 16
  for (size_t r = 0; r < kTileRows; ++r)
    total = hn::Add(total, hn::Add(sums[r][0], sums[r][1]));
  return hn::GetLane(total);
}

int64_t TileFlopsPerRound() {
  return static_cast<int64_t>(2 * kTileDepth * kTileRows * 2 *
                              hn::Lanes(hn::ScalableTag<float>()));
}

void Scale(float* p, size_t n, float factor) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, factor);
  for (size_t i = 0; i < n; i += hn::Lanes(d))
    hn::Store(hn::Mul(hn::Load(d, p + i), s), d, p + i);
}

// Several sums, so that no addition waits for another.
float Sum(const float* p, size_t n) {
  const hn::ScalableTag<float> d;
  constexpr size_t kSums = 8;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += kSums * lanes)
    for (size_t s = 0; s < kSums; ++s)
      sums[s] = hn::Add(sums[s], hn::Load(d, p + i + s * lanes));
  for (size_t s = 1; s < kSums; ++s) sums[0] = hn::Add(sums[0], sums[s]);
  return hn::GetLane(hn::SumOfLanes(d, sums[0]));
}

}  // namespace terrace::tools::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::tools {
namespace {

HWY_EXPORT(FmaChains);
HWY_EXPORT(FmaFlopsPerRound);
HWY_EXPORT(TileProducts);
HWY_EXPORT(TileFlopsPerRound);
HWY_EXPORT(Scale);
HWY_EXPORT(Sum);

constexpr int kRounds = 8;

#if HWY_ARCH_X86_64
// Highway 1.0.3 has no bfloat16 target of its own.
__attribute__((target("avx512f,avx512bf16"))) float DotChains(int64_t rounds) {
  const __m512bh a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3c00));
  const __m512bh b = a;  // 2^-7 each: the sums stay small
  __m512 c0 = _mm512_set1_ps(0);
  __m512 c1 = _mm512_set1_ps(1);
  __m512 c2 = _mm512_set1_ps(2);
  __m512 c3 = _mm512_set1_ps(3);
  __m512 c4 = _mm512_set1_ps(4);
  __m512 c5 = _mm512_set1_ps(5);
  __m512 c6 = _mm512_set1_ps(6);
  __m512 c7 = _mm512_set1_ps(7);
  __m512 c8 = _mm512_set1_ps(8);
  __m512 c9 = _mm512_set1_ps(9);
  __m512 c10 = _mm512_set1_ps(10);
  __m512 c11 = _mm512_set1_ps(11);
  for (int64_t i = 0; i < rounds; ++i) {
    c0 = _mm512_dpbf16_ps(c0, a, b);
    c1 = _mm512_dpbf16_ps(c1, a, b);
    c2 = _mm512_dpbf16_ps(c2, a, b);
    c3 = _mm512_dpbf16_ps(c3, a, b);
    c4 = _mm512_dpbf16_ps(c4, a, b);
    c5 = _mm512_dpbf16_ps(c5, a, b);
    c6 = _mm512_dpbf16_ps(c6, a, b);
    c7 = _mm512_dpbf16_ps(c7, a, b);
    c8 = _mm512_dpbf16_ps(c8, a, b);
    c9 = _mm512_dpbf16_ps(c9, a, b);
    c10 = _mm512_dpbf16_ps(c10, a, b);
    c11 = _mm512_dpbf16_ps(c11, a, b);
  }
  const __m512 s0 = _mm512_add_ps(_mm512_add_ps(c0, c1), _mm512_add_ps(c2, c3));
  const __m512 s1 = _mm512_add_ps(_mm512_add_ps(c4, c5), _mm512_add_ps(c6, c7));
  const __m512 s2 =
      _mm512_add_ps(_mm512_add_ps(c8, c9), _mm512_add_ps(c10, c11));
  return _mm512_cvtss_f32(_mm512_add_ps(_mm512_add_ps(s0, s1), s2));
}
#endif

// Operations per second of `chains` on all threads; a round takes at least
// 4 ms: long against a start, short enough to find a quiet moment.
double ChainRate(const Context& ctx, float (*chains)(int64_t),
                 int64_t flops_per_round) {
  constexpr double kRoundSeconds = 4e-3;
  const int threads = ctx.pool().threads();
  std::vector<float> results(static_cast<size_t>(threads));
  int64_t rounds = 1 << 12;
  double best = 0;
  for (int i = 0; i < 3 * kRounds;) {
    const double begin = NowSeconds();
    ctx.pool().ParallelFor(threads, 1, [&](int64_t t, int64_t) {
      results[static_cast<size_t>(t)] = chains(rounds);
    });
    const double seconds = NowSeconds() - begin;
    if (seconds < kRoundSeconds) {
      rounds *= 2;
      continue;
    }
    best = std::max(best, static_cast<double>(rounds * flops_per_round) *
                              threads / seconds);
    ++i;
  }
  // The results are used, or there would be no work.
  for (const float r : results) TERRACE_DCHECK(r >= 0);
  return best;
}

// Anonymous memory, 2 MiB aligned and in huge pages where there are any.
class Pages {
 public:
  explicit Pages(int64_t nbytes) : size_(static_cast<size_t>(nbytes) + kAlign) {
    base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED)
      TERRACE_THROW(ErrorCode::kOutOfMemory, "[bench] the machine must have ",
                    nbytes, " bytes free to measure its memory");
    (void)madvise(base_, size_, MADV_HUGEPAGE);
  }
  ~Pages() { (void)munmap(base_, size_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  char* data() const {
    const auto at = reinterpret_cast<uintptr_t>(base_);
    return reinterpret_cast<char*>((at + kAlign - 1) / kAlign * kAlign);
  }

 private:
  static constexpr size_t kAlign = size_t{2} << 20;
  size_t size_;
  void* base_;
};

constexpr int64_t kChunk = int64_t{1} << 20;  // bytes a thread takes at a time

}  // namespace

double MeasureFmaPeak(const Context& ctx) {
  return ChainRate(ctx, HWY_DYNAMIC_DISPATCH(FmaChains),
                   HWY_DYNAMIC_DISPATCH(FmaFlopsPerRound)());
}

double MeasureTilePeak(const Context& ctx) {
  return ChainRate(ctx, HWY_DYNAMIC_DISPATCH(TileProducts),
                   HWY_DYNAMIC_DISPATCH(TileFlopsPerRound)());
}

double MeasureBf16DotPeak([[maybe_unused]] const Context& ctx) {
#if HWY_ARCH_X86_64
  if (__builtin_cpu_supports("avx512bf16"))
    return ChainRate(ctx, DotChains, 4 * 12 * 16);
#endif
  return 0;
}

struct RmwProbe::Impl {
  Impl(const Context& context, int64_t size)
      : ctx(context), nbytes(size), pages(size) {}

  const Context& ctx;
  const int64_t nbytes;
  const Pages pages;
};

RmwProbe::RmwProbe(const Context& ctx, int64_t nbytes)
    : impl_(std::make_unique<Impl>(
          ctx, std::max<int64_t>(nbytes / kChunk, 1) * kChunk)) {
  Run(1);  // faults the pages in
}

RmwProbe::~RmwProbe() = default;

double RmwProbe::Run(int rounds) {
  const auto scale = HWY_DYNAMIC_DISPATCH(Scale);
  double best_s = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const double begin = NowSeconds();
    // Fresh pages are zeros, and zeros stay zeros.
    impl_->ctx.pool().ParallelFor(
        impl_->nbytes, kChunk, [&](int64_t first, int64_t last) {
          scale(reinterpret_cast<float*>(impl_->pages.data() + first),
                static_cast<size_t>(last - first) / sizeof(float), 1.0f);
        });
    best_s = std::min(best_s, NowSeconds() - begin);
  }
  return 2.0 * static_cast<double>(impl_->nbytes) / best_s;
}

double MeasureRmwBandwidth(const Context& ctx) {
  return RmwProbe(ctx).Run(kRounds);
}

double MeasureReadBandwidth(const Context& ctx) {
  constexpr int64_t kSize = int64_t{256} << 20;
  const Pages pages(kSize);
  std::memset(pages.data(), 0, kSize);
  const auto sum = HWY_DYNAMIC_DISPATCH(Sum);
  std::vector<float> sums(kSize / kChunk);  // or nothing would be read
  double best_s = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = NowSeconds();
    ctx.pool().ParallelFor(kSize, kChunk, [&](int64_t first, int64_t last) {
      sums[static_cast<size_t>(first / kChunk)] =
          sum(reinterpret_cast<const float*>(pages.data() + first),
              static_cast<size_t>(last - first) / sizeof(float));
    });
    best_s = std::min(best_s, NowSeconds() - begin);
  }
  return static_cast<double>(kSize) / best_s;
}

double MeasurePageFaults(const Context& ctx, int64_t nbytes) {
  constexpr int64_t kPage = 4096;
  const int64_t size = std::max<int64_t>(nbytes / kChunk, 1) * kChunk;
  const Pages pages(size);
  const double begin = NowSeconds();
  ctx.pool().ParallelFor(size, kChunk, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at += kPage) pages.data()[at] = 1;
  });
  return NowSeconds() - begin;
}

}  // namespace terrace::tools
#endif  // HWY_ONCE
