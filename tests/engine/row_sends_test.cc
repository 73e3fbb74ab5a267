// Tests that rows are sent when they are saved, in the order of each want, and never if they could not be saved.
#include "engine/row_sends.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace sluice::row_sends_test {
namespace {

using Kind = RowTransfer::Kind;

class RowSendsTest : public ::testing::Test {
 protected:
  static RowSends::Transfer transfer(uint64_t id, Kind kind, std::initializer_list<int> slots, uint64_t want = 0) {
    RowTransfer out{.id = id, .kind = kind, .want = want};
    for (const int slot : slots) out.rows.push_back({.hash = {}, .host_slot = slot});
    return std::make_shared<const RowTransfer>(std::move(out));
  }
  void save(const RowSends::Transfer& transfer) { sends.note(*transfer); }
  void end(const RowSends::Transfer& transfer, uint8_t failed = 0) {
    sends.end_save(*transfer, std::vector<uint8_t>(transfer->rows.size(), failed));
  }

  std::string log;
  RowSends sends{8,
                 [this](const RowSends::Transfer& t) {
                   log += (t->kind == Kind::kRefuse ? "refuse " : "send ") + std::to_string(t->id) + "; ";
                 },
                 [this](const RowSends::Transfer& t) { log += "fail " + std::to_string(t->id) + "; "; }};
};

TEST_F(RowSendsTest, WaitForTheirRows) {
  const auto first = transfer(1, Kind::kSave, {0, 1}), second = transfer(2, Kind::kSave, {2});
  save(first), save(second);
  sends.start(transfer(3, Kind::kSend, {0, 1, 2}, 7));
  sends.start(transfer(4, Kind::kSend, {3}, 8));  // saved long ago
  EXPECT_EQ(log, "send 4; ");
  end(first);
  EXPECT_EQ(log, "send 4; ");
  end(second);
  EXPECT_EQ(log, "send 4; send 3; ");
}

TEST_F(RowSendsTest, StayInOrderWithinAWant) {
  const auto first = transfer(1, Kind::kSave, {0}), second = transfer(2, Kind::kSave, {1});
  save(first), save(second);
  sends.start(transfer(3, Kind::kSend, {0}, 7));
  sends.start(transfer(4, Kind::kSend, {5}, 7));
  sends.start(transfer(5, Kind::kRefuse, {}, 7));
  sends.start(transfer(6, Kind::kSend, {1}, 8));
  end(second);
  EXPECT_EQ(log, "send 6; ");
  end(first);
  EXPECT_EQ(log, "send 6; send 3; send 4; refuse 5; ");
}

TEST_F(RowSendsTest, AreRefusedIfARowCouldNotBeSaved) {
  const auto first = transfer(1, Kind::kSave, {0});
  save(first);
  sends.start(transfer(2, Kind::kSend, {0, 3}, 7));
  end(first, 1);
  EXPECT_EQ(log, "refuse 0; fail 2; ");
  log.clear();
  sends.start(transfer(3, Kind::kSend, {0}, 8));  // by somebody who does not know of the failure yet
  EXPECT_EQ(log, "refuse 0; fail 3; ");
  log.clear();
  sends.note(*transfer(4, Kind::kReceive, {0}));  // the slot has another row
  sends.start(transfer(5, Kind::kSend, {0}, 9));
  EXPECT_EQ(log, "send 5; ");
}

}  // namespace
}  // namespace sluice::row_sends_test
