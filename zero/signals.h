// SIGINT, SIGTERM and SIGHUP as a request: finish the step, save, end.
//
//   zero::InstallStopSignals({.line = "stopped before the first step\n",
//                             .at_once = true});    // in main, before Launch
//   ... when the engine stands ...
//   zero::InstallStopSignals({.line = "saving after this step\n"});
//   if (zero::StopSignal() != 0) engine.RequestStop();
//   ...
//   return zero::StopSignal() != 0 ? 128 + zero::StopSignal() : 0;
//
// The handlers write the line and take note. The second signal, of either kind,
// ends the process at once, as it would have without us: nobody is locked in.
// Signals belong to the process, so what arrived is the one value here that all
// ranks share. What is ignored already (nohup, trap "" INT, a script's jobs in
// the background) stays so. SIGPIPE is ignored: a reader of the output that
// goes away does not end a training run.
#pragma once

namespace terrace::zero {

struct StopSignalOptions {
  // Written to standard error at the first signal; a literal, it is read by the
  // handler.
  const char* line = nullptr;
  // The first signal too ends the process: while there is nothing to save.
  bool at_once = false;
};

// Until the first signal. May be called again, to wait for the next one.
void InstallStopSignals(const StopSignalOptions& options = {});

// The number of the signal that arrived, or 0. From any thread.
int StopSignal() noexcept;

}  // namespace terrace::zero
