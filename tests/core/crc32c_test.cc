#include "terrace/core/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace terrace {
namespace {

uint32_t Crc(std::string_view text, uint32_t before = 0) {
  return Crc32c(std::as_bytes(std::span(text)), before);
}

// RFC 3720, appendix B.4, and the customary check value.
TEST(Crc32cTest, MatchesPublishedValues) {
  EXPECT_EQ(Crc(""), 0u);
  EXPECT_EQ(Crc("123456789"), 0xE3069283u);
  EXPECT_EQ(Crc(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(Crc(std::string(32, '\xff')), 0x62A8AB43u);
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  EXPECT_EQ(Crc(rising), 0x46DD794Eu);
  EXPECT_EQ(Crc(falling), 0x113FDB5Cu);
}

// Oracle: the definition, bit by bit.
TEST(Crc32cTest, MatchesTheBitwiseDefinitionForEveryLength) {
  std::string text;
  uint32_t expected = 0xFFFFFFFF;
  for (int n = 0; n < 100; ++n) {
    EXPECT_EQ(Crc(text), ~expected) << n;
    text += static_cast<char>(n * 37 + 11);
    expected ^= static_cast<unsigned char>(text.back());
    for (int bit = 0; bit < 8; ++bit) {
      expected = expected & 1 ? expected >> 1 ^ 0x82F63B78 : expected >> 1;
    }
  }
}

TEST(Crc32cTest, PiecesGiveTheWhole) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const std::string_view view = text;
    EXPECT_EQ(Crc(view.substr(cut), Crc(view.substr(0, cut))), Crc(text));
  }
}

}  // namespace
}  // namespace terrace
