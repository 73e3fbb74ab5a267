// Each peer has a thread that reads what it wants, and one that sends.
#include "engine/row_server.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/checksum.h"
#include "base/log.h"
#include "sluice/error.h"

namespace sluice {
namespace {

using std::chrono_literals::operator""s;

constexpr size_t kMostPeers = 64;
constexpr size_t kMostWants = 4096;  // of all peers
constexpr std::chrono::milliseconds kGreeting = 5s, kIdle = 1s;
constexpr const char* kListenOption = "--kv-transfer-listen";

// The address is also the one that other servers are told.
TcpAddress listen_address(const std::string& text) {
  TcpAddress address = TcpAddress::parse(text, kListenOption);
  if (address.host != "0.0.0.0" && address.host != "::" && address.host != "*") return address;
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("{}: other servers cannot reach '{}' (expected an address of this machine)", kListenOption,
                          address.host));
}

std::vector<int> indices_from(size_t first, size_t end) {
  std::vector<int> indices(end - first);
  std::iota(indices.begin(), indices.end(), static_cast<int>(first));
  return indices;
}

}  // namespace

RowServer::RowServer(const std::string& address, const Hello& hello, MakeStream make_stream, RowBytes bytes,
                     Events events, TransferDone done)
    : address_(listen_address(address)),
      hello_(hello),
      make_stream_(std::move(make_stream)),
      bytes_(std::move(bytes)),
      events_(std::move(events)),
      done_(std::move(done)),
      listener_(address_, kListenOption),
      threads_([this] {
        stopping_ = true;
        listener_.shut_down();
      }) {
  address_.port = listener_.port();
  threads_.start([this] { accept_peers(); });
}

RowServer::~RowServer() { threads_.join(); }

void RowServer::accept_peers() {
  while (!stopping_) {
    std::unique_ptr<TcpStream> connection = listener_.accept(kIdle);
    for (auto peer = peers_.begin(); peer != peers_.end();) {
      const auto next = std::next(peer);
      if (peer->gone) {
        peer->thread.join();
        peers_.erase(peer);
      }
      peer = next;
    }
    if (connection == nullptr || stopping_) continue;
    if (peers_.size() == kMostPeers) {
      log::warning("{} servers fetch keys and values; a further one is refused", kMostPeers);
      continue;
    }
    Peer& peer = peers_.emplace_back();
    peer.stream = make_stream_(std::move(connection));
    try {
      peer.thread = std::thread([this, &peer] { serve(peer); });
    } catch (const std::exception& e) {  // most likely there are no more threads
      log::warning("a server that fetches keys and values is refused: {}", e.what());
      peers_.pop_back();
    }
  }
  for (Peer& peer : peers_) peer.stream->shut_down();
  for (Peer& peer : peers_) peer.thread.join();
}

void RowServer::serve(Peer& peer) {
  const auto guarded = [](const auto& work) {
    try {
      work();
    } catch (const std::exception& e) {  // no memory or no more threads
      log::warning("a server that fetches keys and values is left: {}", e.what());
    }
  };
  guarded([&] {
    if (!greet(peer)) return;
    std::thread sender([this, &peer] { send_rows(peer); });
    guarded([&] {
      while (take_message(peer)) {
      }
    });
    end(peer);
    sender.join();
  });
  peer.stream->shut_down();
  peer.gone = true;
}

// Both sides check the other one's greeting; the fetching side reports what is wrong.
bool RowServer::greet(Peer& peer) {
  Hello theirs{};
  return peer.stream->open(kGreeting).empty() &&
         peer.stream->read(std::as_writable_bytes(std::span(&theirs, 1)), kGreeting) &&
         peer.stream->write(std::as_bytes(std::span(&hello_, 1)), kGreeting) && hello_problem(hello_, theirs).empty();
}

// Returns false if the connection ended or the message is malformed.
bool RowServer::take_message(Peer& peer) {
  while (!peer.stream->readable(kIdle)) {
    if (stopping_) return false;
  }
  MessageHead head{};
  if (!peer.stream->read(std::as_writable_bytes(std::span(&head, 1)), kRowSilence)) return false;
  if (!may_come_from_fetcher(head)) return false;
  std::vector<std::byte> body(head.size);
  if (!peer.stream->read(body, kRowSilence)) return false;
  switch (head.kind) {
    case MessageKind::kWant: {
      std::optional<Want> want = parse_want(body);
      return want && open_want(peer, head.transfer, std::move(*want));
    }
    case MessageKind::kCancel:
      cancel(peer, head.transfer);
      return true;
    default:
      std::optional<std::string> id = parse_release(body);
      if (id) events_.release(std::move(*id));
      return id.has_value();
  }
}

bool RowServer::open_want(Peer& peer, uint64_t transfer, Want want) {
  RowWant opened{.id = std::move(want.id), .rows = std::move(want.rows)};
  {
    const std::scoped_lock lock(mutex_);
    if (wants_.size() == kMostWants) return false;
    opened.number = ++last_want_;
    wants_[opened.number] = {.peer = &peer, .transfer = transfer, .rows = opened.rows.size()};
  }
  events_.want(std::move(opened));
  return true;
}

void RowServer::cancel(const Peer& peer, uint64_t transfer) {
  uint64_t number = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = std::ranges::find_if(
        wants_, [&](const auto& open) { return open.second.peer == &peer && open.second.transfer == transfer; });
    if (found == wants_.end()) return;
    number = found->first;
    wants_.erase(found);
  }
  events_.forget(number);
}

void RowServer::end(Peer& peer) {
  std::vector<uint64_t> forgotten;
  {
    const std::scoped_lock lock(mutex_);
    peer.ended = true;
    for (const auto& [number, open] : wants_) {
      if (open.peer == &peer) forgotten.push_back(number);
    }
    for (const uint64_t number : forgotten) wants_.erase(number);
  }
  peer.wake.notify_one();
  peer.stream->shut_down();
  for (const uint64_t number : forgotten) events_.forget(number);
}

void RowServer::start(std::shared_ptr<const RowTransfer> transfer) {
  {
    const std::scoped_lock lock(mutex_);
    const auto want = wants_.find(transfer->want);
    if (want != wants_.end()) {
      Peer& peer = *want->second.peer;
      peer.transfers.push_back(std::move(transfer));
      return peer.wake.notify_one();
    }
  }
  done_(*transfer, indices_from(0, transfer->rows.size()));
}

void RowServer::send_rows(Peer& peer) {
  for (;;) {
    std::shared_ptr<const RowTransfer> transfer;
    bool ended = false;
    {
      std::unique_lock lock(mutex_);
      peer.wake.wait(lock, [&] { return peer.ended || !peer.transfers.empty(); });
      if (peer.transfers.empty()) return;
      transfer = std::move(peer.transfers.front());
      peer.transfers.pop_front();
      ended = peer.ended;
    }
    size_t sent = 0;
    if (!ended && !send(peer, *transfer, sent)) peer.stream->shut_down();  // which ends the reading thread
    done_(*transfer, indices_from(sent, transfer->rows.size()));
  }
}

// Returns false if the connection ended. A want that was cancelled gets nothing.
bool RowServer::send(Peer& peer, const RowTransfer& transfer, size_t& sent) {
  MessageHead head{.kind = MessageKind::kRefuse, .size = 0, .transfer = 0};
  {
    const std::scoped_lock lock(mutex_);
    const auto want = wants_.find(transfer.want);
    if (want == wants_.end()) return true;
    head.transfer = want->second.transfer;
    want->second.rows -= std::min(want->second.rows, transfer.rows.size());
    if (transfer.kind == RowTransfer::Kind::kRefuse || want->second.rows == 0) wants_.erase(want);
  }
  ByteStream& stream = *peer.stream;
  if (transfer.kind == RowTransfer::Kind::kRefuse) {
    return stream.write(std::as_bytes(std::span(&head, 1)), kRowSilence);
  }
  head.kind = MessageKind::kRow;
  for (; sent < transfer.rows.size(); ++sent) {
    const RowTransfer::Row& row = transfer.rows[sent];
    const std::span<const std::byte> bytes = bytes_(row.host_slot);
    head.size = static_cast<uint32_t>(sizeof(RowHead) + bytes.size());
    struct {
      MessageHead head;
      RowHead row;
    } const heads{head, {.index = static_cast<uint32_t>(row.index), .checksum = checksum(bytes)}};
    if (!stream.write(std::as_bytes(std::span(&heads, 1)), kRowSilence) || !stream.write(bytes, kRowSilence))
      return false;
  }
  return true;
}

}  // namespace sluice
