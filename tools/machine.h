// What this machine is and can do: for `doctor` and the head of every
// benchmark.
//
//   for (const Fact& fact : MachineFacts(ctx)) Print(fact.name, fact.value);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/core/context.h"

namespace terrace::tools {

struct Fact {
  std::string name, value;
};

// Processor, cores, memory, what computes; nothing is measured.
std::vector<Fact> MachineFacts(const Context& ctx);

// One line: the version, how and by what this was built, what computes.
std::string VersionLine();

// Bytes read and written per second by copying memory with all threads: the
// best of several rounds over more than the caches hold.
double MeasureCopyBandwidth(const Context& ctx);

// Operations per second of a large matrix product, the best of several.
double MeasureMatMulRate(const Context& ctx, DType dtype = DType::kF32);

// Bytes per second of writing and syncing `nbytes` to a file in `folder`, which
// is removed again. Throws kIo.
double MeasureDiskWrite(const std::string& folder, int64_t nbytes);

void PrintFacts(const std::vector<Fact>& facts);

}  // namespace terrace::tools
