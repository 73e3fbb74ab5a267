// Memory account, dictionaries and hashing of template values.
#include "chat/jinja/value.h"

#include <fmt/core.h>

#include <cmath>
#include <cstring>
#include <random>

#include "sluice/error.h"

namespace sluice::jinja {
namespace {

// Random per process, so that attackers cannot prepare colliding keys.
uint64_t hash_seed() {
  static const uint64_t seed = [] {
    std::random_device device;
    return static_cast<uint64_t>(device()) << 32 | device();
  }();
  return seed;
}

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

constexpr uint64_t kPrime = 0x9E3779B97F4A7C15;

bool key_equals(const Value& key, std::string_view text) { return key.is(Kind::kString) && key.text() == text; }
bool key_equals(const Value& key, const Value& other) { return same_key(key, other); }
uint64_t key_hash(std::string_view text) { return hash_text(text); }
uint64_t key_hash(const Value& value) { return hash_value(value); }

}  // namespace

uint64_t hash_text(std::string_view text) {
  uint64_t hash = hash_seed() ^ text.size();
  while (!text.empty()) {
    uint64_t word = 0;
    const size_t n = std::min<size_t>(8, text.size());
    std::memcpy(&word, text.data(), n);
    hash = mix(hash ^ word, kPrime ^ hash_seed());
    text.remove_prefix(n);
  }
  return mix(hash, kPrime);
}

uint64_t hash_value(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return hash_text(value.text());
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBig:
      return mix(static_cast<uint64_t>(value.wide()) ^ hash_seed(), kPrime);
    case Kind::kFloat: {
      const double d = value.as_float();
      if (d == std::trunc(d) && std::abs(d) < 0x1p63) {
        return mix(static_cast<uint64_t>(static_cast<int64_t>(d)) ^ hash_seed(), kPrime);
      }
      if (d == std::trunc(d) && d > 0 && d < 0x1p64) return mix(static_cast<uint64_t>(d) ^ hash_seed(), kPrime);
      uint64_t bits;
      std::memcpy(&bits, &d, sizeof bits);
      return mix(bits ^ hash_seed(), kPrime + 2);
    }
    case Kind::kTuple: {
      uint64_t hash = hash_seed() + value.items().size();
      for (const Value& item : value.items()) hash = mix(hash ^ hash_value(item), kPrime);
      return hash;
    }
    case Kind::kNone:
      return mix(hash_seed(), kPrime + 4);
    case Kind::kUndefined:
      return mix(hash_seed(), kPrime + 6);
    default:
      return mix(reinterpret_cast<uintptr_t>(value.address()) ^ hash_seed(), kPrime);
  }
}

bool same_key(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.wide() == b.wide();
  if (a.is_number() && b.is_number()) return a.exact() == b.exact();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      return a.text() == b.text();
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kTuple: {
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        if (!same_key(a.items()[i], b.items()[i])) return false;
      }
      return true;
    }
    default:
      return a.address() == b.address();
  }
}

template <class Key>
const Value* Dict::lookup(const Key& key) const {
  if (index_.empty()) {
    for (const Item& item : items_) {
      if (key_equals(item.first, key)) return &item.second;
    }
    return nullptr;
  }
  const size_t mask = index_.size() - 1;
  for (size_t slot = key_hash(key) & mask; index_[slot] != 0; slot = (slot + 1) & mask) {
    const Item& item = items_[index_[slot] - 1];
    if (key_equals(item.first, key)) return &item.second;
  }
  return nullptr;
}

const Value* Dict::find(const Value& key) const { return lookup(key); }
const Value* Dict::find(std::string_view key) const { return lookup(key); }

void Dict::reindex() {
  size_t slots = 32;
  while (slots < items_.size() * 4) slots *= 2;
  index_.assign(slots, 0);
  for (size_t i = 0; i < items_.size(); ++i) {
    size_t slot = hash_value(items_[i].first) & (slots - 1);
    while (index_[slot] != 0) slot = (slot + 1) & (slots - 1);
    index_[slot] = static_cast<uint32_t>(i + 1);
  }
}

void Dict::set(Value key, Value value) {
  if (const Value* old = find(key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (items_.size() <= kScan) return;
  if (items_.size() * 2 > index_.size()) {
    reindex();
    return;
  }
  const size_t mask = index_.size() - 1;
  size_t slot = hash_value(items_.back().first) & mask;
  while (index_[slot] != 0) slot = (slot + 1) & mask;
  index_[slot] = static_cast<uint32_t>(items_.size());
}

void Dict::clear() {
  std::vector<Item> items = std::move(items_);  // destroyed last: deleting a value may call back into this object
  items_.clear();
  index_.clear();
}

Range::Range(int64_t start, int64_t stop, int64_t step) : start(start), stop(stop), step(step) {
  const __int128 distance = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 n = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  length = n > INT64_MAX ? INT64_MAX : static_cast<int64_t>(n);
}

Mutable::~Mutable() {
  if (previous || next || heap) heap->unlink(*this);
}

void Heap::expect(size_t bytes) const {
  if (bytes > limit_ || used_ > limit_ - bytes) {
    throw Error(ErrorCode::kInvalidRequest, "chat template: its values exceed the memory limit");
  }
}

void Heap::charge(size_t bytes) {
  expect(bytes);
  used_ += bytes;
}

// Objects whose count drops to zero while another is being deleted wait in a list, so long chains need no stack.
void Heap::destroy(Object* object) {
  object->next_dead = dead_;
  dead_ = object;
  if (draining_) return;
  draining_ = true;
  while (dead_) {
    Object* next = dead_;
    dead_ = next->next_dead;
    used_ -= next->bytes;
    delete next;
  }
  draining_ = false;
}

void Heap::link(Mutable& object) {
  object.next = mutables_;
  if (mutables_) mutables_->previous = &object;
  mutables_ = &object;
}

void Heap::unlink(Mutable& object) {
  if (object.previous) object.previous->next = object.next;
  if (object.next) object.next->previous = object.previous;
  if (mutables_ == &object) mutables_ = object.next;
  object.previous = object.next = nullptr;
}

void Heap::collect() {
  while (mutables_) {
    const Ref<Mutable> keep(mutables_);
    unlink(*keep);
    keep->clear();
  }
}

}  // namespace sluice::jinja
