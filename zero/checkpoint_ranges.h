// Which ranges of which parameters a rank's data file holds: the checkpoint's
// view of the one partition function.
//
// A rank's file has, for each parameter in order of declaration, the part of
// weight, moment1 and moment2 that lies in the rank's own logical slice, also
// where the rank holds more; so all stages write the same bytes. Frozen
// parameters have weights alone. Long parts are cut, so that a reader at
// another rank count checks and reads little more than it needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "terrace/zero/checkpoint_manifest.h"
#include "terrace/zero/layout.h"

namespace terrace::zero {

// Elements of one entry at most; cuts are at its multiples in the parameter.
inline constexpr int64_t kEntryNumel = int64_t{1} << 18;

// Parameters are numbered as in the layout. A pure function; checksums are 0.
std::vector<ManifestRange> RangesOf(const Layout& layout, int moments,
                                    int ranks, int rank);

// Throws kData unless the ranges of each parameter and kind cover it without
// hole and overlap. `where` stands in the message.
void CheckCoverage(const Manifest& manifest, const std::string& where);

}  // namespace terrace::zero
