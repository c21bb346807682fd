// The safetensors container: 8 bytes of header length, a JSON header, data.
//
//   const SafetensorsReader in("model.safetensors");
//   std::span<const std::byte> wte = in.Data("wte.weight");
//
//   SafetensorsWriter out("out.safetensors",
//                         {{"w", DType::kF32, {2, 3}}}, {{"format", "pt"}});
//   out.Write("w", first_half);
//   out.Write("w", second_half);
//   out.Finish();                     // only now does the file exist
//
// Little-endian; values are not converted. The container allows data at any
// byte, so a span may be unaligned for its dtype: copy with memcpy. A reader
// may be used by several threads at once, a writer by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "terrace/core/dtype.h"
#include "terrace/core/file.h"

namespace terrace {

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // {} is a scalar; a 0 makes an empty tensor
  int64_t offset = 0;          // bytes from the start of the data section
  int64_t nbytes = 0;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

// Checks the whole header: length and syntax, names once, known dtypes, shape
// times dtype equal to the range, ranges that tile the data section without
// overlap, hole or rest. Throws kData with path and reason, kIo when the file
// cannot be opened.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  // In the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::string& path() const { return file_.path(); }

  // nullptr when there is none of that name.
  const SafetensorsEntry* Find(std::string_view name) const;
  // Throws kNotFound with the nearest name.
  const SafetensorsEntry& Entry(std::string_view name) const;
  // Lives as long as the reader.
  std::span<const std::byte> Data(std::string_view name) const;
  std::span<const std::byte> Data(const SafetensorsEntry& entry) const;

 private:
  MappedFile file_;
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;  // name to entry
  std::span<const std::byte> data_;
};

// Declares every entry first (offset and nbytes are computed), then takes the
// bytes in that order, in pieces of any length: memory stays bounded. The file
// appears under its name when Finish returns; without it, nothing remains.
// Throws kInvalidArgument on a call that cannot be right, kIo on a failed one.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path,
                    std::vector<SafetensorsEntry> entries,
                    const SafetensorsMetadata& metadata = {});

  // The next bytes of `name`, the first entry that is not complete yet.
  void Write(std::string_view name, std::span<const std::byte> bytes);
  // Checks that all bytes came; fsync, then the file gets its name.
  void Finish();

  // As declared, with their offsets.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }

 private:
  void SkipComplete();

  std::string path_;
  std::vector<SafetensorsEntry> entries_;
  AtomicFile file_;
  int64_t data_begin_ = 0;  // in the file
  size_t current_ = 0;
  int64_t written_ = 0;  // bytes of the current entry
  bool finished_ = false;
};

}  // namespace terrace
