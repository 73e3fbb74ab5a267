// Stores token strings and their IDs.
#include "tokenizer/models/vocab.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace sluice::tokenizer {
namespace {

uint32_t hash_of(std::string_view text) { return static_cast<uint32_t>(std::hash<std::string_view>{}(text)); }

}  // namespace

void Vocab::reserve(size_t count, size_t bytes) {
  bytes_.reserve(bytes);
  spans_.reserve(count);
  size_t slots = 16;
  while (slots * 2 < count * 3) slots *= 2;
  if (slots > slots_.size()) rehash(slots);
}

void Vocab::add(std::string_view text, TokenId id) {
  CHECK(id >= 0 && id <= kMaxTokenId && !has(id), "invalid or duplicate token id {}", id);
  CHECK(bytes_.size() + text.size() < kHole, "a vocabulary of {} bytes is too large", bytes_.size());
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size())};
  bytes_ += text;
  longest_ = std::max(longest_, text.size());

  if ((count_ + 1) * 3 > slots_.size() * 2) rehash(slots_.empty() ? 16 : slots_.size() * 2);
  const uint32_t hash = hash_of(text);
  Slot& slot = slots_[locate(text, hash)];
  if (slot.id < 0) ++count_;
  slot = {hash, id};
}

std::optional<TokenId> Vocab::find(std::string_view text) const {
  if (slots_.empty() || text.size() > longest_) return std::nullopt;
  const Slot& slot = slots_[locate(text, hash_of(text))];
  if (slot.id < 0) return std::nullopt;
  return slot.id;
}

std::string_view Vocab::text(TokenId id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(spans_[id].begin, spans_[id].size);
}

// Returns the slot that holds the text, or the free slot where it belongs.
size_t Vocab::locate(std::string_view text, uint32_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].id >= 0 && (slots_[at].hash != hash || this->text(slots_[at].id) != text)) at = (at + 1) & mask;
  return at;
}

void Vocab::rehash(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  const size_t mask = slots - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t at = slot.hash & mask;
    while (slots_[at].id >= 0) at = (at + 1) & mask;
    slots_[at] = slot;
  }
}

}  // namespace sluice::tokenizer
