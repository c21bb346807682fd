#include "terrace/core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "terrace/core/error.h"
#include "terrace/core/json_writer.h"

namespace terrace {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the container is little-endian and is mapped as it is");

using Json = nlohmann::json;

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's bound
constexpr char kMetadataKey[] = "__metadata__";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {
    {DType::kF64, "F64"},   {DType::kF32, "F32"}, {DType::kF16, "F16"},
    {DType::kBF16, "BF16"}, {DType::kI64, "I64"}, {DType::kI32, "I32"},
    {DType::kU8, "U8"},
};

std::string_view NameInFile(DType dtype) {
  for (const DTypeName& row : kDTypeNames) {
    if (row.dtype == dtype) return row.name;
  }
  TERRACE_THROW(ErrorCode::kInternal, "[safetensors] no name for dtype ",
                dtype);
}

template <class... Parts>
[[noreturn]] void Malformed(const std::string& path, const Parts&... reason) {
  TERRACE_THROW(ErrorCode::kData, "[safetensors] ", path, ": ", reason...);
}

// False when the product does not fit.
bool ByteCount(DType dtype, const std::vector<int64_t>& shape, int64_t* out) {
  int64_t nbytes = SizeOf(dtype);
  bool empty = false;  // a zero forgives what overflows beside it
  bool fits = true;
  for (const int64_t dim : shape) {
    empty |= dim == 0;
    fits = fits && !__builtin_mul_overflow(nbytes, dim, &nbytes);
  }
  *out = empty ? 0 : nbytes;
  return empty || fits;
}

// nlohmann keeps the last of equal keys and nests without bound: both are
// refused while it parses.
Json ParseStrictly(const std::string& path, std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > 3) Malformed(path, "the header is nested too deeply");
    if (event == Json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        Malformed(path, "the name \"", key, "\" stands twice in the header");
      }
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::exception& error) {
    Malformed(path, "the header is not valid JSON: ", error.what());
  }
}

SafetensorsMetadata ParseMetadata(const std::string& path, const Json& json) {
  if (!json.is_object()) {
    Malformed(path, "__metadata__ must be an object, got ", json.type_name());
  }
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      Malformed(path, "__metadata__ must hold strings, got ", value.type_name(),
                " for \"", key, "\"");
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

DType ParseDType(const std::string& path, const std::string& tensor,
                 const Json& json) {
  const std::string given =
      json.is_string() ? json.get<std::string>() : json.dump();
  std::string valid;
  for (const DTypeName& row : kDTypeNames) {
    if (json.is_string() && given == row.name) return row.dtype;
    valid += valid.empty() ? "" : ", ";
    valid += row.name;
  }
  Malformed(path, "the dtype of \"", tensor, "\" must be one of ", valid,
            ", got ", given);
}

int64_t ParseCount(const std::string& path, const std::string& tensor,
                   std::string_view what, const Json& json) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > INT64_MAX) {
    Malformed(path, what, " of \"", tensor,
              "\" must be whole numbers from 0 to 2^63 - 1, got ", json.dump());
  }
  return json.get<int64_t>();
}

SafetensorsEntry ParseEntry(const std::string& path, const std::string& name,
                            const Json& json) {
  if (!json.is_object()) {
    Malformed(path, "the entry \"", name, "\" must be an object, got ",
              json.type_name());
  }
  for (const auto& item : json.items()) {
    const std::string& key = item.key();
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      Malformed(path, "\"", name, "\" has the unknown key \"", key, "\"");
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) {
      Malformed(path, "\"", name, "\" has no ", key);
    }
  }
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = ParseDType(path, name, json["dtype"]);
  const Json& shape = json["shape"];
  if (!shape.is_array()) {
    Malformed(path, "the shape of \"", name, "\" must be an array, got ",
              shape.type_name());
  }
  for (const Json& dim : shape) {
    entry.shape.push_back(ParseCount(path, name, "the dimensions", dim));
  }
  const Json& range = json["data_offsets"];
  if (!range.is_array() || range.size() != 2) {
    Malformed(path, "data_offsets of \"", name, "\" must be [begin, end], got ",
              range.dump());
  }
  entry.offset = ParseCount(path, name, "data_offsets", range[0]);
  const int64_t end = ParseCount(path, name, "data_offsets", range[1]);
  if (end < entry.offset) {
    Malformed(path, "data_offsets of \"", name, "\" must rise, got ",
              range.dump());
  }
  entry.nbytes = end - entry.offset;
  int64_t expected = 0;
  if (!ByteCount(entry.dtype, entry.shape, &expected)) {
    Malformed(path, "the shape ", shape.dump(), " of \"", name,
              "\" has more bytes than can be counted");
  }
  if (expected != entry.nbytes) {
    Malformed(path, "\"", name, "\" must have ", expected, " bytes for ",
              NameInFile(entry.dtype), shape.dump(), ", its data_offsets hold ",
              entry.nbytes);
  }
  return entry;
}

// Sorts by place and checks that the ranges tile [0, data_nbytes).
void CheckTiling(const std::string& path, int64_t data_nbytes,
                 std::vector<SafetensorsEntry>& entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.offset, a.nbytes) <
                            std::pair(b.offset, b.nbytes);
                   });
  int64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset != end) {
      Malformed(path, "\"", entry.name, "\" must begin at byte ", end,
                " of the data, where the tensor before it ends, got ",
                entry.offset,
                entry.offset < end ? " (they overlap)" : " (a hole)");
    }
    if (entry.nbytes > data_nbytes - end) {
      Malformed(path, "the file is truncated: \"", entry.name,
                "\" must end at byte ", end + entry.nbytes,
                " of the data, which has ", data_nbytes);
    }
    end += entry.nbytes;
  }
  if (end != data_nbytes) {
    Malformed(path, "the data must end with its last tensor at byte ", end,
              ", it has ", data_nbytes);
  }
}

}  // namespace

// --- Reader ---

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  uint64_t header_nbytes = 0;
  if (bytes.size() < sizeof(header_nbytes)) {
    Malformed(path, "a file has at least 8 bytes, got ", bytes.size());
  }
  std::memcpy(&header_nbytes, bytes.data(), sizeof(header_nbytes));
  if (header_nbytes > kMaxHeader ||
      header_nbytes > bytes.size() - sizeof(header_nbytes)) {
    Malformed(path, "the header must fit into the file (", bytes.size(),
              " bytes) and ", kMaxHeader, " bytes, its length is ",
              header_nbytes);
  }
  const std::string_view header(
      reinterpret_cast<const char*>(bytes.data()) + sizeof(header_nbytes),
      header_nbytes);
  // nlohmann stops at a NUL byte and would not see what follows.
  if (header.empty() || header[0] != '{' ||
      header.find('\0') != std::string_view::npos) {
    Malformed(path, "the header must be JSON text that begins with {");
  }
  data_ = bytes.subspan(sizeof(header_nbytes) + header_nbytes);

  const Json json = ParseStrictly(path, header);
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadataKey) {
      metadata_ = ParseMetadata(path, value);
    } else {
      entries_.push_back(ParseEntry(path, name, value));
    }
  }
  CheckTiling(path, static_cast<int64_t>(data_.size()), entries_);
  for (size_t i = 0; i < entries_.size(); ++i) index_[entries_[i].name] = i;
}

const SafetensorsEntry* SafetensorsReader::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

const SafetensorsEntry& SafetensorsReader::Entry(std::string_view name) const {
  const SafetensorsEntry* entry = Find(name);
  if (entry != nullptr) return *entry;
  std::vector<std::string_view> names;
  for (const SafetensorsEntry& e : entries_) names.push_back(e.name);
  const std::string nearest = NearestName(name, names);
  TERRACE_THROW(ErrorCode::kNotFound, "[safetensors] ", path(),
                " has no tensor \"", name, "\"",
                nearest.empty() ? "" : ", the nearest is ", nearest);
}

std::span<const std::byte> SafetensorsReader::Data(
    std::string_view name) const {
  return Data(Entry(name));
}

std::span<const std::byte> SafetensorsReader::Data(
    const SafetensorsEntry& entry) const {
  return data_.subspan(static_cast<size_t>(entry.offset),
                       static_cast<size_t>(entry.nbytes));
}

// --- Writer ---

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::vector<SafetensorsEntry> entries,
                                     const SafetensorsMetadata& metadata)
    : path_(path), entries_(std::move(entries)), file_(path) {
  JsonWriter json;
  json.BeginObject();
  if (!metadata.empty()) {
    json.Key(kMetadataKey).BeginObject();
    for (const auto& [key, value] : metadata) json.Field(key, value);
    json.EndObject();
  }
  std::set<std::string_view> names = {kMetadataKey};
  int64_t end = 0;
  for (SafetensorsEntry& entry : entries_) {
    TERRACE_CHECK(IsValidUtf8(entry.name) && names.insert(entry.name).second,
                  "[safetensors] names must be UTF-8 and differ, got \"",
                  entry.name, "\"");
    const bool valid =
        std::ranges::all_of(entry.shape, [](int64_t d) { return d >= 0; }) &&
        ByteCount(entry.dtype, entry.shape, &entry.nbytes);
    entry.offset = end;
    TERRACE_CHECK(valid && !__builtin_add_overflow(end, entry.nbytes, &end),
                  "[safetensors] the shape of \"", entry.name,
                  "\" must be countable");
    json.Key(entry.name).BeginObject();
    json.Field("dtype", NameInFile(entry.dtype));
    json.Key("shape").BeginArray();
    for (const int64_t dim : entry.shape) json.Int(dim);
    json.EndArray().Key("data_offsets").BeginArray();
    json.Int(entry.offset).Int(end).EndArray().EndObject();
  }
  std::string header = json.EndObject().Text();
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the data
  TERRACE_CHECK(header.size() <= kMaxHeader, "[safetensors] the header of ",
                path, " must have at most ", kMaxHeader, " bytes, got ",
                header.size());
  const uint64_t header_nbytes = header.size();
  file_.file().WriteAt(0, std::as_bytes(std::span(&header_nbytes, 1)));
  file_.file().WriteAt(8, std::as_bytes(std::span(header)));
  data_begin_ = 8 + static_cast<int64_t>(header_nbytes);
  SkipComplete();
}

void SafetensorsWriter::SkipComplete() {
  while (current_ < entries_.size() && written_ == entries_[current_].nbytes) {
    ++current_;
    written_ = 0;
  }
}

void SafetensorsWriter::Write(std::string_view name,
                              std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // an empty tensor may be written, or left out
  TERRACE_CHECK(
      current_ < entries_.size() && entries_[current_].name == name,
      "[safetensors] the next bytes of ", path_, " must be those of ",
      current_ < entries_.size() ? entries_[current_].name : "no tensor",
      ", got ", name);
  const SafetensorsEntry& entry = entries_[current_];
  const int64_t nbytes = static_cast<int64_t>(bytes.size());
  TERRACE_CHECK(nbytes <= entry.nbytes - written_, "[safetensors] ", name,
                " takes ", entry.nbytes - written_, " more bytes, got ",
                nbytes);
  file_.file().WriteAt(data_begin_ + entry.offset + written_, bytes);
  written_ += nbytes;
  SkipComplete();
}

void SafetensorsWriter::Finish() {
  TERRACE_CHECK(!finished_, "[safetensors] ", path_, " is finished already");
  TERRACE_CHECK(current_ == entries_.size(), "[safetensors] ", path_,
                " must get all its bytes before it is finished, ",
                entries_[std::min(current_, entries_.size() - 1)].name, " has ",
                written_);
  file_.Commit();
  finished_ = true;
}

}  // namespace terrace
