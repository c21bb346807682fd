// What the commands write to the standard output.
//
//   PrintText(sample);    // of a model: any bytes
//   ...
//   CheckOutput();        // at the end of main: did all of it arrive?
//
// A full disk is an error of the command, kIo; a reader that went away is not:
// `terrace train | head` trains to its end.
#pragma once

#include <string>
#include <string_view>

namespace terrace::tools {

// Text that a terminal shows and does not obey: control characters, all but
// newline and tab, as \xNN. Those of UTF-8 beyond ASCII (U+0080 to U+009F)
// count as such; a character must not be cut in two.
std::string ForTerminal(std::string_view text);

// As ForTerminal has it where the standard output is a terminal, byte for byte
// anywhere else. Flushes. Throws kIo.
void PrintText(std::string_view text);

// Flushes; throws kIo when something that was printed could not be written.
void CheckOutput();

}  // namespace terrace::tools
