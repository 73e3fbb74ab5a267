// A list in order of age and an index of it.
#include "server/openai/responses/store.h"

namespace sluice::server {

void ResponseStore::put(StoredResponse response) {
  response.expires = std::chrono::steady_clock::now() + life_;
  const auto item = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  drop_expired();
  if (item->bytes() > max_bytes_ || by_id_.contains(item->id)) return;
  while (bytes_ + item->bytes() > max_bytes_) drop_oldest();
  items_.push_back(item);
  by_id_.emplace(item->id, std::prev(items_.end()));
  bytes_ += item->bytes();
}

std::shared_ptr<const StoredResponse> ResponseStore::find(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || (*found->second)->tenant != tenant) return nullptr;
  return *found->second;
}

bool ResponseStore::erase(std::string_view id, std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  const auto found = by_id_.find(std::string(id));
  if (found == by_id_.end() || (*found->second)->tenant != tenant) return false;
  bytes_ -= (*found->second)->bytes();
  items_.erase(found->second);
  by_id_.erase(found);
  return true;
}

void ResponseStore::drop_oldest() {
  bytes_ -= items_.front()->bytes();
  by_id_.erase(items_.front()->id);
  items_.pop_front();
}

void ResponseStore::drop_expired() {
  const auto now = std::chrono::steady_clock::now();
  while (!items_.empty() && items_.front()->expires <= now) drop_oldest();
}

}  // namespace sluice::server
