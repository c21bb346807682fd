// The data files of a checkpoint against its manifest, for whoever reads them.
//
//   CheckDataFile(folder, file);                       // there, and its size
//   const auto reader = OpenDataFile(folder, file);    // and its header
//   for (const ManifestRange& r : file.ranges)
//     Use(CheckedBytes(*reader, r));                   // and its checksum
//
// What does not agree is kData and names the file; what the system refuses kIo.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "terrace/core/safetensors.h"
#include "terrace/zero/checkpoint_manifest.h"

namespace terrace::zero {

// The file is there and has the manifest's size.
void CheckDataFile(const std::string& folder, const ManifestFile& file);

// Its header names as many entries as the manifest.
std::unique_ptr<SafetensorsReader> OpenDataFile(const std::string& folder,
                                                const ManifestFile& file);

// The bytes of one entry, of the dtype, length and checksum that the manifest
// says. Live as long as the reader.
std::span<const std::byte> CheckedBytes(const SafetensorsReader& reader,
                                        const ManifestRange& range);

}  // namespace terrace::zero
