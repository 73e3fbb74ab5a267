// See row_exports.h.
#include "scheduler/row_exports.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sluice {

void RowExports::begin(const std::string& id, const std::vector<BlockHash>& rows) {
  Export& exported = exports_[id];
  ++exported.running;
  exported.rows.insert(exported.rows.end(), rows.begin(), rows.end());
}

void RowExports::end(const std::string& id, Clock::time_point now) {
  const auto found = exports_.find(id);
  if (found == exports_.end() || found->second.running == 0 || --found->second.running > 0) return;
  Export& exported = found->second;
  if (exported.released) {
    exports_.erase(found);
    return;
  }
  for (const BlockHash& row : exported.rows) {
    if (!pools_.store.in_host(row) && !pools_.store.comes_to_host(row)) save(row);
    if (const auto slot = pools_.store.hold(row)) exported.held.push_back(*slot);
  }
  exported.rows.clear();
  exported.held_until = now + held_for_;
}

void RowExports::release(const std::string& id) {
  const auto found = exports_.find(id);
  if (found == exports_.end()) return;
  found->second.released = true;
  if (found->second.running > 0) return;
  release(found->second);
  exports_.erase(found);
}

void RowExports::release(Export& exported) {
  for (const int slot : exported.held) pools_.store.release(slot);
  exported.held.clear();
}

// Saves a row that was found in the prefix cache: it was not computed, and so perhaps not saved. Returns whether it
// will be in host memory. While all slots are in use it is tried again.
bool RowExports::save(const BlockHash& row) {
  const BlockId primary = pools_.blocks.find(row);
  if (pools_.store.has(row) || primary == kNoBlock || !pools_.in_cache(primary)) return false;
  std::vector<BlockId> blocks;
  for (int group = 0; group < pools_.groups(); ++group) blocks.push_back(pools_.cached(primary, group));
  pools_.save(row, blocks);
  return true;
}

void RowExports::want(RowWant want, Clock::time_point now) {
  wants_.push_back({.want = std::move(want), .unknown_until = now + kUnknownFor});
}

void RowExports::forget(uint64_t number) {
  std::erase_if(wants_, [&](const OpenWant& open) { return open.want.number == number; });
}

// Whether the next row of a want, which is not in host memory, may still come there.
bool RowExports::may_come(const OpenWant& open, Clock::time_point now) {
  const BlockHash& row = open.want.rows[open.sent];
  if (pools_.store.comes_to_host(row) || save(row)) return true;
  const auto found = exports_.find(open.want.id);
  return found == exports_.end() ? now < open.unknown_until : found->second.running > 0;
}

// Returns whether nothing more is to be sent.
bool RowExports::send_rows(OpenWant& open, Clock::time_point now) {
  const std::vector<BlockHash>& rows = open.want.rows;
  for (; open.sent < rows.size() && pools_.store.can_send(rows[open.sent]); ++open.sent) {
    pools_.store.send(rows[open.sent], open.want.number, static_cast<int>(open.sent));
  }
  if (open.sent == rows.size()) return true;
  if (may_come(open, now)) return false;
  pools_.store.refuse(open.want.number, rows.size() - open.sent);
  return true;
}

void RowExports::advance(Clock::time_point now) {
  std::erase_if(wants_, [&](OpenWant& open) { return send_rows(open, now); });
  for (auto at = exports_.begin(); at != exports_.end();) {
    const auto next = std::next(at);
    if (at->second.running == 0 && now >= at->second.held_until) {
      release(at->second);
      exports_.erase(at);
    }
    at = next;
  }
}

void RowExports::clear() {
  for (const OpenWant& open : wants_) pools_.store.refuse(open.want.number, open.want.rows.size() - open.sent);
  wants_.clear();
  for (auto& [id, exported] : exports_) release(exported);
}

std::optional<RowExports::Clock::time_point> RowExports::next_deadline() const {
  std::optional<Clock::time_point> next;
  const auto add = [&](Clock::time_point at) { next = std::min(next.value_or(at), at); };
  for (const OpenWant& open : wants_) {
    if (!exports_.contains(open.want.id)) add(open.unknown_until);
  }
  for (const auto& [id, exported] : exports_) {
    if (exported.running == 0) add(exported.held_until);
  }
  return next;
}

}  // namespace sluice
