#include "terrace/zero/seal_check.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terrace/core/error.h"
#include "terrace/core/rng.h"
#include "terrace/zero/name_pattern.h"

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

std::string Describe(const Init& init) {
  switch (init.kind) {
    case Init::Kind::kConstant:
      return StrCat("constant ", init.a);
    case Init::Kind::kNormal:
      return StrCat("normal ", init.a);
    case Init::Kind::kTruncatedNormal:
      return StrCat("truncated normal ", init.a);
    case Init::Kind::kUniform:
      return StrCat("uniform ", init.a, "..", init.b);
  }
  return "?";
}

// What one rank declared at a place, in words.
std::string Describe(const Layout& layout, size_t index) {
  if (index >= layout.params().size()) return "nothing";
  const ParamLayout& p = layout.params()[index];
  std::string text = StrCat(
      "'", p.spec.name, "' ", p.spec.shape, " ", p.dtype,
      p.spec.trainable ? "" : " frozen", " in unit '", layout.unit(p.unit).name,
      "', init ", Describe(p.spec.init), ", weight decay ",
      p.group.weight_decay, ", lr scale ", p.group.lr_scale);
  for (const std::string& alias : p.aliases)
    text += StrCat(", tied to '", alias, "'");
  return text;
}

// Every rank's text; what is longer than a few hundred bytes is cut.
std::vector<std::string> ExchangeTexts(Communicator& comm, std::string what,
                                       const std::string& mine) {
  std::array<char, 1024> text{};  // ends with a zero
  mine.copy(text.data(), text.size() - 1);
  std::vector<char> all(text.size() * static_cast<size_t>(comm.size()));
  comm.Exchange({std::move(what), -1}, std::as_bytes(std::span(text)),
                std::as_writable_bytes(std::span(all)))
      .Wait();
  std::vector<std::string> texts;
  for (size_t at = 0; at < all.size(); at += text.size())
    texts.emplace_back(&all[at]);
  return texts;
}

struct Difference {
  size_t first = 0;  // of the items that differ
  size_t other = 0;  // a rank where it does, compared with rank 0
};

// Lists are compared by one hash; only when it differs item by item.
std::optional<Difference> FindDifference(Communicator& comm,
                                         const std::string& what,
                                         const std::vector<uint64_t>& items) {
  RngKey key(0, "list");
  for (uint64_t item : items) key = key.With(item);
  const std::vector<uint64_t> all =
      ExchangeWords(comm, what, {key.bits(), items.size()});
  size_t least = items.size();
  Difference found;
  for (size_t r = 0; r < all.size() / 2; ++r) {
    least = std::min<size_t>(least, all[2 * r + 1]);
    if (found.other == 0 && all[2 * r] != all[0]) found.other = r;
  }
  if (found.other == 0) return std::nullopt;
  if (least == 0) return found;
  const std::vector<uint64_t> each = ExchangeWords(
      comm, what + ", one by one", {items.begin(), items.begin() + least});
  while (found.first < least &&
         each[found.first] == each[found.other * least + found.first])
    ++found.first;
  return found;
}

std::string NearestParameter(const Layout& layout, std::string_view pattern) {
  std::string plain;  // without what is syntax more often than name
  for (const char c : pattern)
    if (std::string_view("^$\\*+?()[]{}|").find(c) == std::string_view::npos)
      plain += c;
  const std::string* nearest = nullptr;
  int least = 0;
  for (const ParamLayout& p : layout.params()) {
    const int distance = internal::EditDistance(plain, p.spec.name);
    if (nearest != nullptr && distance >= least) continue;
    nearest = &p.spec.name;
    least = distance;
  }
  return nearest == nullptr ? "" : *nearest;
}

}  // namespace

void CheckDeclarations(const StoreState& state) {
  const Layout& layout = state.layout;
  std::vector<uint64_t> hashes;
  for (size_t i = 0; i < layout.params().size(); ++i)
    hashes.push_back(layout.Fingerprint(static_cast<ParamId>(i)));
  if (const auto found = FindDifference(state.comm, "declarations", hashes)) {
    const std::vector<std::string> texts = ExchangeTexts(
        state.comm, "declarations in words", Describe(layout, found->first));
    TERRACE_THROW(ErrorCode::kCommunication, "[store] ranks 0 and ",
                  found->other,
                  " declared different models: the first difference is "
                  "parameter ",
                  found->first, ", which is ", texts[0], " on rank 0 and ",
                  texts[found->other], " on rank ", found->other,
                  "; every rank must build the same model");
  }
  if (state.comm.size() == 1) return;
  for (const ParamLayout& p : layout.params())
    TERRACE_CHECK(p.dtype != DType::kF64, "[store] parameter '", p.spec.name,
                  "' must be f32 or bf16 with ", state.comm.size(),
                  " ranks, got f64: it is a test dtype of one rank");
}

void CheckEqual(Communicator& comm, std::string_view what,
                std::span<const NamedText> items) {
  const std::string tag = StrCat("check of ", what);
  std::vector<uint64_t> hashes;
  for (const NamedText& item : items)
    hashes.push_back(RngKey(0, "item", item.name, item.text).bits());
  const auto found = FindDifference(comm, tag, hashes);
  if (!found) return;
  const auto text = [&](const std::string NamedText::*part) {
    return found->first < items.size() ? items[found->first].*part : "absent";
  };
  const auto names =
      ExchangeTexts(comm, tag + ", the name", text(&NamedText::name));
  const auto texts =
      ExchangeTexts(comm, tag + ", the value", text(&NamedText::text));
  const size_t r = found->other;
  // Items may differ in number or order: then each rank's own name counts.
  const bool one_name = names[0] == names[r];
  TERRACE_THROW(
      ErrorCode::kCommunication, "[engine] ", what,
      " must be the same on all ranks, but differs between ranks 0 and ", r,
      ": ", one_name ? names[0] + " is " : "there is ",
      one_name ? "" : names[0] + " = ", texts[0], " on rank 0 and ",
      one_name ? "" : names[r] + " = ", texts[r], " on rank ", r);
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

void CheckGroups(const Layout& layout, std::span<const std::string> patterns) {
  for (size_t i = 0; i < patterns.size(); ++i) {
    const NamePattern pattern(patterns[i]);
    const bool matches = std::ranges::any_of(
        layout.params(),
        [&](const ParamLayout& p) { return pattern.IsIn(p.spec.name); });
    if (!matches)
      TERRACE_THROW(ErrorCode::kConfig, "[config] terrace.parameter_groups[", i,
                    "].match must be found in the name of a parameter, '",
                    patterns[i], "' is in none; the nearest name is '",
                    NearestParameter(layout, patterns[i]), "'");
  }
}

}  // namespace terrace::zero
