// Text files to token datasets: globs, documents, the held-out split.
//
//   TextData data = LoadTextData({.train = {"corpus/*.txt"},
//                                 .base = folder_of_the_run_file,
//                                 .sequence_length = 128,
//                                 .seed = 1}, tokenizer);
//   data.train.TrainBatch(cursor, 32);
//
// A file is split into documents, each followed by end-of-text. The result is a
// function of file contents and settings: every rank reads the same. Files are
// mapped, not read, and tokens go straight into the dataset's vector: the
// memory is what that takes, about 2 bytes a token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/models/token_dataset.h"
#include "terrace/models/tokenizer.h"

namespace terrace::models {

struct TextDataOptions {
  std::vector<std::string> train;       // globs
  std::vector<std::string> validation;  // globs; none: held out of `train`
  std::string base;                     // folder that relative globs start from
  int64_t sequence_length = 0;
  uint64_t seed = 0;
  // The share of documents held out where no validation files are given: at
  // least one document. Of a text that is one document, its end. 0 holds out
  // nothing.
  double validation_fraction = 0.05;
};

struct TextData {
  TokenDataset train;
  TokenDataset validation;  // may be empty()
  int64_t train_documents = 0;
  int64_t validation_documents = 0;
  // Of file contents and settings; equal on all ranks and across a resume.
  uint64_t fingerprint = 0;
  // Of file contents alone, and which of them are trained on.
  uint64_t text_fingerprint = 0;
  // Files that are named twice, in one list or in both; and where so few
  // documents differ so much that most of the text is held out.
  std::vector<std::string> notices;
};

// Reads the files, in the order of the patterns and by name within one; of each
// of the two lists, a file reached twice (by two patterns or by a link) counts
// once. Throws kData naming the pattern that matches no file, the file that is
// no regular one or has no text, or the split that is too short; kIo with the
// key for a file that cannot be read.
TextData LoadTextData(const TextDataOptions& options,
                      const Tokenizer& tokenizer);

// All text of the files that match `patterns`, in order, nothing held out.
// Throws as LoadTextData does, naming options.name.
TokenDataset LoadText(const std::vector<std::string>& patterns,
                      const Tokenizer& tokenizer,
                      const TokenDataset::Options& options);

// The documents of a file: what lines of a single '%' separate (the format of
// fortune), the whole file where it has none; blank ones are left out. Views
// into `text`.
std::vector<std::string_view> SplitDocuments(std::string_view text);

}  // namespace terrace::models
