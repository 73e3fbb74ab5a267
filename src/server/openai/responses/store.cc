// A list in order of age and an index of it.
#include "server/openai/responses/store.h"

#include <fmt/core.h>

namespace sluice::server {

// Clients may choose the ids of requests, and with them those of responses: each tenant has its own.
std::string ResponseStore::key(std::string_view id, std::string_view tenant) {
  return fmt::format("{}\n{}", tenant, id);
}

void ResponseStore::put(StoredResponse response) {
  response.expires = std::chrono::steady_clock::now() + life_;
  const auto item = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  drop_expired();
  if (const auto same = by_key_.find(key(item->id, item->tenant)); same != by_key_.end()) drop(same->second);
  if (item->bytes() > max_bytes_) return;
  while (bytes_ + item->bytes() > max_bytes_) drop(items_.begin());
  items_.push_back(item);
  by_key_.emplace(key(item->id, item->tenant), std::prev(items_.end()));
  bytes_ += item->bytes();
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto found = by_key_.find(key(id, tenant));
  return found == by_key_.end() ? nullptr : *found->second;
}

bool ResponseStore::erase(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto found = by_key_.find(key(id, tenant));
  if (found == by_key_.end()) return false;
  drop(found->second);
  return true;
}

void ResponseStore::drop(std::list<Item>::iterator item) {
  bytes_ -= (*item)->bytes();
  by_key_.erase(key((*item)->id, (*item)->tenant));
  items_.erase(item);
}

void ResponseStore::drop_expired() {
  const auto now = std::chrono::steady_clock::now();
  while (!items_.empty() && items_.front()->expires <= now) drop(items_.begin());
}

}  // namespace sluice::server
