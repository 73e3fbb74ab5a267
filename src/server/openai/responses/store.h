// Responses that clients may fetch, delete or go on from.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace sluice::server {

struct StoredResponse {
  std::string id;
  std::string tenant;        // only it sees the response
  std::string body;          // JSON text of the response
  std::string input_items;   // JSON text of the array of its own input items
  std::string conversation;  // JSON text of all messages so far with the answer, in the form of the chat API
  std::chrono::steady_clock::time_point expires{};

  size_t bytes() const { return id.size() + tenant.size() + body.size() + input_items.size() + conversation.size(); }
};

// Keeps responses in memory, up to a number of bytes. The oldest make room for new ones. Thread-safe.
class ResponseStore {
 public:
  static constexpr size_t kMaxBytes = 64 << 20;
  static constexpr std::chrono::hours kTimeToLive{1};

  explicit ResponseStore(size_t max_bytes = kMaxBytes, std::chrono::steady_clock::duration life = kTimeToLive)
      : max_bytes_(max_bytes), life_(life) {}

  // Takes the place of the tenant's response with the same id. One that is larger than the store is not kept.
  void put(StoredResponse response);
  // Null when there is none, it has expired, or it is another tenant's.
  std::shared_ptr<const StoredResponse> find(std::string_view id, std::string_view tenant);
  bool erase(std::string_view id, std::string_view tenant);

 private:
  using Item = std::shared_ptr<const StoredResponse>;
  static std::string key(std::string_view id, std::string_view tenant);
  void drop(std::list<Item>::iterator item);
  void drop_expired();

  const size_t max_bytes_;
  const std::chrono::steady_clock::duration life_;
  std::mutex mutex_;
  std::list<Item> items_;  // oldest first
  std::unordered_map<std::string, std::list<Item>::iterator> by_key_;
  size_t bytes_ = 0;
};

}  // namespace sluice::server
