// ZIP archives whose files lie in them uncompressed, so that a mapped archive is a set of mapped files.
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
  uint32_t crc32 = 0;  // of the data, as the archive says; not checked here, which would read it all
};

bool looks_like_zip(std::span<const std::byte> file);

// The members of a mapped archive in the order of its directory; names and data point into it. ZIP64 is understood.
// Refused by name: compressed, encrypted or overlapping members, names given twice or leading out of a folder, archives
// in parts, more than 300 000 members. `name` stands for the file. Throws Error(kCorruptFile).
std::vector<ZipMember> read_stored_zip(std::span<const std::byte> file, const std::string& name);

// CRC-32 as ZIP has it.
uint32_t zip_crc32(std::span<const std::byte> data);

}  // namespace sluice
