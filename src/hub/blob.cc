// Downloads one file of the hub: requests its metadata, resumes, checks the checksum, renames.
#include "hub/blob.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/log.h"

namespace sluice::hub {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 5;
constexpr size_t kSha1Digits = 40, kSha256Digits = 64;

[[noreturn]] void fail_file(const fs::path& path, int error) {
  throw Error(ErrorCode::kInternal, fmt::format("{}: {}", path.string(), std::strerror(error)));
}

class FileDescriptor {
 public:
  FileDescriptor(const fs::path& path, int flags) : path_(path), fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail_file(path, errno);
  }
  ~FileDescriptor() { ::close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail_file(path_, written < 0 ? errno : ENOSPC);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  void truncate() const {
    if (::ftruncate(fd_, 0) != 0 || ::lseek(fd_, 0, SEEK_SET) != 0) fail_file(path_, errno);
  }
  void sync() const {
    if (::fsync(fd_) != 0) fail_file(path_, errno);
  }

 private:
  const fs::path path_;
  const int fd_;
};

// Computes the checksum that names a blob.
class Checksum {
 public:
  explicit Checksum(const RemoteFile& file) : file_(file) { start(); }

  void start() {
    const bool sha256 = file_.checksum.size() == kSha256Digits;
    EVP_DigestInit_ex(context_.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr);
    if (!sha256) add(fmt::format("blob {}{}", file_.size, '\0'));  // header of a Git blob
  }
  void add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &size);
    std::string out;
    for (unsigned i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
    return out;
  }

 private:
  const RemoteFile& file_;
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

std::optional<uint64_t> parse_number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

// A download in progress: the growing file and its checksum.
class Partial {
 public:
  Partial(const RemoteFile& file, const fs::path& path, const std::function<void(int64_t)>& on_bytes)
      : file_(file), path_(path), out_(path, O_RDWR | O_CREAT | O_NOFOLLOW), checksum_(file), on_bytes_(on_bytes) {
    std::vector<char> piece(1 << 20);
    for (ssize_t size; (size = ::read(out_.get(), piece.data(), piece.size())) != 0;) {
      if (size < 0) fail_file(path, errno);
      count({piece.data(), static_cast<size_t>(size)});
    }
    if (done_ > file_.size) restart();
  }

  uint64_t done() const { return done_; }
  void restart() {
    out_.truncate();
    checksum_.start();
    on_bytes_(-static_cast<int64_t>(done_));
    done_ = 0;
  }
  void append(std::string_view bytes) {
    if (bytes.size() > file_.size - done_) {
      restart();
      throw Error(ErrorCode::kInternal,
                  fmt::format("{}: the server sent more than the expected {} bytes", file_.name, file_.size));
    }
    out_.write(bytes);
    count(bytes);
  }
  // Moves the finished file to its final name.
  void finish(const fs::path& final_path) {
    if (const std::string sum = checksum_.hex(); sum != file_.checksum) {
      restart();
      throw Error(ErrorCode::kCorruptFile,
                  fmt::format("{}: expected checksum {}, got {}; the downloaded bytes were deleted", file_.name,
                              file_.checksum, sum));
    }
    out_.sync();
    fs::rename(path_, final_path);
  }

 private:
  void count(std::string_view bytes) {
    checksum_.add(bytes);
    done_ += bytes.size();
    on_bytes_(static_cast<int64_t>(bytes.size()));
  }

  const RemoteFile& file_;
  const fs::path path_;
  FileDescriptor out_;
  Checksum checksum_;
  const std::function<void(int64_t)>& on_bytes_;
  uint64_t done_ = 0;
};

// Requests the missing part of a file and appends it.
void receive(const RemoteFile& file, Partial& partial, const BlobOptions& options) {
  HttpRequest request{.url = file.url, .token = options.token, .check = options.check};
  if (partial.done() > 0) request.headers["Range"] = fmt::format("bytes={}-", partial.done());
  bool content = false;
  const auto on_head = [&](const HttpResponse& head) {
    if (head.status == 416) {  // the partial file does not match the server's file
      const uint64_t done = partial.done();
      partial.restart();
      throw NetworkError(fmt::format("{}: the server cannot resume at byte {}", file.name, done));
    }
    check_status(head, file.name);
    if (head.status == 206) {
      const std::string begin = fmt::format("bytes {}-", partial.done());
      if (!head.header("content-range").starts_with(begin)) {
        throw Error(ErrorCode::kInternal,
                    fmt::format("{}: the server resumed at the wrong position (Content-Range: {})", file.name,
                                head.header("content-range")));
      }
    } else if (partial.done() > 0) {
      partial.restart();
    }
    content = true;
  };
  perform(request, on_head, [&](std::string_view bytes) {
    if (content) partial.append(bytes);
  });
  if (partial.done() != file.size) {
    throw NetworkError(
        fmt::format("{}: the connection ended after {} of {} bytes", file.name, partial.done(), file.size));
  }
}

// Reads a file of the cache and compares its checksum. Tells about a damaged one; its download then replaces it.
bool intact(const RemoteFile& file, const fs::path& path) {
  const FileDescriptor in(path, O_RDONLY);
  Checksum checksum(file);
  std::vector<char> piece(1 << 20);
  for (ssize_t size; (size = ::read(in.get(), piece.data(), piece.size())) != 0;) {
    if (size < 0) fail_file(path, errno);
    checksum.add({piece.data(), static_cast<size_t>(size)});
  }
  const std::string sum = checksum.hex();
  if (sum == file.checksum) return true;
  log::warning("{}: {} is damaged (its checksum is {}); it is downloaded again", file.name, path.string(), sum);
  return false;
}

void sleep_for(std::chrono::milliseconds time, const Check& check) {
  constexpr std::chrono::milliseconds kSlice{100};
  for (; check && time > kSlice; time -= kSlice) {
    check();
    std::this_thread::sleep_for(kSlice);
  }
  std::this_thread::sleep_for(time);
}

// Waits until nobody else holds the lock.
void wait_for_lock(const FileDescriptor& held, const fs::path& lock, const Check& check) {
  if (!check) {
    if (::flock(held.get(), LOCK_EX) != 0) fail_file(lock, errno);
    return;
  }
  while (::flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_file(lock, errno);
    sleep_for(std::chrono::milliseconds(200), check);
  }
}

}  // namespace

void check_status(const HttpResponse& response, const std::string& what) {
  const int status = response.status;
  if (status >= 200 && status < 300) return;
  const std::string message(response.header("x-error-message").substr(0, 300));
  const auto refuse = [&](ErrorCode code, std::string_view advice) {
    throw Error(code,
                fmt::format("{}: HTTP status {}{}{}", what, status, advice, message.empty() ? "" : ": " + message));
  };
  if (status == 401) refuse(ErrorCode::kNotFound, ": not found, or it requires a token (set HF_TOKEN)");
  if (status == 403) refuse(ErrorCode::kNotFound, ": request access on the model's page");
  if (status == 404) refuse(ErrorCode::kNotFound, ": not found");
  if (status != 408 && status != 429 && status < 500) refuse(ErrorCode::kInternal, "");
  constexpr uint64_t kLongest = 60;
  const uint64_t seconds = parse_number(response.header("retry-after")).value_or(0);
  throw NetworkError(fmt::format("{}: HTTP status {}", what, status),
                     std::chrono::seconds(std::min(seconds, kLongest)));
}

void with_retries(const std::function<void()>& f, const Check& check) {
  auto pause = std::chrono::milliseconds(200);
  for (int attempt = 1;; ++attempt) {
    std::chrono::milliseconds requested{};
    try {
      return f();
    } catch (const NetworkError& e) {
      if (attempt == kAttempts) throw;
      requested = e.pause;
      log::info("{}; retrying{}", e.what(),
                requested.count() > 0 ? fmt::format(" after {} s as the server requested", e.pause.count()) : "");
    }
    sleep_for(std::max(pause, requested), check);
    pause *= 3;
  }
}

RemoteFile ask_for_file(const std::string& name, const Url& url, const std::string& token, const Check& check) {
  HttpResponse head;
  const auto ask = [&] {
    // The hub's own answer states checksum and size, even when another host serves the content.
    head = perform(
        {.method = "HEAD", .url = url, .token = token, .leave_origin = false, .check = check},
        [](const HttpResponse&) {}, [](std::string_view) {});
    if (head.status < 300 || head.status >= 400) check_status(head, name);
  };
  with_retries(ask, check);
  const bool linked = !head.header("x-linked-etag").empty();
  RemoteFile file{.name = name, .url = url, .checksum = plain_etag(head.header(linked ? "x-linked-etag" : "etag"))};
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const bool known = file.checksum.size() == kSha1Digits || file.checksum.size() == kSha256Digits;
  if (!known || !std::ranges::all_of(file.checksum, hex)) {
    throw Error(
        ErrorCode::kInternal,
        fmt::format("{}: the server sent no valid checksum (expected an ETag of 40 or 64 hexadecimal digits)", name));
  }
  const bool linked_size = !head.header("x-linked-size").empty();
  const auto size = parse_number(head.header(linked_size ? "x-linked-size" : "content-length"));
  if (!size) throw Error(ErrorCode::kInternal, fmt::format("{}: the server did not report the size of the file", name));
  file.size = *size;
  return file;
}

void download_blob(const RemoteFile& file, const fs::path& folder, const fs::path& lock, const BlobOptions& options) {
  const fs::path final_path = folder / file.checksum;
  const auto there = [&] {
    std::error_code ignored;
    if (!fs::is_regular_file(final_path, ignored) || fs::file_size(final_path, ignored) != file.size) return false;
    return !options.verify || intact(file, final_path);
  };
  if (there()) return options.on_bytes(static_cast<int64_t>(file.size));
  const FileDescriptor held(lock, O_RDWR | O_CREAT);
  if (::flock(held.get(), LOCK_EX | LOCK_NB) != 0) {
    log::info("{}: waiting for another download of it", file.name);
    wait_for_lock(held, lock, options.check);
    if (there()) return options.on_bytes(static_cast<int64_t>(file.size));
  }
  Partial partial(file, folder / (file.checksum + ".incomplete"), options.on_bytes);
  if (partial.done() < file.size) {
    const auto go_on = [&] {
      if (partial.done() < file.size) receive(file, partial, options);
    };
    with_retries(go_on, options.check);
  }
  partial.finish(final_path);
}

}  // namespace sluice::hub
