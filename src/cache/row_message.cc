// See row_message.h.
#include "cache/row_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "sluice/request.h"

namespace sluice {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are written as they lie in memory");

constexpr char kHelloMagic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', 'V'};
constexpr uint32_t kProtocolVersion = 1;  // also of the order of values within a row

template <class T>
void append(std::vector<std::byte>& message, const T* values, size_t count) {
  const size_t at = message.size();
  message.resize(at + count * sizeof(T));
  if (count > 0) std::memcpy(message.data() + at, values, count * sizeof(T));
}

std::vector<std::byte> message_of(MessageKind kind, uint64_t transfer, size_t size) {
  const MessageHead head{.kind = kind, .size = static_cast<uint32_t>(size), .transfer = transfer};
  std::vector<std::byte> message;
  message.reserve(sizeof head + size);
  append(message, &head, 1);
  return message;
}

}  // namespace

Hello make_hello(uint64_t row_bytes, std::string_view identity) {
  Hello hello{
      .magic = {}, .version = kProtocolVersion, .zero = 0, .row_bytes = row_bytes, .identity = sha256(identity)};
  std::copy_n(kHelloMagic, sizeof kHelloMagic, hello.magic);
  return hello;
}

std::string hello_problem(const Hello& own, const Hello& peer) {
  if (!std::equal(kHelloMagic, kHelloMagic + sizeof kHelloMagic, peer.magic))
    return "it is not a server that gives keys and values, or its --kv-transfer-backend differs";
  if (peer.version != own.version) {
    return fmt::format("it has version {} of the protocol (expected {})", peer.version, own.version);
  }
  if (peer.row_bytes != own.row_bytes) {
    return fmt::format("its rows have {} bytes (expected {}): the model, --block-size or --kv-cache-dtype differs",
                       peer.row_bytes, own.row_bytes);
  }
  if (peer.identity != own.identity) return "its model, types, --backend or --block-size differs";
  return {};
}

bool may_come_from_fetcher(const MessageHead& head) {
  switch (head.kind) {
    case MessageKind::kWant:
      return head.size <= sizeof(uint32_t) + kMostTransferId + kMostWanted * sizeof(BlockHash);
    case MessageKind::kCancel:
      return head.size == 0;
    case MessageKind::kRelease:
      return head.size <= kMostTransferId;
    default:
      return false;
  }
}

bool may_come_from_owner(const MessageHead& head, uint64_t row_bytes) {
  if (head.kind == MessageKind::kRow) return head.size == sizeof(RowHead) + row_bytes;
  return head.kind == MessageKind::kRefuse && head.size == 0;
}

std::vector<std::byte> want_message(uint64_t transfer, const Want& want) {
  CHECK(want.id.size() <= kMostTransferId && !want.rows.empty() && want.rows.size() <= kMostWanted, "{} rows of '{}'",
        want.rows.size(), want.id);
  const auto id_size = static_cast<uint32_t>(want.id.size());
  std::vector<std::byte> message =
      message_of(MessageKind::kWant, transfer, sizeof id_size + want.id.size() + want.rows.size() * sizeof(BlockHash));
  append(message, &id_size, 1);
  append(message, want.id.data(), want.id.size());
  append(message, want.rows.data(), want.rows.size());
  return message;
}

std::vector<std::byte> release_message(std::string_view id) {
  std::vector<std::byte> message = message_of(MessageKind::kRelease, 0, id.size());
  append(message, id.data(), id.size());
  return message;
}

std::optional<Want> parse_want(std::span<const std::byte> body) {
  uint32_t id_size = 0;
  if (body.size() < sizeof id_size) return std::nullopt;
  std::memcpy(&id_size, body.data(), sizeof id_size);
  body = body.subspan(sizeof id_size);
  if (id_size > kMostTransferId || id_size > body.size()) return std::nullopt;
  Want want{.id = {reinterpret_cast<const char*>(body.data()), id_size}, .rows = {}};
  body = body.subspan(id_size);
  const size_t rows = body.size() / sizeof(BlockHash);
  if (rows == 0 || rows > kMostWanted || body.size() % sizeof(BlockHash) != 0) return std::nullopt;
  want.rows.resize(rows);
  std::memcpy(want.rows.data(), body.data(), body.size());
  return want;
}

std::optional<std::string> parse_release(std::span<const std::byte> body) {
  if (body.size() > kMostTransferId) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

}  // namespace sluice
