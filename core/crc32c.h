// CRC-32C (Castagnoli, as in iSCSI and ext4): the checksum of tier slots and
// checkpoint ranges. Table-driven, portable, about 2 GB/s.
//
//   uint32_t crc = Crc32c(bytes);
//   crc = Crc32c(more, crc);   // the checksum of both pieces together
//
// A pure function, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// The checksum of what gave `crc` followed by `bytes`; 0 stands for nothing.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace terrace
