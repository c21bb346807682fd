// One training run in a process of its own, whose memory and start are its own
// alone: `terrace bench probe` trains a few steps and prints the line of JSON
// of bench_peer.h, with some more members.
//
//   terrace bench train --peer '/old/tools/terrace bench probe --init'
//
// compares two builds of Terrace: with --init, the workload is that of the
// folder that peers are given.
#pragma once

#include <string>

#include "terrace/tools/bench.h"
#include "terrace/tools/bench_workload.h"

namespace terrace::tools {

// All of one process, which began at `started_s` (NowSeconds).
struct Probe {
  std::vector<double> losses, step_s;  // step_s: the timed ones
  double startup_s = 0;                // start to end of the first step
  double main_s = 0;                   // of it, until this command began
  SteppedStart start;                  // and the run's own parts
  double first_step_s = 0;             // that step alone
  double page_faults_s = 0;            // for memory of the process's size
  double peak_rss_nbytes = 0;          // VmHWM
  double baseline_nbytes = 0;          // before there was a model
  double gauges_nbytes = 0;            // peaks of the arenas' totals
  double plan_nbytes = 0;              // the same, as planned beforehand
  double states_nbytes = 0;            // parameters, gradients, moments
};

// Runs in this process, prints.
std::string ProbeLine(const BenchOptions& options);

// Starts a child with this workload.
Probe RunProbe(const BenchOptions& options, const Workload& w, int64_t steps);

}  // namespace terrace::tools
