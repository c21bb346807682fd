#include "terrace/tools/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <sstream>
#include <string_view>
#include <thread>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/profiler.h"
#include "terrace/core/version.h"
#include "terrace/kernels/copy.h"
#include "terrace/kernels/instruction_set.h"
#include "terrace/kernels/matmul.h"

namespace terrace::tools {
namespace {

// The text after "key :" of the first such line, or "".
std::string LineOf(const std::string& path, std::string_view key) {
  std::string text;
  try {
    text = ReadFile(path);
  } catch (const Error&) {
    return "";
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string OrUnknown(std::string text) {
  return text.empty() ? "unknown" : text;
}

std::string MemorySize(std::string_view key) {
  const std::string kib = LineOf("/proc/meminfo", key);
  return kib.empty()
             ? "unknown"
             : FormatBytes(std::strtoll(kib.c_str(), nullptr, 10) * 1024);
}

std::string HugePages() {
  try {
    const std::string text =
        ReadFile("/sys/kernel/mm/transparent_hugepage/enabled");
    const size_t open = text.find('['), close = text.find(']');
    return open < close ? text.substr(open + 1, close - open - 1) : "unknown";
  } catch (const Error&) {
    return "unknown";
  }
}

}  // namespace

std::vector<Fact> MachineFacts(const Context& ctx) {
  const char* policy = std::getenv("OMP_WAIT_POLICY");
  return {
      {"processor", OrUnknown(LineOf("/proc/cpuinfo", "model name"))},
      {"cores", StrCat(std::thread::hardware_concurrency())},
      {"instruction set", kernels::InstructionSet()},
      {"memory", MemorySize("MemTotal") + ", " + MemorySize("MemAvailable") +
                     " available"},
      {"huge pages", HugePages()},
      {"matrix products", kernels::MatMulBackend(ctx)},
      {"compute pool",
       StrCat(ComputePool::Kind(), ", ",
              Counted(ctx.pool().threads(), "thread"),
              policy == nullptr ? "" : StrCat(", wait policy ", policy))},
      {"compiler", __VERSION__},
  };
}

std::string VersionLine() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr char kBuild[] = "sanitizer build";
#elif defined(__OPTIMIZE__)
  constexpr char kBuild[] = "optimized build";
#else
  constexpr char kBuild[] = "debug build";
#endif
#if defined(__clang__)
  constexpr char kCompiler[] = __VERSION__;
#else
  constexpr char kCompiler[] = "gcc " __VERSION__;
#endif
  const Context ctx({.threads = 1});
  return StrCat("terrace ", kVersion, ", ", kBuild, " by ", kCompiler,
                "; matrix products ", kernels::MatMulBackend(ctx),
                ", compute pool ", ComputePool::Kind(), ", instruction set ",
                kernels::InstructionSet());
}

double MeasureCopyBandwidth(const Context& ctx) {
  constexpr int64_t kNbytes = int64_t{128} << 20;
  constexpr int64_t kChunk = int64_t{1} << 20;
  Tensor from = ctx.Empty({kNbytes}, DType::kU8, MemoryTag::kWorkspace);
  Tensor to = ctx.Empty({kNbytes}, DType::kU8, MemoryTag::kWorkspace);
  auto* source = static_cast<char*>(from.raw());
  auto* target = static_cast<char*>(to.raw());
  double best_s = 1e30;
  for (int round = 0; round < 6; ++round) {
    const double begin = NowSeconds();
    ctx.pool().ParallelFor(kNbytes, kChunk, [&](int64_t first, int64_t last) {
      // The first round writes both for the first time.
      if (round == 0) std::memset(source + first, 1, last - first);
      std::memcpy(target + first, source + first, last - first);
    });
    if (round > 0) best_s = std::min(best_s, NowSeconds() - begin);
  }
  return 2.0 * kNbytes / best_s;
}

double MeasureMatMulRate(const Context& ctx, DType dtype) {
  constexpr int64_t kN = 768;
  Tensor a = ctx.Empty({kN, kN}, dtype);
  Tensor b = ctx.Empty({kN, kN}, dtype);
  Tensor c = ctx.Empty({kN, kN}, dtype);
  kernels::Fill(ctx, a.mut(), 0.5);
  kernels::Fill(ctx, b.mut(), 0.5);
  double best_s = 1e30;
  for (int round = 0; round < 8; ++round) {
    const double begin = NowSeconds();
    kernels::MatMul(ctx,
                    {.a = a.view(), .b = b.view(), .bias = {}, .c = c.mut()});
    best_s = std::min(best_s, NowSeconds() - begin);
  }
  return 2.0 * kN * kN * kN / best_s;
}

double MeasureDiskWrite(const std::string& folder, int64_t nbytes) {
  const std::string path = StrCat(folder, "/.terrace-disk.", ::getpid());
  const std::vector<std::byte> block(size_t{4} << 20, std::byte{7});
  try {
    File file = File::Create(path);
    const double begin = NowSeconds();
    for (int64_t at = 0; at < nbytes; at += std::ssize(block))
      file.WriteAt(at, block);
    file.Sync();
    const double seconds = NowSeconds() - begin;
    file.Close();
    std::filesystem::remove(path);
    return static_cast<double>(nbytes) / seconds;
  } catch (...) {
    std::error_code none;
    std::filesystem::remove(path, none);
    throw;
  }
}

void PrintFacts(const std::vector<Fact>& facts) {
  size_t width = 0;
  for (const Fact& fact : facts) width = std::max(width, fact.name.size());
  for (const Fact& fact : facts)
    std::printf("%-*s  %s\n", static_cast<int>(width), fact.name.c_str(),
                fact.value.c_str());
}

}  // namespace terrace::tools
