// What loading text costs in memory, by counting what operator new hands out.
// Mapped files are not among it.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include "terrace/core/error.h"
#include "terrace/models/text_data.h"

namespace {

std::atomic<int64_t> now_nbytes = 0, peak_nbytes = 0;

}  // namespace

void* operator new(size_t nbytes) {
  void* p = std::malloc(nbytes);
  if (p == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(p));
  const int64_t now = now_nbytes.fetch_add(size) + size;
  int64_t peak = peak_nbytes;
  while (now > peak && !peak_nbytes.compare_exchange_weak(peak, now)) {
  }
  return p;
}

void operator delete(void* p) noexcept {
  if (p == nullptr) return;
  now_nbytes -= static_cast<int64_t>(malloc_usable_size(p));
  std::free(p);
}

void operator delete(void* p, size_t) noexcept { operator delete(p); }

namespace terrace::models {
namespace {

constexpr int64_t kSlack = 64 << 10;  // paths, streams, a piece of ids

// `documents` of `lines` lines of 64 bytes each.
std::string Write(const std::string& name, int documents, int lines) {
  const std::string path = ::testing::TempDir() + "/terrace_" + name;
  std::ofstream file(path, std::ios::binary);
  for (int d = 0; d < documents; ++d) {
    for (int i = 0; i < lines; ++i)
      file << std::string(63, static_cast<char>('a' + i % 26)) << '\n';
    file << "%\n";
  }
  return path;
}

TEST(TextMemoryTest, LoadingTakesTwoBytesAToken) {
  const auto tokenizer = MakeTokenizer("byte");
  for (const auto& [documents, lines] : {std::pair(1, 32768), {512, 64}}) {
    SCOPED_TRACE(documents);
    const std::string path = Write(StrCat("text", documents), documents, lines);
    TextDataOptions options;
    options.train = {path};
    options.sequence_length = 64;
    const int64_t before = now_nbytes;
    peak_nbytes = before;
    const TextData data = LoadTextData(options, *tokenizer);
    const int64_t tokens =
        data.train.token_count() + data.validation.token_count();
    EXPECT_GE(tokens, int64_t{documents} * lines * 64);
    EXPECT_LE(peak_nbytes - before, 2 * tokens + kSlack);

    const int64_t loaded = now_nbytes;
    peak_nbytes = loaded;
    const TokenDataset whole = LoadText(
        {path}, *tokenizer, {.sequence_length = 64, .keep_partial = true});
    EXPECT_EQ(whole.token_count(), int64_t{documents} * (lines * 64 + 1));
    EXPECT_LE(peak_nbytes - loaded, 2 * whole.token_count() + kSlack);
  }
}

}  // namespace
}  // namespace terrace::models
