// The messages between a server that computes prompts and one that goes on with them (docs/scale-out.md, Prefill and
// decode apart). Rows of the prefix cache are named by their hashes, as in the store (cache/row_store.h).
//
// Each side begins with a Hello. Then the fetching side sends kWant, kCancel and kRelease, and the other one sends kRow
// and kRefuse. A message is a MessageHead and `size` bytes. All numbers are little-endian. What comes from the network
// is checked here before it is used: no size of a message is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "cache/block_pool.h"

namespace sluice {

struct Hello {
  char magic[8];
  uint32_t version;
  uint32_t zero;
  uint64_t row_bytes;
  Sha256 identity;  // of all that a row's values depend on besides its hash: the layout of blocks, the kernels
};
static_assert(sizeof(Hello) == 56);

Hello make_hello(uint64_t row_bytes, std::string_view identity);
// Returns why the peer's rows cannot be used here; empty: they can.
std::string hello_problem(const Hello& own, const Hello& peer);

enum class MessageKind : uint32_t {
  kWant = 1,  // the rows of a transfer; the transfer's number is chosen by the fetching side
  kCancel,    // they are not wanted any more
  kRelease,   // the rows of a prompt need not be held any more; no transfer
  kRow,       // a row of a transfer: RowHead, then the row
  kRefuse,    // the rows of a transfer that have not come do not come
};

struct MessageHead {
  MessageKind kind;
  uint32_t size;  // bytes that follow
  uint64_t transfer;
};
static_assert(sizeof(MessageHead) == 16);

struct RowHead {
  uint32_t index;     // in the transfer
  uint32_t checksum;  // of the row
};
static_assert(sizeof(RowHead) == 8);

inline constexpr size_t kMostWanted = 1024;  // rows of a transfer

struct Want {
  std::string id;  // of the prompt, see KvTransfer
  std::vector<BlockHash> rows;
};

// Whether a message of this kind and size may come from the fetching side, or from the other one.
bool may_come_from_fetcher(const MessageHead& head);
bool may_come_from_owner(const MessageHead& head, uint64_t row_bytes);

std::vector<std::byte> want_message(uint64_t transfer, const Want& want);
std::vector<std::byte> release_message(std::string_view id);

// Read what follows a head. nullopt: it is malformed.
std::optional<Want> parse_want(std::span<const std::byte> body);
std::optional<std::string> parse_release(std::span<const std::byte> body);

}  // namespace sluice
