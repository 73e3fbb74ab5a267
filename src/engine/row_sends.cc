// See row_sends.h.
#include "engine/row_sends.h"

#include <algorithm>
#include <set>
#include <utility>

namespace sluice {

void RowSends::note(const RowTransfer& transfer) {
  using Kind = RowTransfer::Kind;
  const std::scoped_lock lock(mutex_);
  for (const RowTransfer::Row& row : transfer.rows) {
    Slot& slot = slots_[static_cast<size_t>(row.host_slot)];
    if (transfer.kind == Kind::kSave) slot = Slot::kSaving;
    const bool reads_file = transfer.kind == Kind::kLoad && row.file_slot >= 0;
    if (transfer.kind == Kind::kReceive || reads_file) slot = Slot::kFilled;
  }
}

bool RowSends::any(const RowTransfer& transfer, Slot state) const {
  return std::ranges::any_of(
      transfer.rows, [&](const RowTransfer::Row& row) { return slots_[static_cast<size_t>(row.host_slot)] == state; });
}

// A slot stays what it is as long as a transfer uses it, so that a failure is still known here.
void RowSends::begin(const Transfer& transfer) {
  if (!any(*transfer, Slot::kFailed)) return send_(transfer);
  send_(std::make_shared<const RowTransfer>(
      RowTransfer{.id = kRefusal, .kind = RowTransfer::Kind::kRefuse, .want = transfer->want}));
  fail_(transfer);
}

// A refusal ends a want, so that it must not overtake rows.
void RowSends::start(Transfer transfer) {
  const std::scoped_lock lock(mutex_);
  const bool behind =
      std::ranges::any_of(waiting_, [&](const Transfer& other) { return other->want == transfer->want; });
  if (behind || any(*transfer, Slot::kSaving)) {
    waiting_.push_back(std::move(transfer));
  } else {
    begin(transfer);
  }
}

void RowSends::end_save(const RowTransfer& transfer, std::span<const uint8_t> failed) {
  const std::scoped_lock lock(mutex_);
  for (size_t i = 0; i < transfer.rows.size(); ++i) {
    slots_[static_cast<size_t>(transfer.rows[i].host_slot)] = failed[i] != 0 ? Slot::kFailed : Slot::kFilled;
  }
  std::set<uint64_t> behind;  // wants of which something still waits
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    if (behind.contains((*at)->want) || any(**at, Slot::kSaving)) {
      behind.insert((*at)->want);
      ++at;
      continue;
    }
    begin(*at);
    at = waiting_.erase(at);
  }
}

}  // namespace sluice
