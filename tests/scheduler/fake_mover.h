// Moves rows of a FakeModel's cache to slots and back, at any time after they were asked for and in any order. Slots
// remember whose row they have, so that a slot that was given to another row too early is found out. Transfers between
// servers are the test's: host_slot() has what they move.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "scheduler/fake_model.h"

namespace sluice {

class FakeMover {
 public:
  // `fails(row)` says whether a row's transfer fails.
  FakeMover(FakeModel& model, std::function<bool()> fails) : model_(model), fails_(std::move(fails)) {}

  void take(std::vector<std::shared_ptr<const RowTransfer>> transfers) {
    for (auto& transfer : transfers) pending_.push_back(std::move(transfer));
  }
  bool idle() const { return pending_.empty(); }
  bool saves(int slot) const {
    return std::ranges::any_of(pending_, [&](const auto& transfer) {
      return transfer->kind == RowTransfer::Kind::kSave &&
             std::ranges::any_of(transfer->rows, [&](const auto& row) { return row.host_slot == slot; });
    });
  }
  size_t pending() const { return pending_.size(); }

  // Carries one of the pending transfers out.
  void run(size_t which, Scheduler& scheduler) {
    const std::shared_ptr<const RowTransfer> transfer = pending_.at(which);
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(which));
    std::vector<int> failed;
    for (size_t i = 0; i < transfer->rows.size(); ++i) {
      if (!move(*transfer, i)) failed.push_back(static_cast<int>(i));
    }
    if (transfer->kind == RowTransfer::Kind::kClear) {
      for (auto& [number, slot] : file_) {
        if (slot.epoch < transfer->epoch && slot.cleared_by == 0) slot.cleared_by = transfer->id;
      }
    }
    scheduler.finish_transfer(transfer->id, failed);
  }

  struct Slot {
    BlockHash row;
    uint64_t epoch = 0;
    std::vector<uint64_t> values{};
    uint64_t cleared_by = 0;  // the transfer that made it invalid for those that begin later
  };
  Slot& host_slot(int slot) { return host_[slot]; }

 private:
  bool move(const RowTransfer& transfer, size_t index) {
    const RowTransfer::Row& row = transfer.rows[index];
    const size_t groups = transfer.blocks.size() / transfer.rows.size();
    const auto blocks = std::span(transfer.blocks).subspan(index * groups, groups);
    Slot& host = host_[row.host_slot];
    switch (transfer.kind) {
      case RowTransfer::Kind::kSave:
        if (fails_()) return false;
        host = {.row = row.hash};
        for (const BlockId block : blocks) {
          const auto values = model_.block(block);
          host.values.insert(host.values.end(), values.begin(), values.end());
        }
        return true;
      case RowTransfer::Kind::kLoad: {
        if (row.file_slot >= 0) {
          if (fails_()) return false;
          const Slot& from = file_.at(row.file_slot);
          EXPECT_EQ(from.row, row.hash);
          EXPECT_TRUE(from.cleared_by == 0 || transfer.id < from.cleared_by);
          host = {.row = from.row, .values = from.values};
        }
        EXPECT_EQ(host.row, row.hash);
        for (size_t group = 0; group < groups; ++group) {
          if (blocks[group] == kNoBlock) continue;
          const auto values = model_.block(blocks[group]);
          std::copy_n(host.values.begin() + static_cast<std::ptrdiff_t>(group * values.size()), values.size(),
                      values.begin());
          ++loaded;
        }
        return true;
      }
      case RowTransfer::Kind::kWrite:
        if (fails_()) return false;
        EXPECT_EQ(host.row, row.hash);
        file_[row.file_slot] = host;
        file_[row.file_slot].epoch = transfer.epoch;
        return true;
      case RowTransfer::Kind::kClear:
        break;
      case RowTransfer::Kind::kReceive:
      case RowTransfer::Kind::kSend:
      case RowTransfer::Kind::kRefuse:
        ADD_FAILURE() << "a transfer between servers";
    }
    return true;
  }

  FakeModel& model_;
  std::function<bool()> fails_;
  std::vector<std::shared_ptr<const RowTransfer>> pending_;
  std::map<int, Slot> host_, file_;

 public:
  static inline uint64_t loaded = 0;  // blocks
};

}  // namespace sluice
