// A file of packed weights, with POSIX locks and mappings. A new file is written under a temporary name and stays
// locked while a process works on it. An unlocked temporary file was left by a crash and is written again.
#include "nn/loading/packed_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/log.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;
constexpr char kMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'P', 'W'};
constexpr uint32_t kVersion = 2;

// The first page of the file. `hash` covers the fields before it.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t weights;
  uint64_t bytes;    // size of the file
  Sha256 contents;   // hash of PackedFileSpec::contents
  Sha256 program;    // hash of PackedFileSpec::program
  Sha256 checksums;  // hash of the blocks' checksums
  Sha256 hash;
};
static_assert(sizeof(Header) <= kPage);

Sha256 hash_of(const Header& header) {
  return sha256({reinterpret_cast<const char*>(&header), offsetof(Header, hash)});
}

Sha256 hash_of(std::span<const uint32_t> checksums) {
  return sha256({reinterpret_cast<const char*>(checksums.data()), checksums.size_bytes()});
}

// Reads pages from the disk with one call. Linux before 5.14 does not have MADV_POPULATE_READ; there they are read when
// first touched.
void read_pages(std::span<std::byte> pages) {
  if (::madvise(pages.data(), pages.size(), MADV_POPULATE_READ) != 0) {
    ::madvise(pages.data(), pages.size(), MADV_WILLNEED);
  }
}

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// Closes the descriptor at the end of its scope.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Returns true if `path` still names the open file.
bool still_named(int fd, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

}  // namespace

PackedFile::PackedFile(PackedFileSpec spec) : spec_(std::move(spec)) {
  for (const size_t size : spec_.sizes) {
    first_blocks_.push_back(blocks_);
    blocks_ += (size + kBlock - 1) / kBlock;
  }
  bytes_ = kPage + whole_pages(blocks_ * sizeof(uint32_t));
  for (const size_t size : spec_.sizes) {
    offsets_.push_back(bytes_);
    bytes_ += whole_pages(size);
  }
  constexpr size_t kDigits = 32;
  path_ = (fs::path(spec_.folder) / (hex(sha256(spec_.contents)).substr(0, kDigits) + ".packed")).string();
  unfinished_ = path_ + ".unfinished";
  if (spec_.program.empty())
    fail("this program was linked without a build id, so its files cannot be told from those of other builds", 0);
  if (!map()) begin();
}

PackedFile::~PackedFile() {
  discard();
  if (filled_fd_ >= 0) ::close(filled_fd_);
}

void PackedFile::fail(const std::string& what, int error) const {
  throw PackedFileError(ErrorCode::kInternal, fmt::format("{}: {}{}{}", path_, what, error != 0 ? ": " : "",
                                                          error != 0 ? std::strerror(error) : ""));
}

// Maps the existing file if it is the right one.
bool PackedFile::map() {
  Fd file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail("cannot open the file", errno);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fail("is not a regular file", 0);
  } else if (static_cast<size_t>(info.st_size) != bytes_) {
    refused_ = fmt::format("has {} bytes, expected {}", info.st_size, bytes_);
  } else {
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, file.get(), 0);
    if (mapped == MAP_FAILED) fail("mmap", errno);
    mapping_ = FileMapping({static_cast<std::byte*>(mapped), bytes_}, PROT_READ, path_);
    refused_ = refusal();
    if (refused_.empty()) {
      filled_fd_ = file.release();
      return filled_ = true;
    }
    mapping_ = {};
  }
  return false;
}

// Returns why the mapped file cannot be used; empty if it can.
std::string PackedFile::refusal() const {
  Header header;
  std::memcpy(&header, mapping_.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return "is not a file of packed weights";
  if (header.version != kVersion)
    return fmt::format("has version {} of the format, expected {}", header.version, kVersion);
  if (header.hash != hash_of(header)) return "has a damaged header";
  if (header.contents != sha256(spec_.contents) || header.weights != spec_.sizes.size() || header.bytes != bytes_) {
    return "holds other weights";
  }
  if (header.program != sha256(spec_.program)) return "was packed by another build of this program";
  if (header.checksums != hash_of(checksums())) return "has damaged checksums";
  if (spec_.check != PackedFileCheck::kOnLoad) return "";
  const auto start = std::chrono::steady_clock::now();
  const std::optional<size_t> damaged = damaged_weight();
  if (damaged || mapping_.shrank())
    return fmt::format("has damaged weights, the first of them is number {}", damaged.value_or(0));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  log::debug("{}: checksums of {} MiB compared in {:.2f} s", path_, bytes_ >> 20, took.count());
  return "";
}

std::span<uint32_t> PackedFile::checksums() const {
  return {reinterpret_cast<uint32_t*>(mapping_.data() + kPage), blocks_};
}

// Calls body(weight, index, block) for all blocks, on the threads of a pool if there is one. The pages of a block are
// read from the disk at once. The threads of each part of the pool take that part's share of every weight.
template <class F>
void PackedFile::for_each_block(ThreadPool* pool, F&& body) const {
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const std::span<std::byte> weight(mapping_.data() + offsets_[i], spec_.sizes[i]);
    const size_t count = (weight.size() + kBlock - 1) / kBlock;
    const auto part = [&](int64_t begin, int64_t end) {
      for (auto k = static_cast<size_t>(begin); k < static_cast<size_t>(end); ++k) {
        body(i, first_blocks_[i] + k, weight.subspan(k * kBlock, std::min(kBlock, weight.size() - k * kBlock)));
      }
    };
    if (pool != nullptr && count > 1) {
      pool->parallel_for(static_cast<int64_t>(count), 1, part);
    } else {
      part(0, static_cast<int64_t>(count));
    }
  }
}

// Returns the first weight that does not match its checksums.
std::optional<size_t> PackedFile::damaged_weight() const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  std::atomic<size_t> found{kNone};
  const std::span<const uint32_t> expected = checksums();
  for_each_block(spec_.pool, [&](size_t weight, size_t index, std::span<std::byte> block) {
    if (found.load(std::memory_order_relaxed) < weight) return;
    read_pages(block);
    if (checksum(block) != expected[index]) found.store(weight);
  });
  return found == kNone ? std::nullopt : std::optional(found.load());
}

void PackedFile::start_check() {
  if (!filled_ || spec_.check != PackedFileCheck::kInBackground || checker_.joinable()) return;
  checker_ = std::jthread([this](const std::stop_token& stop) {
    const std::span<const uint32_t> expected = checksums();
    size_t index = 0;
    for (size_t i = 0; i < offsets_.size(); ++i) {
      for (size_t at = 0; at < spec_.sizes[i]; at += kBlock, ++index) {
        if (stop.stop_requested()) return;
        const std::span block(mapping_.data() + offsets_[i] + at, std::min(kBlock, spec_.sizes[i] - at));
        read_pages(block);
        if (checksum(block) == expected[index]) continue;
        damaged_.store(true);
        log::error("{}: weight {} is damaged; the file is deleted, and the next start packs again", path_, i);
        if (::unlink(path_.c_str()) != 0) log::error("{}: cannot delete the file: {}", path_, std::strerror(errno));
        return report_file_damage();
      }
    }
    log::info("{}: all checksums match", path_);
  });
}

void PackedFile::check() const {
  mapping_.check();
  if (damaged_.load()) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the file's weights are damaged", path_));
}

// Locks the unfinished file and gives it its room. Returns without the lock if another process finishes the file
// meanwhile.
void PackedFile::begin() {
  std::error_code problem;
  fs::create_directories(spec_.folder, problem);
  if (problem) fail("cannot create its folder", problem.value());
  constexpr mode_t kMode = 0644;
  for (;;) {
    // A link under this name is somebody's attempt to have another file overwritten.
    Fd file(::open(unfinished_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode));
    if (file.get() < 0) fail("cannot create the file", errno);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) fail("cannot lock the file", errno);
      if (spec_.from_device) fail("another process is writing the file", 0);
      log::info("{}: waiting for another process, which is packing these weights", path_);
      while (::flock(file.get(), LOCK_EX) != 0) {
        if (errno != EINTR) fail("cannot lock the file", errno);
      }
    }
    if (!still_named(file.get(), unfinished_)) continue;  // finished or abandoned since it was opened
    fd_ = file.release();
    break;
  }
  try {
    if (map()) return discard();  // finished since the last look
    if (!refused_.empty()) log::warning("{} {}; the weights are packed again", path_, refused_);
    if (!spec_.from_device) reserve();
  } catch (...) {
    discard();
    throw;
  }
}

// Allocates all blocks, because to write to a mapped page without disk space would kill the process. A file system in
// memory takes a second for 8 GiB.
void PackedFile::reserve() {
  if (::ftruncate(fd_, 0) != 0) fail("cannot write the file", errno);
  if (const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes_)); error != 0) {
    fail(fmt::format("the disk has no room for {} MiB", bytes_ >> 20), error);
  }
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (mapped == MAP_FAILED) fail("mmap", errno);
  mapping_ = FileMapping({static_cast<std::byte*>(mapped), bytes_}, PROT_READ | PROT_WRITE, path_);
}

// Deletes the unfinished file, if there is one.
void PackedFile::discard() noexcept {
  if (fd_ < 0) return;
  ::unlink(unfinished_.c_str());
  ::close(std::exchange(fd_, -1));
}

std::byte* PackedFile::next(size_t bytes) {
  CHECK(next_ < offsets_.size() && spec_.sizes[next_] == bytes, "weight {} of {} bytes", next_, bytes);
  // Start writing the previously packed weights to disk meanwhile.
  if (!filled_ && next_ > 0) {
    ::sync_file_range(fd_, static_cast<off_t>(offsets_[next_ - 1]), static_cast<off_t>(spec_.sizes[next_ - 1]),
                      SYNC_FILE_RANGE_WRITE);
  }
  return mapping_.data() + offsets_[next_++];
}

size_t PackedFile::skip(size_t bytes) {
  const size_t weight = next_;
  next(bytes);
  return weight;
}

// Does not use the mapping: to read it takes page faults, and to unmap what was read takes time at the end of a load.
void PackedFile::read(size_t weight, size_t begin, std::span<std::byte> into) const {
  CHECK(filled_ && begin % kBlock == 0 && begin + into.size() <= spec_.sizes.at(weight), "bytes {} to {} of weight {}",
        begin, begin + into.size(), weight);
  for (size_t at = 0; at < into.size();) {
    const auto place = static_cast<off_t>(offsets_[weight] + begin + at);
    const ssize_t count = ::pread(filled_fd_, into.data() + at, into.size() - at, place);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", path_, std::strerror(errno)));
    if (count == 0) report_damage(weight);  // the file became shorter
    at += static_cast<size_t>(count);
  }
  if (spec_.check != PackedFileCheck::kByReader) return;
  const std::span<const uint32_t> expected = checksums().subspan(first_blocks_[weight] + begin / kBlock);
  for (size_t at = 0, block = 0; at < into.size(); at += kBlock, ++block) {
    if (checksum(into.subspan(at, std::min(kBlock, into.size() - at))) != expected[block]) report_damage(weight);
  }
}

void PackedFile::report_damage(size_t weight) const {
  const bool deleted = still_named(filled_fd_, path_) ? ::unlink(path_.c_str()) == 0 : true;
  throw PackedFileDamaged(fmt::format("{} has damaged weights, one of them is number {}", path_, weight), deleted);
}

void PackedFile::write_out(std::span<const std::byte> part) const {
  constexpr unsigned kWhole = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  ::sync_file_range(fd_, part.data() - mapping_.data(), static_cast<off_t>(part.size()), kWhole);
}

void PackedFile::finish(ThreadPool* pool) {
  CHECK(!filled_ && next_ == offsets_.size(), "packed {} of {} weights", next_, offsets_.size());
  const auto start = std::chrono::steady_clock::now();
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.weights = static_cast<uint32_t>(spec_.sizes.size());
  header.bytes = bytes_;
  header.contents = sha256(spec_.contents);
  header.program = sha256(spec_.program);
  for_each_block(
      pool, [sums = checksums()](size_t, size_t index, std::span<std::byte> block) { sums[index] = checksum(block); });
  header.checksums = hash_of(checksums());
  header.hash = hash_of(header);
  std::memcpy(mapping_.data(), &header, sizeof header);
  if (::msync(mapping_.data(), bytes_, MS_SYNC) != 0 || ::fsync(fd_) != 0) fail("cannot write the file", errno);
  if (mapping_.shrank()) fail("became shorter while it was written", 0);
  if (::mprotect(mapping_.data(), bytes_, PROT_READ) != 0) fail("mprotect", errno);
  mapping_.set_protection(PROT_READ);
  if (::rename(unfinished_.c_str(), path_.c_str()) != 0) fail("cannot rename the file", errno);
  ::close(std::exchange(fd_, -1));
  filled_ = true;
  const Fd folder(::open(spec_.folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || ::fsync(folder.get()) != 0) {
    log::warning("{}: cannot sync its folder, so a system crash may lose the file's name: {}", path_,
                 std::strerror(errno));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  log::info("{}: {} MiB of packed weights written to disk in {:.1f} s", path_, bytes_ >> 20, took.count());
}

void PackedFile::read_ahead(ThreadPool& pool) const {
  for (size_t i = 0; i < offsets_.size(); ++i) {
    const size_t size = whole_pages(spec_.sizes[i]);
    std::byte* weight = mapping_.data() + offsets_[i];
    pool.parallel_for(static_cast<int64_t>((size + kBlock - 1) / kBlock), 1, [&](int64_t begin, int64_t end) {
      const size_t from = static_cast<size_t>(begin) * kBlock, to = std::min(static_cast<size_t>(end) * kBlock, size);
      read_pages({weight + from, to - from});
    });
  }
}

}  // namespace sluice
