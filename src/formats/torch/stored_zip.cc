// Reads the directory at the end of a ZIP archive (PKWARE's APPNOTE.TXT 4.3). Every number is checked before it is
// used.
#include "formats/torch/stored_zip.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr uint64_t kMaxMembers = 300'000;
constexpr uint32_t kLocalSignature = 0x04034b50, kMemberSignature = 0x02014b50, kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
constexpr size_t kLocalSize = 30, kMemberSize = 46, kEndSize = 22, kEnd64Size = 56, kLocator64Size = 20;
constexpr uint16_t kZip64Extra = 1;

// Returns whether a name is a valid path of a file inside a folder.
bool leads_inside(std::string_view name) {
  if (name.empty() || name.front() == '/' || name.find_first_of(std::string_view("\\\0", 2)) != name.npos) return false;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (part == ".." || part == "." || (part.empty() && end != name.size())) return false;
    at = end + 1;
  }
  return true;
}

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& name) : file_(file), name_(name) {}

  std::vector<ZipMember> read() {
    find_directory();
    std::vector<ZipMember> members;
    members.reserve(count_);
    uint64_t at = directory_;
    for (uint64_t i = 0; i < count_; ++i) at = read_member(at, members);
    if (at != directory_end_) fail("the directory does not have the recorded size");
    check_names(members);
    check_overlaps();
    return members;
  }

 private:
  struct Extent {
    uint64_t begin, end;  // from the local header to the end of the data
    std::string_view name;
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: ZIP archive: {}", name_, what));
  }
  [[noreturn]] void fail(std::string_view member, std::string_view what) const {
    fail(fmt::format("member {}: {}", dump_json(member.substr(0, 128)), what));
  }

  template <class T>
  T number(uint64_t at) const {
    if (at > file_.size() || file_.size() - at < sizeof(T)) fail("unexpected end of file");
    T value;
    std::memcpy(&value, file_.data() + at, sizeof(T));
    return value;
  }
  std::string_view text(uint64_t at, size_t size) const {
    if (at > file_.size() || file_.size() - at < size) fail("unexpected end of file");
    return {reinterpret_cast<const char*>(file_.data()) + at, size};
  }

  // The end record is at the end of the file, followed only by a comment whose length it contains.
  uint64_t find_end() const {
    if (file_.size() < kEndSize) fail("too short");
    const uint64_t last = file_.size() - kEndSize;
    for (uint64_t at = last;; --at) {
      if (number<uint32_t>(at) == kEndSignature && number<uint16_t>(at + 20) == last - at) return at;
      if (at == 0 || last - at == UINT16_MAX) fail("the end record is missing: the file is truncated");
    }
  }

  void find_directory() {
    const uint64_t end = find_end();
    if (number<uint16_t>(end + 4) != 0 || number<uint16_t>(end + 6) != 0) {
      fail("archives in several parts are not supported");
    }
    count_ = number<uint16_t>(end + 10);
    uint64_t size = number<uint32_t>(end + 12);
    directory_ = number<uint32_t>(end + 16);
    directory_end_ = end;
    if (end >= kLocator64Size && number<uint32_t>(end - kLocator64Size) == kLocator64Signature) {
      const uint64_t end64 = number<uint64_t>(end - kLocator64Size + 8);
      if (end64 > end - kLocator64Size || end - kLocator64Size - end64 < kEnd64Size ||
          number<uint32_t>(end64) != kEnd64Signature) {
        fail("the 64-bit end record is not at its recorded position");
      }
      count_ = number<uint64_t>(end64 + 32);
      size = number<uint64_t>(end64 + 40);
      directory_ = number<uint64_t>(end64 + 48);
      directory_end_ = end64;
    }
    if (directory_ > directory_end_ || directory_end_ - directory_ != size) fail("the directory is out of bounds");
    if (count_ > kMaxMembers) fail(fmt::format("{} members (at most {} are allowed)", count_, kMaxMembers));
    if (count_ > size / kMemberSize) fail("the directory is too short for its members");
  }

  // Reads a member's entry in the directory. Returns where the next entry begins.
  uint64_t read_member(uint64_t at, std::vector<ZipMember>& members) {
    if (directory_end_ - at < kMemberSize || number<uint32_t>(at) != kMemberSignature) fail("invalid directory entry");
    const auto flags = number<uint16_t>(at + 8);
    const auto method = number<uint16_t>(at + 10);
    uint64_t stored = number<uint32_t>(at + 20), size = number<uint32_t>(at + 24), local = number<uint32_t>(at + 42);
    const size_t name_size = number<uint16_t>(at + 28), extra_size = number<uint16_t>(at + 30);
    const uint64_t next = at + kMemberSize + name_size + extra_size + number<uint16_t>(at + 32);
    if (next > directory_end_) fail("invalid directory entry");
    const std::string_view member = text(at + kMemberSize, name_size);
    if (!leads_inside(member)) fail(member, "is not a valid path inside the archive");
    if (size == UINT32_MAX || stored == UINT32_MAX || local == UINT32_MAX) {
      read_zip64(member, text(at + kMemberSize + name_size, extra_size), size, stored, local);
    }
    if ((flags & 0x2041) != 0) fail(member, "is encrypted");
    if (method != 0) fail(member, fmt::format("is compressed (method {}); only stored members are supported", method));
    if (stored != size) fail(member, fmt::format("has {} stored bytes, expected {}", stored, size));
    members.push_back({member, locate(member, local, size), number<uint32_t>(at + 16)});
    return next;
  }

  // Values that do not fit in 32 bits are in the extra field, in this order.
  void read_zip64(std::string_view member, std::string_view extra, uint64_t& size, uint64_t& stored,
                  uint64_t& local) const {
    while (extra.size() >= 4) {
      uint16_t id, length;
      std::memcpy(&id, extra.data(), sizeof id);
      std::memcpy(&length, extra.data() + 2, sizeof length);
      extra.remove_prefix(4);
      if (length > extra.size()) break;
      if (id != kZip64Extra) {
        extra.remove_prefix(length);
        continue;
      }
      extra = extra.substr(0, length);
      for (uint64_t* field : {&size, &stored, &local}) {
        if (*field != UINT32_MAX) continue;
        if (extra.size() < sizeof(uint64_t)) fail(member, "64-bit size is missing");
        std::memcpy(field, extra.data(), sizeof(uint64_t));
        extra.remove_prefix(sizeof(uint64_t));
      }
      return;
    }
    fail(member, "64-bit sizes are missing");
  }

  std::span<const std::byte> locate(std::string_view member, uint64_t local, uint64_t size) {
    if (local > directory_ || directory_ - local < kLocalSize || number<uint32_t>(local) != kLocalSignature) {
      fail(member, "does not begin at the position in the directory");
    }
    const size_t name_size = number<uint16_t>(local + 26);
    const uint64_t header = kLocalSize + name_size + number<uint16_t>(local + 28);
    if (header > directory_ - local || size > directory_ - local - header) {
      fail(member, fmt::format("its {} bytes exceed the end of the file", size));
    }
    if (text(local + kLocalSize, name_size) != member) fail(member, "has a different name in its local header");
    extents_.push_back({local, local + header + size, member});
    return file_.subspan(local + header, size);
  }

  void check_names(const std::vector<ZipMember>& members) const {
    std::vector<std::string_view> names;
    for (const ZipMember& member : members) names.push_back(member.name);
    std::ranges::sort(names);
    const auto twice = std::ranges::adjacent_find(names);
    if (twice != names.end()) fail(*twice, "appears twice");
  }

  void check_overlaps() {
    std::ranges::sort(extents_, {}, &Extent::begin);
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].begin < extents_[i - 1].end) {
        fail(extents_[i].name, fmt::format("overlaps '{}'", extents_[i - 1].name));
      }
    }
  }

  const std::span<const std::byte> file_;
  const std::string& name_;
  uint64_t count_ = 0, directory_ = 0, directory_end_ = 0;
  std::vector<Extent> extents_;
};

constexpr auto kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ (c & 1 ? 0xEDB88320u : 0);
    table[i] = c;
  }
  return table;
}();

}  // namespace

bool looks_like_zip(std::span<const std::byte> file) {
  return file.size() >= sizeof kLocalSignature &&
         std::memcmp(file.data(), &kLocalSignature, sizeof kLocalSignature) == 0;
}

std::vector<ZipMember> read_stored_zip(std::span<const std::byte> file, const std::string& name) {
  return Archive(file, name).read();
}

uint32_t zip_crc32(std::span<const std::byte> data) {
  uint32_t crc = ~0u;
  for (const std::byte b : data) crc = crc >> 8 ^ kCrcTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xFF];
  return ~crc;
}

}  // namespace sluice
