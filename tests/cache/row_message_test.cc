// Messages come from the network: whatever they hold, they are read right or refused.
#include "cache/row_message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "sluice/request.h"

namespace sluice::row_message_test {
namespace {

BlockHash hash_of(int i) { return {sha256(std::to_string(i))}; }

Want want_of(size_t rows, size_t id = 5) {
  Want want{.id = std::string(id, 'x'), .rows = {}};
  for (size_t i = 0; i < rows; ++i) want.rows.push_back(hash_of(static_cast<int>(i)));
  return want;
}

MessageHead head_of(std::span<const std::byte> message) {
  MessageHead head{};
  std::memcpy(&head, message.data(), sizeof head);
  return head;
}

TEST(RowMessage, WantsComeThrough) {
  for (const size_t rows : {size_t{1}, size_t{2}, kMostWanted}) {
    for (const size_t id : {size_t{0}, size_t{7}, kMostTransferId}) {
      const Want want = want_of(rows, id);
      const std::vector<std::byte> message = want_message(77, want);
      const MessageHead head = head_of(message);
      EXPECT_EQ(head.kind, MessageKind::kWant);
      EXPECT_EQ(head.transfer, 77u);
      EXPECT_EQ(head.size, message.size() - sizeof head);
      EXPECT_TRUE(may_come_from_fetcher(head));
      const std::optional<Want> read = parse_want(std::span(message).subspan(sizeof head));
      ASSERT_TRUE(read.has_value());
      EXPECT_EQ(read->id, want.id);
      EXPECT_EQ(read->rows, want.rows);
    }
  }
}

TEST(RowMessage, ReleasesComeThrough) {
  const std::vector<std::byte> message = release_message("prompt 3");
  EXPECT_TRUE(may_come_from_fetcher(head_of(message)));
  EXPECT_EQ(parse_release(std::span(message).subspan(sizeof(MessageHead))), "prompt 3");
}

TEST(RowMessage, SizesAreCheckedBeforeMemoryIsTaken) {
  const auto head = [](MessageKind kind, uint32_t size) {
    return MessageHead{.kind = kind, .size = size, .transfer = 1};
  };
  EXPECT_FALSE(may_come_from_fetcher(head(MessageKind::kWant, 0xffffffff)));
  EXPECT_FALSE(may_come_from_fetcher(head(MessageKind::kCancel, 1)));
  EXPECT_FALSE(may_come_from_fetcher(head(MessageKind::kRelease, kMostTransferId + 1)));
  EXPECT_FALSE(may_come_from_fetcher(head(MessageKind::kRow, 8 + 1000)));
  EXPECT_FALSE(may_come_from_fetcher(head(MessageKind::kRefuse, 0)));
  EXPECT_FALSE(may_come_from_fetcher(head(static_cast<MessageKind>(0), 0)));
  EXPECT_FALSE(may_come_from_fetcher(head(static_cast<MessageKind>(99), 0)));
  EXPECT_TRUE(may_come_from_owner(head(MessageKind::kRow, 8 + 1000), 1000));
  EXPECT_FALSE(may_come_from_owner(head(MessageKind::kRow, 8 + 999), 1000));
  EXPECT_FALSE(may_come_from_owner(head(MessageKind::kRow, 8 + 1001), 1000));
  EXPECT_TRUE(may_come_from_owner(head(MessageKind::kRefuse, 0), 1000));
  EXPECT_FALSE(may_come_from_owner(head(MessageKind::kRefuse, 1), 1000));
  EXPECT_FALSE(may_come_from_owner(head(MessageKind::kWant, 44), 1000));
}

TEST(RowMessage, EveryCutOfAWantIsRefused) {
  const std::vector<std::byte> message = want_message(1, want_of(3));
  const auto body = std::span(message).subspan(sizeof(MessageHead));
  for (size_t size = 0; size < body.size(); ++size) {
    const std::optional<Want> read = parse_want(body.first(size));
    const bool whole_rows = size > 9 && (size - 9) % sizeof(BlockHash) == 0;
    EXPECT_EQ(read.has_value(), whole_rows) << size;
  }
  EXPECT_FALSE(parse_want(want_message(1, want_of(1))).has_value()) << "a head is no body";
}

// Whatever a peer sends, what is read lies within it.
TEST(RowMessage, RandomBytesAreReadOrRefused) {
  std::mt19937 random(11);
  int accepted = 0;
  for (int round = 0; round < 50'000; ++round) {
    std::vector<std::byte> message = want_message(random(), want_of(1 + random() % 4, random() % 20));
    std::vector<std::byte> body(message.begin() + sizeof(MessageHead), message.end());
    switch (random() % 4) {
      case 0:
        body.resize(random() % (body.size() + 1));
        break;
      case 1:
        body[random() % 4] = static_cast<std::byte>(random());
        break;
      case 2:
        body[random() % body.size()] = static_cast<std::byte>(random());
        break;
      default:
        for (std::byte& byte : body) byte = static_cast<std::byte>(random());
    }
    const std::vector<std::byte> exact(body.begin(), body.end());  // a sanitizer finds reads behind it
    const std::optional<Want> read = parse_want(exact);
    if (!read) continue;
    ++accepted;
    ASSERT_LE(read->id.size(), kMostTransferId);
    ASSERT_EQ(4 + read->id.size() + read->rows.size() * sizeof(BlockHash), exact.size());
    ASSERT_EQ(std::memcmp(read->rows.data(), exact.data() + 4 + read->id.size(), read->rows.size() * 32), 0);
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_LT(accepted, 49'000);
}

TEST(RowMessage, HelloNamesWhatDiffers) {
  const Hello own = make_hello(4096, "model a");
  EXPECT_EQ(hello_problem(own, make_hello(4096, "model a")), "");
  EXPECT_EQ(hello_problem(own, make_hello(4096, "model b")), "its model, types, --backend or --block-size differs");
  EXPECT_NE(hello_problem(own, make_hello(8192, "model a")).find("its rows have 8192 bytes (expected 4096)"),
            std::string::npos);
  Hello other = own;
  other.version = 9;
  EXPECT_EQ(hello_problem(own, other), "it has version 9 of the protocol (expected 1)");
  other = own;
  other.magic[0] = 'G';
  EXPECT_EQ(hello_problem(own, other),
            "it is not a server that gives keys and values, or its --kv-transfer-backend differs");
}

}  // namespace
}  // namespace sluice::row_message_test
