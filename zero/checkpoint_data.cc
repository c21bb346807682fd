#include "terrace/zero/checkpoint_data.h"

#include "terrace/core/crc32c.h"
#include "terrace/core/error.h"

namespace terrace::zero {
namespace {

std::string ExistingPath(const std::string& folder, const ManifestFile& file) {
  const std::string path = folder + "/" + file.name;
  if (!Exists(path))
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path,
                  " is missing; the manifest names it");
  return path;
}

}  // namespace

void CheckDataFile(const std::string& folder, const ManifestFile& file) {
  const std::string path = ExistingPath(folder, file);
  const int64_t nbytes = FileSize(path);
  if (nbytes != file.nbytes)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path, " must have ",
                  file.nbytes, " bytes, it has ", nbytes,
                  nbytes < file.nbytes ? ": it is truncated" : "");
}

std::unique_ptr<SafetensorsReader> OpenDataFile(const std::string& folder,
                                                const ManifestFile& file) {
  const std::string path = ExistingPath(folder, file);
  auto reader = std::make_unique<SafetensorsReader>(path);
  const size_t expected = file.ranges.size();
  if (reader->entries().size() != expected)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", path, " must hold the ",
                  expected, " entries of the manifest, it holds ",
                  reader->entries().size());
  return reader;
}

std::span<const std::byte> CheckedBytes(const SafetensorsReader& reader,
                                        const ManifestRange& r) {
  const SafetensorsEntry* entry = reader.Find(r.entry);
  if (entry == nullptr)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(),
                  " has no entry '", r.entry, "', which the manifest names");
  if (entry->dtype != r.dtype ||
      entry->nbytes != r.range.numel() * SizeOf(r.dtype))
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(), ": '",
                  r.entry, "' must be ", r.range.numel(), " ", r.dtype,
                  ", it has ", entry->nbytes, " bytes of ", entry->dtype);
  const std::span<const std::byte> bytes = reader.Data(*entry);
  if (r.has_crc && Crc32c(bytes) != r.crc32c)
    TERRACE_THROW(ErrorCode::kData, "[checkpoint] ", reader.path(), ": '",
                  r.entry, "' must have the checksum ", r.crc32c, ", it has ",
                  Crc32c(bytes), ": the file is corrupted");
  return bytes;
}

}  // namespace terrace::zero
