// What a step cost: measured on each rank, agreed on, and written as one line
// of metrics.jsonl.
//
//   StepMeter meter(engine);
//   meter.Begin();
//   ... backward, step ...
//   StepMetrics metrics = meter.End(result);      // collective
//   MetricsFile file("runs/a/metrics.jsonl", /*keep_until=*/0);
//   file.Append(ToJson(metrics));
//
// Times and memory are the greatest of all ranks, tokens and samples those of
// all ranks together, bytes sent those of the rank that sent most. The meter
// belongs to its rank; its own exchange counts in no line.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "terrace/core/file.h"
#include "terrace/core/memory.h"
#include "terrace/zero/engine.h"

namespace terrace::models {

struct StepMetrics {
  zero::StepResult step;      // no NaN in it has a sign: it prints as "nan"
  int64_t skipped_steps = 0;  // of the run so far
  double tokens = 0;          // of this step: what the loss is a mean over
  double samples_per_s = 0;
  double step_time_s = 0;
  double comm_time_s = 0;     // the communication thread at work
  double comm_exposed_s = 0;  // of that, what computation waited for
  double comm_fraction = 0;   // exposed / step time
  double io_time_s = 0;
  struct Bytes {
    std::string name;
    int64_t nbytes = 0;
  };
  std::vector<Bytes> comm_bytes;     // by operation
  std::vector<MemoryReport> memory;  // device and host; peaks since the start
};

// One line, without its end.
std::string ToJson(const StepMetrics& metrics);

class StepMeter {
 public:
  explicit StepMeter(zero::Engine& engine) : engine_(engine) {}

  void Begin();
  StepMetrics End(const zero::StepResult& result);
  // The numbers of the last step as this rank saw them: not collective.
  const StepMetrics& own() const { return own_; }

 private:
  zero::Engine& engine_;
  double begin_s_ = 0;
  zero::CommunicationStats before_;
  StepMetrics own_;
};

// A file of lines that begin {"step":N, growing by one a step.
class MetricsFile {
 public:
  // Of what the file holds already, lines up to step `keep_until` stay: a
  // resumed run writes the steps after its checkpoint again. Later lines, and
  // damaged ones wherever they stand, are appended to PATH.dropped, and are on
  // the disk before they go; but for a last line that a kill cut short, which
  // is lost.
  MetricsFile(const std::string& path, int64_t keep_until,
              const File::Calls& calls = internal::SystemFileCalls());
  // Throws kIo where another file, or none, has its path by now: whoever
  // removed it or its folder does not get the lines.
  void Append(const std::string& line);
  struct Dropped {
    int64_t lines = 0;       // of later steps, in PATH.dropped
    int64_t damaged = 0;     // lines that no step wrote so, there too
    int64_t cut_nbytes = 0;  // of the line cut short
    int64_t cut_step = 0;    // its step; 0: not known
  };
  const Dropped& dropped() const { return dropped_; }
  const std::string& path() const { return file_.path(); }

 private:
  void CheckThere() const;

  File file_;
  int64_t nbytes_ = 0;
  Dropped dropped_;
};

// A NaN without its sign, which printf would show.
double WithoutNanSign(double value);

// The middle value; of an even number of values, the mean of the two.
double Median(std::vector<double> values);

}  // namespace terrace::models
