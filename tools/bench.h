// The rows of `terrace bench`: each measures one thing and says what bounds it.
//
// A row is a table line and an object of the JSON output, from the same
// numbers. Times are medians of several rounds; what a row is judged by is a
// ratio, never a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace terrace::tools {

struct BenchNumber {
  std::string name;  // "step_s", "share"
  double value = 0;
};

struct BenchRow {
  std::string bench;  // "matmul", "adamw", ...
  std::string what;   // the workload
  std::vector<BenchNumber> numbers;
  std::string note = {};  // why a number is not there, or what misses its aim
};

struct BenchOptions {
  int threads = 1;
  int rounds = 5;

  // Of a model, and of what single ops are given: "" and 0 leave it to the row.
  // Which row reads what stands in cmd_bench.cc.
  std::string preset, dtype, recompute;
  int64_t batch = 0, sequence = 0, layers = 0, width = 0, vocab = 0;
  int64_t steps = 0;                    // timed ones, of a round
  std::optional<double> clip = {};      // absent: the row's
  std::vector<std::string> peers = {};  // commands, see bench_peer.h
  std::string save_init = {};           // a folder, see bench_init.h
  std::string init = {};                // of a probe: the same
  int64_t ranks = 0, stage = -1;        // of a probe
};

// The limits of this machine, by one thread and by all (machine_limits.h).
std::vector<BenchRow> BenchCard(const BenchOptions& options);
// The three products of each Linear of a GPT-2 block and of the head, over the
// multiply-add peak (--sequence, --width, --vocab, --dtype choose).
std::vector<BenchRow> BenchMatMul(const BenchOptions& options);
// Causal attention with GPT-2's heads, over the rate of a large product of the
// same dtype (--sequence, --dtype choose).
std::vector<BenchRow> BenchAttention(const BenchOptions& options);
// Bytes per time over the read-modify-write bandwidth, in turn with it: layer
// norm and column sums; GELU in both forms, SiLU and addition; softmax; AdamW
// (case B148, with the share of a copy) and the norm before it. --sequence rows
// of --width, but for AdamW.
std::vector<BenchRow> BenchNorm(const BenchOptions& options);
std::vector<BenchRow> BenchGelu(const BenchOptions& options);
std::vector<BenchRow> BenchSoftmax(const BenchOptions& options);
std::vector<BenchRow> BenchAdamW(const BenchOptions& options);
// The fused head and loss over its three products alone, 1024 and 4096 tokens
// (--sequence, --vocab, --width, --dtype choose others), in turn with them.
std::vector<BenchRow> BenchHead(const BenchOptions& options);
// Case B150: 5 ms added to each collective, 2 ranks, 8 layers, overlap on and
// off, against max(compute, communication). --layers chooses others.
std::vector<BenchRow> BenchOverlap(const BenchOptions& options);
// Training steps of a small GPT at ZeRO stages 0 to 3 on two ranks.
std::vector<BenchRow> BenchStep(const BenchOptions& options);
// Steps of GPT-2 124M against the floor of bench_floor.h and against peers;
// bf16 over f32 in pairs.
std::vector<BenchRow> BenchTrain(const BenchOptions& options);
// Steps at ZeRO stages 1 to 3 over those at stage 0, two ranks of one thread,
// turn by turn.
std::vector<BenchRow> BenchStages(const BenchOptions& options);
// Gathers and reductions of two thread ranks, as a share of the bandwidth.
std::vector<BenchRow> BenchCollectives(const BenchOptions& options);
// Resident sizes against the gauges, of a process each (bench_probe.h).
std::vector<BenchRow> BenchMemory(const BenchOptions& options);
// Process start to the end of the first step, against peers'.
std::vector<BenchRow> BenchStartup(const BenchOptions& options);

}  // namespace terrace::tools
