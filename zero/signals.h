// SIGINT, SIGTERM and SIGHUP as a request: finish the step, save, end.
//
//   zero::InstallStopSignals();                    // in main, before Launch
//   if (zero::StopSignal() != 0) engine.RequestStop();
//   ...
//   return zero::StopSignal() != 0 ? 128 + zero::StopSignal() : 0;
//
// The handlers only take note. The second signal, of either kind, ends the
// process at once, as it would have without us: nobody is locked in. Signals
// belong to the process, so what arrived is the one value here that all ranks
// share. A SIGHUP that is ignored already (nohup) stays so. SIGPIPE is ignored:
// a reader of the output that goes away does not end a training run.
#pragma once

namespace terrace::zero {

// Until the first signal. May be called again, to wait for the next one.
void InstallStopSignals();

// The number of the signal that arrived, or 0. From any thread.
int StopSignal() noexcept;

}  // namespace terrace::zero
