// Writes safetensors files: temporary file, fsync, rename.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "formats/safetensors.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// A file that gets its final name only in commit(). Otherwise the destructor deletes it.
class PendingFile {
 public:
  explicit PendingFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.{}.tmp", path, ::getpid())) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("open");
  }
  ~PendingFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(fd_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail("write");
      from += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail("fsync");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
    ::close(std::exchange(fd_, -1));
    // The rename survives a power failure only after the folder is synced.
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    const int folder_fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) fail("open the folder of");
    const int synced = ::fsync(folder_fd);
    ::close(folder_fd);
    if (synced != 0) fail("fsync the folder of");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorCode::kInternal, fmt::format("cannot {} {}: {}", what, path_, std::strerror(errno)));
  }

  const std::string path_, temporary_;
  int fd_ = -1;
};

std::string header_for(const std::vector<const NamedTensor*>& tensors) {
  std::unordered_set<std::string_view> names = {"__metadata__"};
  std::string text = R"({"__metadata__":{"format":"pt"})";
  size_t at = 0;
  for (const NamedTensor* t : tensors) {
    CHECK(names.insert(t->name).second, "'{}' is written twice", t->name);
    CHECK(t->tensor.dense() && !t->tensor.dtype->safetensors.empty(), "'{}' must be dense and have a safetensors type",
          t->name);
    Json shape = Json::array();
    for (int i = 0; i < t->tensor.shape.rank(); ++i) shape.push_back(t->tensor.shape[i]);
    text += fmt::format(R"(,{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", dump_json(t->name),
                        t->tensor.dtype->safetensors, dump_json(shape), at, at + t->tensor.bytes());
    at += t->tensor.bytes();
  }
  text += "}";
  return text.append((8 - text.size() % 8) % 8, ' ');
}

}  // namespace

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return a->tensor.dtype->block_bytes > b->tensor.dtype->block_bytes;
  });
  const std::string header = header_for(order);
  const uint64_t length = header.size();
  PendingFile file(path);
  file.write(&length, sizeof(length));
  file.write(header.data(), header.size());
  for (const NamedTensor* t : order) file.write(t->tensor.data, t->tensor.bytes());
  file.commit();
}

}  // namespace sluice
