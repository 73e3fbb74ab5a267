// The format: a page with the header, the table of entries, and the rows, each of which begins at a page.
#include "cache/row_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <thread>

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/sha256.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;
constexpr char kMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};
constexpr uint32_t kVersion = 1;  // also of the order of values within a row
constexpr size_t kNameDigits = 32;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t slots;
  uint64_t row_bytes;
  uint64_t epoch;
  uint32_t checksum;  // of the fields before it
};

struct Entry {
  BlockHash row;
  uint64_t epoch;    // 0: nothing was written to the slot
  uint64_t written;  // when: counts rows
  uint32_t data;     // checksum of the row's bytes
  uint32_t entry;    // checksum of the fields before it
};
static_assert(sizeof(Entry) == 56);

template <class T>
uint32_t checksum_before(const T& record, size_t offset) {
  return crc32c({reinterpret_cast<const std::byte*>(&record), offset});
}

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

bool read_at(int fd, void* to, size_t bytes, size_t at) {
  auto* next = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd, next, bytes, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got, at += static_cast<size_t>(got), bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool write_at(int fd, const void* from, size_t bytes, size_t at) {
  const auto* next = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(fd, next, bytes, static_cast<off_t>(at));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    next += put, at += static_cast<size_t>(put), bytes -= static_cast<size_t>(put);
  }
  return true;
}

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--kv-disk: {}: {}", path, why));
}

}  // namespace

RowFile::RowFile(const std::string& folder, const std::string& identity, size_t row_bytes, size_t bytes,
                 std::chrono::milliseconds patience)
    : row_bytes_(row_bytes) {
  const std::string name = hex(sha256({identity})).substr(0, kNameDigits) + ".kv";
  path_ = (fs::path(folder) / name).string();
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) refuse(folder, error.message());
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd_ < 0) refuse(path_, std::strerror(errno));
  try {
    lock(patience);
    const size_t slot_bytes = pages(row_bytes_) + sizeof(Entry);
    const size_t most = std::numeric_limits<int>::max();
    slots_ = static_cast<int>(std::min(most, bytes > 2 * kPage ? (bytes - 2 * kPage) / slot_bytes : 0));
    if (slots_ < 1) {
      refuse(path_, fmt::format("{} have no room for a row of {}: raise --kv-disk-bytes", format_bytes(bytes),
                                format_bytes(row_bytes_)));
    }
    if (!load_table()) create(bytes);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

RowFile::~RowFile() { ::close(fd_); }

void RowFile::lock(std::chrono::milliseconds patience) const {
  constexpr std::chrono::milliseconds kPoll(10);
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) refuse(path_, std::strerror(errno));
    if (std::chrono::steady_clock::now() >= limit) refuse(path_, "another process uses the file");
    std::this_thread::sleep_for(kPoll);
  }
}

size_t RowFile::table_bytes() const { return pages(static_cast<size_t>(slots_) * sizeof(Entry)); }

size_t RowFile::place_of(int slot) const {
  return kPage + table_bytes() + static_cast<size_t>(slot) * pages(row_bytes_);
}

// The file is sparse: it takes disk space as rows are written.
void RowFile::create(size_t bytes) {
  struct statvfs disk {};
  if (::ftruncate(fd_, 0) != 0) refuse(path_, std::strerror(errno));
  if (::fstatvfs(fd_, &disk) != 0) refuse(path_, std::strerror(errno));
  const size_t free = static_cast<size_t>(disk.f_bavail) * disk.f_frsize;
  if (bytes > free) {
    refuse(path_, fmt::format("{} are wanted, but {} of the disk are free: lower --kv-disk-bytes", format_bytes(bytes),
                              format_bytes(free)));
  }
  if (::ftruncate(fd_, static_cast<off_t>(place_of(slots_))) != 0 || !write_header()) {
    refuse(path_, std::strerror(errno));
  }
}

bool RowFile::write_header() {
  Header header{};
  std::copy_n(kMagic, sizeof kMagic, header.magic);
  header.version = kVersion;
  header.slots = static_cast<uint32_t>(slots_);
  header.row_bytes = row_bytes_;
  header.epoch = epoch_.load();
  header.checksum = checksum_before(header, offsetof(Header, checksum));
  return write_at(fd_, &header, sizeof header, 0);
}

// Reads the table of an existing file. Returns false if the file is another one or has none.
bool RowFile::load_table() {
  struct stat file {};
  if (::fstat(fd_, &file) != 0) refuse(path_, std::strerror(errno));
  if (file.st_size == 0) return false;
  Header header{};
  const bool right = static_cast<size_t>(file.st_size) == place_of(slots_) && read_at(fd_, &header, sizeof header, 0) &&
                     std::equal(kMagic, kMagic + sizeof kMagic, header.magic) && header.version == kVersion &&
                     header.slots == static_cast<uint32_t>(slots_) && header.row_bytes == row_bytes_ &&
                     header.checksum == checksum_before(header, offsetof(Header, checksum));
  std::vector<Entry> table(static_cast<size_t>(slots_));
  if (!right || !read_at(fd_, table.data(), table.size() * sizeof(Entry), kPage)) {
    log::warning("{}: of another size, or damaged; it is begun anew", path_);
    return false;
  }
  std::vector<int> order;
  for (int slot = 0; slot < slots_; ++slot) {
    const Entry& entry = table[static_cast<size_t>(slot)];
    if (entry.epoch != header.epoch || entry.entry != checksum_before(entry, offsetof(Entry, entry))) continue;
    order.push_back(slot);
  }
  const auto written = [&](int slot) { return table[static_cast<size_t>(slot)].written; };
  std::ranges::sort(order, {}, written);
  for (const int slot : order) kept_.push_back({.row = table[static_cast<size_t>(slot)].row, .slot = slot});
  if (!order.empty()) written_ = written(order.back());
  first_epoch_ = header.epoch;
  epoch_ = header.epoch;
  return true;
}

// The bytes come first. Until the entry is written, the former one has a checksum that does not fit them.
bool RowFile::write(int slot, const BlockHash& row, uint64_t epoch, std::span<const std::byte> bytes) {
  if (!write_at(fd_, bytes.data(), bytes.size(), place_of(slot))) return false;
  Entry entry{.row = row,
              .epoch = first_epoch_ + epoch,
              .written = written_.fetch_add(1) + 1,
              .data = checksum(bytes),
              .entry = 0};
  entry.entry = checksum_before(entry, offsetof(Entry, entry));
  return write_at(fd_, &entry, sizeof entry, kPage + static_cast<size_t>(slot) * sizeof entry);
}

bool RowFile::read(int slot, const BlockHash& row, std::span<std::byte> bytes) {
  Entry entry{};
  if (!read_at(fd_, &entry, sizeof entry, kPage + static_cast<size_t>(slot) * sizeof entry)) return false;
  if (entry.row != row || entry.entry != checksum_before(entry, offsetof(Entry, entry))) return false;
  return read_at(fd_, bytes.data(), bytes.size(), place_of(slot)) && checksum(bytes) == entry.data;
}

bool RowFile::begin_epoch(uint64_t epoch) {
  epoch_ = first_epoch_ + epoch;
  return write_header();
}

}  // namespace sluice
