// Fuzzes the messages between servers that exchange keys and values: what is accepted gives the same bytes again.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/row_message.h"
#include "sluice/request.h"

namespace {

using namespace sluice;

void same(std::span<const std::byte> body, std::span<const std::byte> message) {
  CHECK(std::ranges::equal(body, message.subspan(sizeof(MessageHead))), "another message of {} bytes", body.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  MessageHead head{};
  if (size < sizeof head) return 0;
  std::memcpy(&head, data, sizeof head);
  const auto body = std::as_bytes(std::span(data, size)).subspan(sizeof head);
  if (may_come_from_fetcher(head)) CHECK(head.size < 64 << 10, "{} bytes", head.size);
  if (may_come_from_owner(head, 4096)) CHECK(head.size <= 4096 + sizeof(RowHead), "{} bytes", head.size);
  if (const auto want = parse_want(body)) same(body, want_message(head.transfer, *want));
  if (const auto id = parse_release(body)) same(body, release_message(*id));
  return 0;
}
