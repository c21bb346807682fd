// Terrace's version, in this one place: `terrace --version` prints it.
#pragma once

namespace terrace {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace terrace
