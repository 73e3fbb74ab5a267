// See row_store.h.
#include "cache/row_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {

SlotPool::SlotPool(int slots) : slots_(static_cast<size_t>(slots)) {
  for (int slot = slots; slot-- > 0;) settle(slot);
}

// A slot whose owner or users changed becomes free or idle.
void SlotPool::settle(int slot) {
  Slot& own = slots_[slot];
  if (own.users > 0) return;
  if (own.owned) {
    own.at = idle_.insert(idle_.end(), slot);
  } else if (!own.in_free) {
    own.in_free = true;
    free_.push_back(slot);
  }
}

SlotPool::Taken SlotPool::take(const BlockHash& row) {
  while (!free_.empty()) {
    const int slot = free_.back();
    free_.pop_back();
    slots_[slot].in_free = false;
    if (slots_[slot].owned) continue;
    own(slot, row);
    return {.slot = slot};
  }
  if (idle_.empty()) return {};
  const int slot = idle_.front();
  const BlockHash lost = std::exchange(slots_[slot].row, row);
  touch(slot);
  return {.slot = slot, .lost = lost};
}

void SlotPool::own(int slot, const BlockHash& row) {
  Slot& taken = slots_[slot];
  CHECK(!taken.owned && taken.users == 0, "slot {} is not free", slot);
  taken.row = row;
  taken.owned = true;
  ++owned_;
  settle(slot);
}

void SlotPool::touch(int slot) {
  Slot& own = slots_[slot];
  if (own.owned && own.users == 0) idle_.splice(idle_.end(), idle_, own.at);
}

void SlotPool::disown(int slot) {
  Slot& own = slots_[slot];
  CHECK(own.owned, "slot {} keeps nothing", slot);
  if (own.users == 0) idle_.erase(own.at);
  own.owned = false;
  --owned_;
  settle(slot);
}

void SlotPool::begin_use(int slot) {
  Slot& own = slots_[slot];
  CHECK(own.owned || own.users > 0, "slot {} keeps nothing", slot);
  if (own.users++ == 0) idle_.erase(own.at);
}

void SlotPool::end_use(int slot) {
  CHECK(slots_[slot].users > 0, "slot {} is not in use", slot);
  --slots_[slot].users;
  settle(slot);
}

RowStore::RowStore(const RowStoreOptions& options)
    : options_(options), host_(options.host_slots), file_(options.file_slots) {
  CHECK(options.rows_per_transfer > 0 && (options.host_slots > 0 || options.file_slots == 0), "{} rows, {} slots",
        options.rows_per_transfer, options.host_slots);
}

bool RowStore::has(const BlockHash& row) const {
  const auto found = entries_.find(row);
  return found != entries_.end() && (found->second.in_host || found->second.in_file);
}

void RowStore::touch(const BlockHash& row) {
  const auto found = entries_.find(row);
  if (found == entries_.end()) return;
  if (found->second.host_slot >= 0) host_.touch(found->second.host_slot);
  if (found->second.file_slot >= 0) file_.touch(found->second.file_slot);
}

bool RowStore::save(const BlockHash& row, std::span<const BlockId> blocks) {
  if (!enabled()) return false;
  if (entries_.contains(row)) {
    touch(row);
    return false;
  }
  const int slot = take_host_slot(row);
  if (slot < 0) {
    ++stats_.not_saved;
    return false;
  }
  entries_[row].host_slot = slot;
  host_.begin_use(slot);
  add(saving_, {.hash = row, .host_slot = slot}, blocks);
  return true;
}

// A host slot for the row; -1 if all are busy.
int RowStore::take_host_slot(const BlockHash& row) {
  const SlotPool::Taken taken = host_.take(row);
  if (taken.lost) lose_host_slot(*taken.lost);
  return taken.slot;
}

uint64_t RowStore::load(std::span<const BlockHash> rows, std::span<const BlockId> blocks) {
  CHECK(!rows.empty() && blocks.size() % rows.size() == 0, "{} rows of {} blocks", rows.size(), blocks.size());
  const size_t groups = blocks.size() / rows.size();
  const uint64_t number = ++last_load_;
  OpenLoad& load = loads_[number];
  load.left = static_cast<int>(rows.size());
  RowTransfer at_once{.kind = RowTransfer::Kind::kLoad};
  for (size_t i = 0; i < rows.size(); ++i) {
    const Entry& entry = entries_.at(rows[i]);
    const auto own = blocks.subspan(i * groups, groups);
    CHECK(entry.in_host || entry.in_file, "a row is loaded before it is saved");
    if (entry.in_host) {
      host_.begin_use(entry.host_slot);
      add(at_once, {.hash = rows[i], .host_slot = entry.host_slot}, own, number);
    } else {
      file_.begin_use(entry.file_slot);
      load.waiting.push_back(
          {.row = {.hash = rows[i], .file_slot = entry.file_slot}, .blocks = {own.begin(), own.end()}});
    }
  }
  begin(at_once, number);
  return number;
}

// Adds a row to a transfer that will begin later, or now if it is full.
void RowStore::add(RowTransfer& transfer, const RowTransfer::Row& row, std::span<const BlockId> blocks, uint64_t load) {
  transfer.rows.push_back(row);
  transfer.blocks.insert(transfer.blocks.end(), blocks.begin(), blocks.end());
  if (static_cast<int>(transfer.rows.size()) == options_.rows_per_transfer) begin(transfer, load);
}

// Begins a transfer, if it has rows; it has none afterwards. Returns its number.
uint64_t RowStore::begin(RowTransfer& transfer, uint64_t load) {
  using Kind = RowTransfer::Kind;
  if (transfer.rows.empty() && transfer.kind != Kind::kClear && transfer.kind != Kind::kRefuse) return 0;
  const auto work = std::make_shared<RowTransfer>(RowTransfer{.id = ++last_transfer_,
                                                              .kind = transfer.kind,
                                                              .epoch = epoch_,
                                                              .want = transfer.want,
                                                              .source = transfer.source});
  work->rows.swap(transfer.rows);
  work->blocks.swap(transfer.blocks);
  under_way_[work->id] = {.work = work, .load = load};
  begun_.push_back(work);
  return work->id;
}

uint64_t RowStore::receive(std::span<const BlockHash> rows, RowSource source) {
  if (!enabled()) return 0;
  for (const BlockHash& row : rows) touch(row);  // so that they do not make room for each other
  RowTransfer receiving{.kind = RowTransfer::Kind::kReceive,
                        .source = std::make_shared<const RowSource>(std::move(source))};
  const uint64_t before = last_transfer_;
  std::vector<uint64_t> awaited;
  for (const BlockHash& row : rows) {
    if (const auto found = entries_.find(row); found != entries_.end()) {
      const uint64_t transfer = found->second.in_host ? 0 : found->second.received_by;
      if (transfer != 0 && std::ranges::find(awaited, transfer) == awaited.end()) awaited.push_back(transfer);
      continue;
    }
    const int slot = take_host_slot(row);
    if (slot < 0) break;  // without it, those after it are of no use
    entries_[row].host_slot = slot;
    host_.begin_use(slot);
    receiving.rows.push_back({.hash = row, .host_slot = slot});
    if (static_cast<int>(receiving.rows.size()) == options_.rows_per_fetch) begin_receive(receiving);
  }
  begin_receive(receiving);
  for (uint64_t own = before + 1; own <= last_transfer_; ++own) awaited.push_back(own);
  if (awaited.empty()) return 0;
  for (const uint64_t transfer : awaited) under_way_.at(transfer).fetches.push_back(last_fetch_ + 1);
  fetches_[++last_fetch_] = static_cast<int>(awaited.size());
  return last_fetch_;
}

void RowStore::begin_receive(RowTransfer& transfer) {
  const uint64_t id = begin(transfer);
  if (id == 0) return;
  for (const RowTransfer::Row& row : under_way_.at(id).work->rows) entries_.at(row.hash).received_by = id;
}

void RowStore::end_fetches(std::span<const uint64_t> fetches) {
  for (const uint64_t fetch : fetches) {
    const auto open = fetches_.find(fetch);
    if (--open->second > 0) continue;
    fetches_.erase(open);
    ended_fetches_.push_back(fetch);
  }
}

std::vector<uint64_t> RowStore::take_fetches() { return std::exchange(ended_fetches_, {}); }

bool RowStore::in_host(const BlockHash& row) const {
  const auto found = entries_.find(row);
  return found != entries_.end() && found->second.in_host;
}

bool RowStore::comes_to_host(const BlockHash& row) const {
  const auto found = entries_.find(row);
  return found != entries_.end() && !found->second.in_host && found->second.host_slot >= 0;
}

void RowStore::send(const BlockHash& row, uint64_t want, int index) {
  CHECK(can_send(row), "a row is sent before it is saved");
  const Entry& entry = entries_.at(row);
  if (sending_.want != want) begin(sending_);
  sending_.want = want;
  host_.begin_use(entry.host_slot);
  add(sending_, {.hash = row, .host_slot = entry.host_slot, .index = index}, {});
}

bool RowStore::can_send(const BlockHash& row) const {
  const auto found = entries_.find(row);
  if (found == entries_.end()) return false;
  const Entry& entry = found->second;
  return entry.in_host || (entry.host_slot >= 0 && !entry.in_file && entry.received_by == 0);
}

// What is being sent comes before it.
void RowStore::refuse(uint64_t want, size_t rows) {
  begin(sending_);
  stats_.not_sent += rows;
  RowTransfer refusal{.kind = RowTransfer::Kind::kRefuse, .want = want};
  begin(refusal);
}

std::optional<int> RowStore::hold(const BlockHash& row) {
  const auto found = entries_.find(row);
  if (found == entries_.end() || found->second.host_slot < 0 || held_ >= options_.host_slots / 2) return std::nullopt;
  host_.begin_use(found->second.host_slot);
  ++held_;
  return found->second.host_slot;
}

void RowStore::release(int slot) {
  --held_;
  host_.end_use(slot);
}

// Begins to read rows of the file, in order, as long as there are host slots for them.
void RowStore::begin_reads(uint64_t number) {
  OpenLoad& load = loads_.at(number);
  RowTransfer reads{.kind = RowTransfer::Kind::kLoad};
  int forgotten = 0;
  while (!load.waiting.empty()) {
    auto& [row, blocks] = load.waiting.front();
    const auto found = entries_.find(row.hash);
    if (found == entries_.end()) {
      file_.end_use(row.file_slot);
      ++forgotten;
    } else {
      Entry& entry = found->second;
      if (entry.in_host) {
        file_.end_use(std::exchange(row.file_slot, -1));
      } else if (entry.host_slot >= 0) {
        break;  // on its way there for another load, or being saved
      } else {
        entry.host_slot = take_host_slot(row.hash);
        if (entry.host_slot < 0) break;
      }
      row.host_slot = entry.host_slot;
      host_.begin_use(row.host_slot);
      add(reads, row, blocks, number);
    }
    load.waiting.pop_front();
  }
  begin(reads, number);
  if (forgotten > 0) end_rows(number, forgotten, /*failed=*/true);
}

void RowStore::end_rows(uint64_t number, int rows, bool failed) {
  OpenLoad& load = loads_.at(number);
  load.left -= rows;
  load.failed |= failed;
  if (load.left > 0) return;
  ended_.push_back({.number = number, .failed = load.failed});
  loads_.erase(number);
}

std::vector<RowStore::Load> RowStore::take_loads() { return std::exchange(ended_, {}); }

std::vector<std::shared_ptr<const RowTransfer>> RowStore::take_transfers() {
  for (auto load = loads_.begin(); load != loads_.end();) begin_reads((load++)->first);
  begin(saving_);
  begin(writing_);
  begin(sending_);
  return std::exchange(begun_, {});
}

std::vector<BlockId> RowStore::finish(uint64_t transfer, std::span<const int> failed) {
  const auto node = under_way_.extract(transfer);
  CHECK(!node.empty(), "transfer {} is not under way", transfer);
  const RowTransfer& work = *node.mapped().work;
  for (size_t i = 0; i < work.rows.size(); ++i) {
    const RowTransfer::Row& row = work.rows[i];
    const bool ok = std::ranges::find(failed, static_cast<int>(i)) == failed.end();
    host_.end_use(row.host_slot);
    if (row.file_slot >= 0) file_.end_use(row.file_slot);
    if (work.kind == RowTransfer::Kind::kSend) {
      ++(ok ? stats_.sent : stats_.not_sent);
      continue;
    }
    const bool received = work.kind == RowTransfer::Kind::kReceive;
    if (received) ++(ok ? stats_.received : stats_.not_received);
    if (!ok && !received) ++stats_.failed;
    const auto found = entries_.find(row.hash);
    if (found == entries_.end() || found->second.host_slot != row.host_slot) continue;  // forgotten since
    Entry& entry = found->second;
    switch (work.kind) {
      case RowTransfer::Kind::kSave:
        if (!ok) {
          forget(row.hash);
          break;
        }
        ++stats_.saved;
        entry.in_host = true;
        write(row.hash, entry);
        break;
      case RowTransfer::Kind::kLoad:
        if (!ok) {
          forget(row.hash);
          break;
        }
        ++stats_.loaded;
        if (row.file_slot >= 0) ++stats_.read;
        entry.in_host = true;
        break;
      case RowTransfer::Kind::kWrite:
        if (entry.file_slot != row.file_slot) break;
        entry.in_file = ok;
        if (ok) {
          ++stats_.written;
        } else {
          file_.disown(std::exchange(entry.file_slot, -1));
        }
        break;
      case RowTransfer::Kind::kReceive:
        if (!ok) {
          forget(row.hash);
          break;
        }
        entry.in_host = true;
        entry.received_by = 0;
        write(row.hash, entry);
        break;
      case RowTransfer::Kind::kClear:
      case RowTransfer::Kind::kSend:
      case RowTransfer::Kind::kRefuse:
        break;
    }
  }
  end_fetches(node.mapped().fetches);
  if (work.kind == RowTransfer::Kind::kLoad)
    end_rows(node.mapped().load, static_cast<int>(work.rows.size()), !failed.empty());
  if (work.kind != RowTransfer::Kind::kSave) return {};
  std::vector<BlockId> read;
  std::ranges::copy_if(work.blocks, std::back_inserter(read), [](BlockId block) { return block != kNoBlock; });
  return read;
}

// Begins to write a row to the file, if that has a slot for it.
void RowStore::write(const BlockHash& row, Entry& entry) {
  if (options_.file_slots == 0) return;
  const SlotPool::Taken taken = file_.take(row);
  if (taken.lost) lose_file_slot(*taken.lost);
  if (taken.slot < 0) return;
  entry.file_slot = taken.slot;
  file_.begin_use(taken.slot);
  host_.begin_use(entry.host_slot);
  add(writing_, {.hash = row, .host_slot = entry.host_slot, .file_slot = taken.slot}, {});
}

void RowStore::lose_host_slot(const BlockHash& row) {
  Entry& entry = entries_.at(row);
  entry.host_slot = -1;
  entry.in_host = false;
  if (entry.file_slot < 0) entries_.erase(row);
}

void RowStore::lose_file_slot(const BlockHash& row) {
  Entry& entry = entries_.at(row);
  entry.file_slot = -1;
  entry.in_file = false;
  if (entry.host_slot < 0) entries_.erase(row);
}

void RowStore::forget(const BlockHash& row) {
  const auto node = entries_.extract(row);
  if (node.empty()) return;
  if (node.mapped().host_slot >= 0) host_.disown(node.mapped().host_slot);
  if (node.mapped().file_slot >= 0) file_.disown(node.mapped().file_slot);
}

void RowStore::clear() {
  if (!enabled()) return;
  while (!entries_.empty()) forget(BlockHash(entries_.begin()->first));
  for (const RowTransfer::Row& row : writing_.rows) {
    host_.end_use(row.host_slot);
    file_.end_use(row.file_slot);
  }
  writing_.rows.clear();
  for (const RowTransfer::Row& row : sending_.rows) host_.end_use(row.host_slot);
  const size_t unsent = sending_.rows.size();
  sending_.rows.clear();
  if (unsent > 0) refuse(sending_.want, unsent);
  for (auto at = loads_.begin(); at != loads_.end();) {
    const auto number = (at++)->first;
    OpenLoad& load = loads_.at(number);
    const int waiting = static_cast<int>(load.waiting.size());
    for (const WaitingRow& row : load.waiting) file_.end_use(row.row.file_slot);
    load.waiting.clear();
    end_rows(number, waiting, /*failed=*/true);
  }
  ++epoch_;
  RowTransfer clear{.kind = RowTransfer::Kind::kClear};
  if (options_.file_slots > 0) begin(clear);
}

void RowStore::restore(const BlockHash& row, int file_slot) {
  if (entries_.contains(row)) return;
  file_.own(file_slot, row);
  Entry& entry = entries_[row];
  entry.file_slot = file_slot;
  entry.in_file = true;
}

RowStoreStats RowStore::stats() const {
  RowStoreStats stats = stats_;
  stats.host_rows = host_.owned();
  stats.file_rows = file_.owned();
  return stats;
}

}  // namespace sluice
