#include "terrace/tools/output.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace::tools {
namespace {

TEST(OutputTest, ATerminalIsShownControlCharactersAndDoesNotObeyThem) {
  // Clears the screen, rings, returns, deletes.
  EXPECT_EQ(ForTerminal("a\x1b[2J\a\r\x7f"), "a\\x1b[2J\\x07\\x0d\\x7f");
  EXPECT_EQ(ForTerminal(std::string("\0b", 2)), "\\x00b");
  // U+009B begins a sequence as ESC [ does.
  EXPECT_EQ(ForTerminal("\xC2\x9B"
                        "2J"),
            "\\xc2\\x9b2J");
}

TEST(OutputTest, TextStaysAsItIs) {
  const std::string text =
      "lines\n\tand tabs, \xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xC2\xA0 \\x";
  EXPECT_EQ(ForTerminal(text), text);
}

}  // namespace
}  // namespace terrace::tools
