#include "terrace/models/text_data.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "terrace/core/counted.h"
#include "terrace/core/error.h"
#include "terrace/core/file.h"
#include "terrace/core/rng.h"

namespace terrace::models {
namespace {

namespace fs = std::filesystem;

// A file's text: mapped, or read where there is nothing to map (/proc).
class TextFile {
 public:
  explicit TextFile(const std::string& path) {
    std::error_code none;  // opening it says what is wrong
    if (fs::is_regular_file(path, none) && fs::file_size(path, none) > 0)
      map_.emplace(path);
    else
      read_ = ReadFile(path);
  }
  // Lives as long as the object stays where it is.
  std::string_view text() const {
    if (!map_.has_value()) return read_;
    return {reinterpret_cast<const char*>(map_->bytes().data()),
            map_->bytes().size()};
  }

 private:
  std::optional<MappedFile> map_;
  std::string read_;
};

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n\f\v") == std::string_view::npos;
}

// A glob that matches only below `base`, whatever its name looks like.
std::string Below(const std::string& base, const std::string& pattern) {
  const fs::path plain = fs::path(base) / pattern;  // an absolute pattern wins
  std::error_code none;
  if (base.empty() || fs::path(pattern).is_absolute() ||
      fs::exists(plain, none)) {
    return plain.string();
  }
  std::string escaped;
  for (char c : base) {
    escaped += c == '*' || c == '?' || c == '[' ? std::string{'[', c, ']'}
                                                : std::string{c};
  }
  return (fs::path(escaped) / pattern).string();
}

// What the system refuses names the key: "[data.train] cannot open PATH: ...".
template <class F>
decltype(auto) Of(std::string_view where, const F& fn) {
  try {
    return fn();
  } catch (const Error& e) {
    constexpr std::string_view kFile = "[file] ";
    std::string_view text = e.message();
    if (e.code() != ErrorCode::kIo || !text.starts_with(kFile)) throw;
    text.remove_prefix(kFile.size());
    TERRACE_THROW(e.code(), "[", where, "] ", text);
  }
}

// A file by what it is, whatever it is called: device and number.
using FileId = std::pair<uint64_t, uint64_t>;

// "" for a regular file and for one that is not there: opening it says so.
std::string_view WhatElse(const fs::file_status& status) {
  switch (status.type()) {
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::character:
    case fs::file_type::block:
      return "a device";
    case fs::file_type::socket:
      return "a socket";
    default:
      return "";
  }
}

// The files of one key.
struct TextFiles {
  std::deque<TextFile> files;  // they stay where they are
  std::map<FileId, std::string> paths;
  std::vector<std::string> again;  // what names one of them a second time
};

void OpenFile(std::string_view where, const std::string& path,
              TextFiles* found) {
  std::error_code none;  // the read below says what is wrong
  const fs::file_status status = fs::status(path, none);
  if (fs::is_directory(status)) {
    TERRACE_THROW(ErrorCode::kData, "[", where,
                  "] each pattern must match files, got folder \"", path,
                  "\"; its files are \"", path, "/*\"");
  }
  if (!WhatElse(status).empty()) {
    TERRACE_THROW(ErrorCode::kData, "[", where,
                  "] each file must be a regular file, got \"", path, "\", ",
                  WhatElse(status));
  }
  struct stat id = {};
  if (::stat(path.c_str(), &id) == 0) {
    const auto [first, is_new] =
        found->paths.emplace(FileId(id.st_dev, id.st_ino), path);
    if (!is_new) {
      found->again.push_back(
          StrCat("\"", first->second, "\"",
                 path == first->second ? "" : " (as \"" + path + "\")"));
      return;
    }
  }
  const std::string_view text = Of(where, [&]() -> TextFile& {
                                  return found->files.emplace_back(path);
                                }).text();
  if (SplitDocuments(text).empty()) {
    TERRACE_THROW(ErrorCode::kData, "[", where,
                  "] each file must hold text, got \"", path, "\" of ",
                  text.size(), " bytes without any");
  }
}

// `where` is the key of the run file that holds the patterns.
TextFiles OpenFiles(std::string_view where,
                    const std::vector<std::string>& patterns,
                    const std::string& base) {
  TextFiles found;
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> paths =
        Of(where, [&] { return ExpandGlob(Below(base, pattern)); });
    if (paths.empty()) {
      TERRACE_THROW(ErrorCode::kData, "[", where,
                    "] each pattern must match a file, got \"", pattern,
                    "\", which matches none",
                    base.empty() ? "" : " (looked in \"" + base + "\")");
    }
    for (const std::string& path : paths) OpenFile(where, path, &found);
  }
  return found;
}

// The first three, and how many more there are.
std::string Some(const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    out += StrCat(i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kMost)
    out += StrCat(" and ", names.size() - kMost, " more");
  return out;
}

void AddNotices(const TextFiles& train, const TextFiles& validation,
                std::vector<std::string>* notices) {
  for (const auto& [key, files] : {std::pair("data.train", &train),
                                   std::pair("data.validation", &validation)}) {
    if (files->again.empty()) continue;
    notices->push_back(StrCat(key, " names more than once: ",
                              Some(files->again), "; each file counts once"));
  }
  std::vector<std::string> both;
  for (const auto& [id, path] : validation.paths) {
    if (train.paths.contains(id)) both.push_back("\"" + path + "\"");
  }
  std::ranges::sort(both);  // by name, not by number
  if (both.empty()) return;
  notices->push_back(StrCat("data.train and data.validation both name ",
                            Some(both),
                            ": the held-out loss is in part of trained text"));
}

// `key`, and the text behind it.
uint64_t TextFingerprint(RngKey key, const TextFiles& train,
                         const TextFiles& validation) {
  key = key.With(train.files.size());
  for (const TextFile& file : train.files) key = key.With(file.text());
  for (const TextFile& file : validation.files) key = key.With(file.text());
  return key.bits();
}

std::vector<std::string_view> AllDocuments(const std::deque<TextFile>& files) {
  std::vector<std::string_view> documents;
  for (const TextFile& file : files) {
    for (std::string_view document : SplitDocuments(file.text())) {
      documents.push_back(document);
    }
  }
  return documents;
}

// Where a single document is cut: after the last line that ends within its
// first `share`, else at a character's first byte.
size_t CutPosition(std::string_view text, double share) {
  const auto size = static_cast<double>(text.size());
  size_t cut = static_cast<size_t>(size * share);
  const size_t line_end = text.substr(0, cut).rfind('\n');
  if (line_end != std::string_view::npos) return line_end + 1;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) {
    --cut;
  }
  return cut;
}

struct Split {
  std::vector<std::string_view> train, validation;
};

Split HoldOut(const std::vector<std::string_view>& documents, double fraction,
              uint64_t seed) {
  if (fraction == 0) return {documents, {}};
  if (documents.size() == 1) {
    const std::string_view text = documents.front();
    const size_t cut = CutPosition(text, 1 - fraction);
    if (cut == 0 || cut == text.size()) return {documents, {}};
    return {{text.substr(0, cut)}, {text.substr(cut)}};
  }
  const auto count = static_cast<int64_t>(documents.size());
  const int64_t held = std::clamp<int64_t>(
      std::llround(fraction * static_cast<double>(count)), 1, count - 1);
  const RngKey key(seed, "held-out documents");
  Split split;
  for (int64_t i = 0; i < count; ++i) {
    const bool is_held = PermuteIndex(key, count, i) < held;
    (is_held ? split.validation : split.train).push_back(documents[i]);
  }
  return split;
}

TokenDataset Build(const std::vector<std::string_view>& documents,
                   const Tokenizer& tokenizer,
                   const TokenDataset::Options& options) {
  // A token stands for a byte or more: memory beyond what is used is reserved
  // and never touched.
  size_t most = documents.size();
  for (std::string_view document : documents) most += document.size();
  TokenVector tokens(tokenizer.vocab_size(), options.name);
  tokens.Reserve(static_cast<int64_t>(most));
  const int32_t end = tokenizer.end_of_text();
  for (std::string_view document : documents) {
    tokenizer.EncodeTo(
        document, [&](std::span<const int32_t> ids) { tokens.Append(ids); });
    tokens.Append({&end, 1});
  }
  return TokenDataset(std::move(tokens), options);
}

}  // namespace

std::vector<std::string_view> SplitDocuments(std::string_view text) {
  std::vector<std::string_view> documents;
  size_t document = 0;  // start of the current one
  const auto keep = [&](size_t end) {
    const std::string_view found = text.substr(document, end - document);
    if (!IsBlank(found)) documents.push_back(found);
  };
  for (size_t line = 0; line < text.size();) {
    const size_t end = std::min(text.find('\n', line), text.size());
    const std::string_view content = text.substr(line, end - line);
    const size_t next = std::min(end + 1, text.size());
    if (content == "%" || content == "%\r") {
      keep(line);
      document = next;
    }
    line = next;
  }
  keep(text.size());
  return documents;
}

TextData LoadTextData(const TextDataOptions& options,
                      const Tokenizer& tokenizer) {
  TERRACE_CHECK(!options.train.empty(),
                "[data.train] must name at least one file, got none");
  TERRACE_CHECK(
      options.validation_fraction >= 0 && options.validation_fraction < 1,
      "[data] validation_fraction must be in [0, 1), got ",
      options.validation_fraction);
  const TextFiles train = OpenFiles("data.train", options.train, options.base);
  const TextFiles validation =
      OpenFiles("data.validation", options.validation, options.base);

  Split split;
  if (validation.files.empty()) {
    split = HoldOut(AllDocuments(train.files), options.validation_fraction,
                    options.seed);
  } else {
    split = {AllDocuments(train.files), AllDocuments(validation.files)};
  }

  TextData data;
  data.train_documents = static_cast<int64_t>(split.train.size());
  data.validation_documents = static_cast<int64_t>(split.validation.size());
  data.train = Build(split.train, tokenizer,
                     {.sequence_length = options.sequence_length,
                      .seed = options.seed,
                      .name = "data.train"});
  if (!split.validation.empty()) {
    data.validation = Build(split.validation, tokenizer,
                            {.sequence_length = options.sequence_length,
                             .seed = options.seed,
                             .keep_partial = true,
                             .name = "data.validation"});
  }

  data.text_fingerprint = TextFingerprint(RngKey(0, "text"), train, validation);
  data.fingerprint = TextFingerprint(
      RngKey(options.seed, "text data", tokenizer.name(),
             tokenizer.vocab_size(), options.sequence_length,
             std::bit_cast<uint64_t>(options.validation_fraction)),
      train, validation);
  AddNotices(train, validation, &data.notices);
  const int64_t held = data.validation.token_count(),
                trained = data.train.token_count();
  if (validation.files.empty() && held > trained)
    data.notices.push_back(StrCat(
        "holds out ", held, " of ", held + trained,
        " tokens, more than it trains on: documents stay whole, and the ",
        Counted(data.validation_documents, "document"),
        " drawn are long; data.validation or another seed chooses others"));
  return data;
}

TokenDataset LoadText(const std::vector<std::string>& patterns,
                      const Tokenizer& tokenizer,
                      const TokenDataset::Options& options) {
  const TextFiles found = OpenFiles(options.name, patterns, "");
  return Build(AllDocuments(found.files), tokenizer, options);
}

}  // namespace terrace::models
