#include "terrace/zero/seal_check.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"

namespace terrace::zero {
namespace {

std::vector<uint64_t> ExchangeWords(Communicator& comm, std::string what,
                                    const std::vector<uint64_t>& mine) {
  std::vector<uint64_t> all(mine.size() * static_cast<size_t>(comm.size()));
  comm.Exchange({std::move(what), -1}, std::as_bytes(std::span(mine)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  return all;
}

uint64_t ParamHash(const Layout& layout, size_t index) {
  const ParamLayout& p = layout.params()[index];
  RngKey key = RngKey(0, "parameter", p.spec.name, layout.unit(p.unit).name)
                   .With(static_cast<int64_t>(p.dtype))
                   .With(p.spec.trainable ? 1 : 0);
  for (int64_t dim : p.spec.shape) key = key.With(dim);
  for (const std::string& alias : p.aliases) key = key.With(alias);
  return key.bits();
}

// What one rank declared at a place, in words.
std::string Describe(const Layout& layout, size_t index) {
  if (index >= layout.params().size()) return "nothing";
  const ParamLayout& p = layout.params()[index];
  std::string text = StrCat("'", p.spec.name, "' ", p.spec.shape, " ", p.dtype,
                            p.spec.trainable ? "" : " frozen", " in unit '",
                            layout.unit(p.unit).name, "'");
  for (const std::string& alias : p.aliases)
    text += StrCat(" tied to '", alias, "'");
  return text;
}

std::vector<std::string> ExchangeTexts(Communicator& comm,
                                       const std::string& mine) {
  std::array<char, 256> text{};  // ends with a zero
  mine.copy(text.data(), text.size() - 1);
  std::vector<char> all(text.size() * static_cast<size_t>(comm.size()));
  comm.Exchange({"declarations in words", -1}, std::as_bytes(std::span(text)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size(); at += text.size())
    texts.emplace_back(&all[at]);
  return texts;
}

}  // namespace

void CheckDeclarations(StoreState& state) {
  const Layout& layout = state.layout;
  const uint64_t count = layout.params().size();
  const std::vector<uint64_t> all =
      ExchangeWords(state.comm, "declarations", {layout.Fingerprint(), count});
  size_t least = count;
  size_t other = 0;  // a rank that differs from rank 0
  for (size_t r = 0; r < all.size() / 2; ++r) {
    least = std::min<size_t>(least, all[2 * r + 1]);
    if (other == 0 && all[2 * r] != all[0]) other = r;
  }
  if (other == 0) return;
  std::vector<uint64_t> hashes(least);
  for (size_t i = 0; i < least; ++i) hashes[i] = ParamHash(layout, i);
  const std::vector<uint64_t> each =
      ExchangeWords(state.comm, "declarations of parameters", hashes);
  size_t first = 0;
  while (first < least && each[first] == each[other * least + first]) ++first;
  const std::vector<std::string> texts =
      ExchangeTexts(state.comm, Describe(layout, first));
  TERRACE_THROW(
      ErrorCode::kCommunication, "[store] ranks 0 and ", other,
      " declared different models: the first difference is parameter ", first,
      ", which is ", texts[0], " on rank 0 and ", texts[other], " on rank ",
      other, "; every rank must build the same model");
}

void CheckEqual(Communicator& comm, std::string_view what, uint64_t value) {
  const std::vector<uint64_t> all =
      ExchangeWords(comm, StrCat("check of ", what), {value});
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] != all[0])
      TERRACE_THROW(ErrorCode::kCommunication, "[engine] ", what,
                    " must be the same on all ranks, but differs between "
                    "ranks 0 and ",
                    r);
  }
}

}  // namespace terrace::zero
