// A message either has transfers to begin, or none: then all ranks exchange what they have done.
#include "engine/rank_rows.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "parallel/communicator.h"
#include "parallel/message.h"

namespace sluice {
namespace {

void write_transfer(MessageWriter& write, const RowTransfer& transfer) {
  write(transfer.id), write(transfer.kind), write(transfer.epoch), write(transfer.rows), write(transfer.blocks);
}

std::shared_ptr<const RowTransfer> read_transfer(MessageReader& read) {
  const auto transfer = std::make_shared<RowTransfer>();
  read(transfer->id), read(transfer->kind), read(transfer->epoch), read(transfer->rows), read(transfer->blocks);
  return transfer;
}

}  // namespace

RankRows::RankRows(const EngineOptions& options, const LoadedModel& loaded, std::function<void()> wake,
                   std::function<void(std::vector<std::byte>)> tell, RowServer::Events events)
    : ranks_(loaded.plan.communicator),
      tell_(std::move(tell)),
      mover_(options, loaded, std::move(wake), std::move(events)),
      sizes_(mover_.store_options()),
      kept_(mover_.take_kept()) {
  if (ranks_ == nullptr) return;
  if (ranks_->rank() == 0) tell_({});
  agree();
}

// The smallest sizes, and the rows that are in the same slot on all ranks.
void RankRows::agree() {
  MessageWriter write;
  write(sizes_), write(kept_);
  std::unordered_map<BlockHash, std::pair<int, int>, BlockHasher> found;  // the slot, and how many ranks have it there
  for (const RowFile::Kept& kept : kept_) found[kept.row] = {kept.slot, 0};
  for (const std::vector<std::byte>& message : gather(std::move(write.message))) {
    MessageReader read{message};
    RowStoreOptions theirs;
    std::vector<RowFile::Kept> rows;
    read(theirs), read(rows), read.end();
    sizes_.host_slots = std::min(sizes_.host_slots, theirs.host_slots);
    sizes_.file_slots = std::min(sizes_.file_slots, theirs.file_slots);
    sizes_.rows_per_transfer = std::min(sizes_.rows_per_transfer, theirs.rows_per_transfer);
    for (const RowFile::Kept& kept : rows) {
      const auto own = found.find(kept.row);
      if (own != found.end() && own->second.first == kept.slot) ++own->second.second;
    }
  }
  std::erase_if(kept_, [&](const RowFile::Kept& kept) {
    return kept.slot >= sizes_.file_slots || found[kept.row].second < ranks_->size();
  });
}

std::vector<RowFile::Kept> RankRows::take_kept() { return std::exchange(kept_, {}); }

// What every rank gives, in their order.
std::vector<std::vector<std::byte>> RankRows::gather(std::vector<std::byte> mine) const {
  const auto ranks = static_cast<size_t>(ranks_->size());
  const uint64_t bytes = mine.size();
  std::vector<uint64_t> sizes(ranks);
  ranks_->all_gather(std::as_bytes(std::span(&bytes, 1)), std::as_writable_bytes(std::span(sizes)));
  const uint64_t most = std::ranges::max(sizes);
  std::vector<std::vector<std::byte>> out(ranks);
  if (most == 0) return out;
  std::vector<std::byte> all(ranks * most);
  mine.resize(most);
  ranks_->all_gather(mine, all);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::byte* const from = all.data() + rank * most;
    out[rank].assign(from, from + sizes[rank]);
  }
  return out;
}

void RankRows::start_before_step(std::vector<std::shared_ptr<const RowTransfer>> transfers) {
  const auto loads = std::stable_partition(transfers.begin(), transfers.end(), [](const auto& transfer) {
    return transfer->kind != RowTransfer::Kind::kLoad;
  });
  std::move(loads, transfers.end(), std::back_inserter(loads_));
  transfers.erase(loads, transfers.end());
  start_all(std::move(transfers));
}

void RankRows::start(std::vector<std::shared_ptr<const RowTransfer>> transfers) {
  std::vector<std::shared_ptr<const RowTransfer>> all = std::exchange(loads_, {});
  std::ranges::move(transfers, std::back_inserter(all));
  start_all(std::move(all));
}

void RankRows::start_all(std::vector<std::shared_ptr<const RowTransfer>> transfers) {
  if (transfers.empty()) return;
  if (ranks_ != nullptr) {
    MessageWriter write;
    for (const auto& transfer : transfers) {
      write_transfer(write, *transfer);
      open_[transfer->id].ranks = ranks_->size();
    }
    tell_(std::move(write.message));
  }
  mover_.start(std::move(transfers));
}

std::vector<RowMover::Done> RankRows::take_done() {
  if (ranks_ == nullptr) return mover_.take_done();
  std::vector<RowMover::Done> done;
  if (open_.empty()) return done;
  tell_({});
  for (const std::vector<std::byte>& message : gather(done_here())) {
    for (MessageReader read{message}; !read.message.empty();) {
      uint64_t transfer = 0;
      std::vector<int> failed;
      read(transfer), read(failed);
      const auto found = open_.find(transfer);
      if (found == open_.end()) throw Error(ErrorCode::kInternal, "a rank moved rows that it was not told to move");
      std::vector<int>& all = found->second.failed;
      all.insert(all.end(), failed.begin(), failed.end());
      if (--found->second.ranks > 0) continue;
      std::ranges::sort(all);
      all.erase(std::unique(all.begin(), all.end()), all.end());
      done.push_back({.transfer = transfer, .failed = std::move(all)});
      open_.erase(found);
    }
  }
  return done;
}

std::vector<std::byte> RankRows::done_here() {
  MessageWriter write;
  for (const RowMover::Done& done : mover_.take_done()) write(done.transfer), write(done.failed);
  return std::move(write.message);
}

void RankRows::follow(std::span<const std::byte> message) {
  if (message.empty()) {
    gather(done_here());
    return;
  }
  std::vector<std::shared_ptr<const RowTransfer>> transfers;
  for (MessageReader read{message}; !read.message.empty();) transfers.push_back(read_transfer(read));
  mover_.start(std::move(transfers));
}

}  // namespace sluice
