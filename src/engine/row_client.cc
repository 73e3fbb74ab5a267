// See row_client.h.
#include "engine/row_client.h"

#include <fmt/core.h>

#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using std::chrono_literals::operator""s, std::chrono_literals::operator""ms;

constexpr std::chrono::milliseconds kConnect = 2s;
constexpr std::chrono::milliseconds kLook = 100ms;   // between looks for transfers that are silent
constexpr std::chrono::milliseconds kRetry = 1s;     // after a connection that failed
constexpr std::chrono::milliseconds kUnused = 300s;  // then the connection ends
constexpr size_t kMostClients = 64;

std::vector<int> every_row(const RowTransfer& transfer) {
  std::vector<int> indices(transfer.rows.size());
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

}  // namespace

RowClient::RowClient(TcpAddress address, const Hello& hello, MakeStream make_stream, std::chrono::milliseconds silence,
                     RowBytes bytes, TransferDone done)
    : address_(std::move(address)),
      hello_(hello),
      make_stream_(std::move(make_stream)),
      silence_(silence),
      bytes_(std::move(bytes)),
      done_(std::move(done)),
      threads_([this] { stop(); }) {
  threads_.start([this] { run(); });
}

RowClient::~RowClient() { threads_.join(); }

void RowClient::start(std::shared_ptr<const RowTransfer> transfer) {
  const std::scoped_lock lock(mutex_);
  new_.push_back(std::move(transfer));
  if (stream_ != nullptr) stream_->wake();
  wake_.notify_one();
}

// Without a connection nothing is told: the other server holds rows for a limited time only.
void RowClient::release(const std::string& id) {
  const std::scoped_lock lock(mutex_);
  if (stream_ == nullptr) return;
  released_.push_back(id);
  stream_->wake();
}

void RowClient::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !new_.empty(); });
      if (stopping_) break;
    }
    if (Clock::now() >= retry_at_) {
      try {
        const std::unique_ptr<ByteStream> stream = connect();
        if (use(stream.get())) exchange(*stream);
        use(nullptr);
      } catch (const std::exception& e) {
        use(nullptr);
        log::warning("keys and values of {}: {}", address_.str(), e.what());
        retry_at_ = Clock::now() + kRetry;
      }
    }
    end_all();
  }
  end_all();
}

std::unique_ptr<ByteStream> RowClient::connect() {
  const auto fail = [&](const std::string& why) { throw Error(ErrorCode::kInternal, why); };
  std::unique_ptr<ByteStream> stream = make_stream_(connect_tcp(address_, kConnect));
  if (const std::string problem = stream->open(kConnect); !problem.empty()) fail(problem);
  Hello theirs{};
  if (!stream->write(std::as_bytes(std::span(&hello_, 1)), kConnect) ||
      !stream->read(std::as_writable_bytes(std::span(&theirs, 1)), kConnect)) {
    fail("the server ended the connection");
  }
  if (const std::string problem = hello_problem(hello_, theirs); !problem.empty()) fail(problem);
  return stream;
}

// Makes the stream the open one, or none. Returns false when the client is stopping.
bool RowClient::use(ByteStream* stream) {
  const std::scoped_lock lock(mutex_);
  stream_ = stream;
  if (stream == nullptr) released_.clear();
  return !stopping_;
}

// Returns when the connection is of no use any more.
void RowClient::exchange(ByteStream& stream) {
  Clock::time_point used = Clock::now();
  while (send_new(stream)) {
    if (stream.readable(kLook) && !take_message(stream)) {
      if (!open_.empty()) log::warning("keys and values of {}: the connection ended", address_.str());
      return;
    }
    if (!end_silent(stream)) return;
    if (!open_.empty()) used = Clock::now();
    if (Clock::now() - used > kUnused) return;
  }
}

// Returns false if the connection ended or the client is stopping.
bool RowClient::send_new(ByteStream& stream) {
  std::vector<std::shared_ptr<const RowTransfer>> wanted;
  std::vector<std::string> released;
  {
    const std::scoped_lock lock(mutex_);
    if (stopping_) return false;
    wanted.swap(new_);
    released.swap(released_);
  }
  bool sent = true;
  for (std::shared_ptr<const RowTransfer>& transfer : wanted) {
    const size_t rows = transfer->rows.size();
    Want want{.id = transfer->source->id, .rows = {}};
    for (const RowTransfer::Row& row : transfer->rows) want.rows.push_back(row.hash);
    const uint64_t id = transfer->id;
    open_[id] = {.transfer = std::move(transfer),
                 .here = std::vector<bool>(rows),
                 .came = std::vector<bool>(rows),
                 .left = rows,
                 .last = Clock::now()};
    sent = sent && stream.write(want_message(id, want), kRowSilence);
  }
  for (const std::string& id : released) sent = sent && stream.write(release_message(id), kRowSilence);
  return sent;
}

// Returns false if the connection ended or the message is malformed.
bool RowClient::take_message(ByteStream& stream) {
  MessageHead head{};
  if (!stream.read(std::as_writable_bytes(std::span(&head, 1)), kRowSilence)) return false;
  if (!may_come_from_owner(head, hello_.row_bytes)) return false;
  if (head.kind == MessageKind::kRow) return take_row(stream, head);
  if (const auto open = open_.find(head.transfer); open != open_.end()) end(open);
  return true;
}

// A row of a transfer that has ended is read and dropped: its slot may have another one by now.
bool RowClient::take_row(ByteStream& stream, const MessageHead& head) {
  RowHead row{};
  if (!stream.read(std::as_writable_bytes(std::span(&row, 1)), kRowSilence)) return false;
  const auto open = open_.find(head.transfer);
  if (open == open_.end()) {
    unwanted_.resize(hello_.row_bytes);
    return stream.read(unwanted_, kRowSilence);
  }
  Open& own = open->second;
  if (row.index >= own.came.size() || own.came[row.index]) return false;
  const std::span<std::byte> bytes = bytes_(own.transfer->rows[row.index].host_slot);
  if (!stream.read(bytes, kRowSilence)) return false;
  own.came[row.index] = true;
  own.here[row.index] = checksum(bytes) == row.checksum;
  own.last = Clock::now();
  if (--own.left == 0) end(open);
  return true;
}

// Ends transfers of which no row came for long. Returns false if the connection ended.
bool RowClient::end_silent(ByteStream& stream) {
  const Clock::time_point now = Clock::now();
  bool sent = true;
  for (auto open = open_.begin(); open != open_.end();) {
    const auto own = open++;
    if (now - own->second.last < silence_) continue;
    const MessageHead cancel{.kind = MessageKind::kCancel, .size = 0, .transfer = own->first};
    sent = sent && stream.write(std::as_bytes(std::span(&cancel, 1)), kRowSilence);
    end(own);
  }
  return sent;
}

void RowClient::end(std::map<uint64_t, Open>::iterator open) {
  const Open own = std::move(open->second);
  open_.erase(open);
  std::vector<int> failed;
  for (size_t row = 0; row < own.here.size(); ++row) {
    if (!own.here[row]) failed.push_back(static_cast<int>(row));
  }
  done_(*own.transfer, std::move(failed));
}

void RowClient::end_all() {
  while (!open_.empty()) end(open_.begin());
  std::vector<std::shared_ptr<const RowTransfer>> unasked;
  {
    const std::scoped_lock lock(mutex_);
    unasked.swap(new_);
  }
  for (const auto& transfer : unasked) done_(*transfer, every_row(*transfer));
}

void RowClient::stop() {
  const std::scoped_lock lock(mutex_);
  stopping_ = true;
  if (stream_ != nullptr) stream_->shut_down();
  wake_.notify_one();
}

void RowClients::start(std::shared_ptr<const RowTransfer> transfer) {
  const TcpAddress address{.host = transfer->source->host, .port = transfer->source->port};
  auto client = clients_.find(address.str());
  if (client == clients_.end()) {
    if (clients_.size() == kMostClients) {
      log::warning("keys and values of {}: those of {} servers are used already", address.str(), kMostClients);
      return done_(*transfer, every_row(*transfer));
    }
    try {
      client = clients_.try_emplace(address.str(), address, hello_, make_stream_, silence_, bytes_, done_).first;
    } catch (const std::exception& e) {  // no memory or no more threads
      log::warning("keys and values of {}: {}", address.str(), e.what());
      return done_(*transfer, every_row(*transfer));
    }
  }
  client->second.start(std::move(transfer));
}

void RowClients::release(const std::string& host, int port, const std::string& id) {
  const auto client = clients_.find(TcpAddress{.host = host, .port = port}.str());
  if (client != clients_.end()) client->second.release(id);
}

}  // namespace sluice
