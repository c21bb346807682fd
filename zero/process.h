// What a process that runs ranks asks of whoever started it.
//
// Standard descriptors: where 0, 1 or 2 are closed (`terrace train >&-`), the
// next files opened would take their numbers, and what is printed would go into
// a checkpoint. HoldStandardDescriptors fills the gaps, for reading alone:
// input is empty, and output fails (EBADF) and is noticed.
//
// Size limits: a write beyond `ulimit -f` would end the process by SIGXFSZ in
// silence. ReportFileSizeLimit ignores the signal, so that the write fails with
// EFBIG and its error names the file; a handler of the caller's own stays.
//
// Launchers: mpirun and its like start N processes of one job. Ranks are
// threads here, so each would train alone, all of them into one folder.
// LauncherRefusal names the variable that says so and both numbers, or is "".
#pragma once

#include <string>

namespace terrace::zero {

// Call first in main; Launch does it too.
void HoldStandardDescriptors() noexcept;

// For main, beside it.
void ReportFileSizeLimit() noexcept;

// `ranks` of this process. "" without a launcher, or with one process.
std::string LauncherRefusal(int ranks);

}  // namespace terrace::zero
