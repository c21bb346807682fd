// The floating-point environment that every thread of a rank computes in:
// subnormals flushed to zero, so that neither speed nor bits depend on the
// thread (decision G6). x86 MXCSR FTZ and DAZ, Arm FPCR.FZ.
#pragma once

namespace terrace {

void SetFlushToZero();
bool FlushesToZero();

}  // namespace terrace
