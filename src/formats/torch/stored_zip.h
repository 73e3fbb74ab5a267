// ZIP archives with uncompressed members, so that a mapped archive is a set of mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct ZipMember {
  std::string_view name;
  std::span<const std::byte> data;
  uint32_t crc32 = 0;  // recorded checksum of the data; not verified here, because that would read everything
};

bool looks_like_zip(std::span<const std::byte> file);

// Returns the members of a mapped archive in the order of its directory; names and data point into it. ZIP64 is
// supported. Rejects compressed, encrypted or overlapping members, duplicate names, names that leave the folder,
// archives in parts, and more than 300 000 members. `name` is the file name in error messages. Throws
// Error(kCorruptFile).
std::vector<ZipMember> read_stored_zip(std::span<const std::byte> file, const std::string& name);

// Returns the CRC-32 that ZIP uses.
uint32_t zip_crc32(std::span<const std::byte> data);

}  // namespace sluice
