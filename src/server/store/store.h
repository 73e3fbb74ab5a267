// Answers that clients may fetch, list, change or delete later: responses and chat completions, in one SQLite database.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/thread_group.h"
#include "server/errors.h"
#include "server/store/database.h"
#include "sluice/options.h"

namespace sluice::server {

struct StoreOptions {
  std::string path = {};                                  // of the file; empty: in memory
  std::chrono::milliseconds life{std::chrono::hours(1)};  // older items are forgotten
  int64_t max_bytes = 64 << 20;                           // of all items; the oldest make room
};

// Zeros stand for defaults, which depend on where the items are.
StoreOptions store_options(const ServerOptions& options);

// Throws Error that names the file if the options name one that a store cannot use. For before a model is loaded.
void check_store(const ServerOptions& options);

// Only the tenant sees an item. Texts are JSON unless something else is said.
struct StoredResponse {
  std::string id, tenant;    // plain text
  std::string body;          // the response
  std::string input_items;   // an array of its own input items
  std::string conversation;  // all messages so far with the answer, in the form of the chat API
};

struct StoredChat {
  std::string id, tenant, model;  // plain text
  std::string metadata;           // an object of texts
  std::string body;               // the chat completion without metadata
  std::string messages;           // the request's array of messages
};

// Which chat completions a list has, in order of their storing.
struct ChatQuery {
  std::string after = {};  // id of the item before the first one; empty: from the start
  int limit = 20;
  bool descending = false;
  std::string model = {};                                          // empty: any
  std::vector<std::pair<std::string, std::string>> metadata = {};  // all of these
};

struct ChatPage {
  std::vector<StoredChat> items;  // without messages
  bool has_more = false;
};

// Thread-safe. Reads and changes run on the caller's thread, one at a time, and may wait for the disk: I/O threads must
// not call them. A thread of the store writes new items, all that wait in one transaction.
class Store {
 public:
  // Throws Error that names the file if it cannot be used.
  explicit Store(StoreOptions options = {});
  ~Store();  // writes what waits

  // Gets null when the item is written, else the error. Called once, on the store's thread. Must not throw or block.
  using Done = std::function<void(const ApiError* error)>;
  // The item takes the place of the tenant's item with the same id. One that is larger than the store is an error. What
  // these throw (std::bad_alloc) is thrown instead of calling `done`.
  void put(StoredResponse item, Done done) { enqueue({std::move(item), std::move(done)}); }
  void put(StoredChat item, Done done) { enqueue({std::move(item), std::move(done)}); }

  // The following throw ApiError if the database fails.

  // After a failure, tries to write. Requests whose answers would be lost are refused before they are computed.
  void expect_writable();

  std::optional<StoredResponse> response(std::string_view id, std::string_view tenant);
  bool erase_response(std::string_view id, std::string_view tenant);

  std::optional<StoredChat> chat(std::string_view id, std::string_view tenant);
  // Lists can go on from an item that is erased, until it would have expired.
  bool erase_chat(std::string_view id, std::string_view tenant);
  bool set_metadata(std::string_view id, std::string_view tenant, std::string_view metadata);
  // nullopt: `after` is unknown. A page has 16 MiB of bodies at most, and always an item if there is one.
  std::optional<ChatPage> chats(std::string_view tenant, const ChatQuery& query);

 private:
  enum class Kind { kResponse = 1, kChat = 2 };
  struct Write {
    std::variant<StoredResponse, StoredChat> item;
    Done done;
  };
  struct Key {
    Kind kind;
    std::string_view id, tenant;
  };

  void enqueue(Write write);
  void work();
  void close();
  void write_all(std::span<const Write> batch);
  const ApiError* try_write(std::span<const Write> batch, std::optional<ApiError>& error);
  void clean();

  // Hold database_mutex_ while they call `use`, and turn SqliteError into ApiError. change() does so in a transaction.
  template <class F>
  auto read(F&& use);
  template <class F>
  auto change(F&& use);

  // With database_mutex_ held:
  ApiError failure(const SqliteError& error);
  int64_t oldest_alive() const;  // Unix time in milliseconds
  void insert(const StoredResponse& item);
  void insert(const StoredChat& item);
  int64_t insert_item(const Key& key, int64_t bytes);
  int64_t forget_expired();                  // some of them; returns how many
  int64_t erase_rows(Statement& statement);  // one that returns the bytes of what it erases; returns how many
  bool erase(const Key& key);
  std::optional<int64_t> number_of(const Key& key);

  const StoreOptions options_;
  std::mutex database_mutex_;
  Database database_;
  std::atomic<bool> failing_{false};  // the last use of the database failed

  const ApiError no_memory_ = out_of_memory();
  std::mutex queue_mutex_;
  std::condition_variable wake_;
  std::vector<Write> queue_;
  bool stopped_ = false;
  ThreadGroup threads_{[this] { close(); }};
};

// Puts an item into a store that may have ended, which is an error then. What waits in a store may refer to it only
// weakly: the store owns it.
template <class Item>
void put(const std::weak_ptr<Store>& store, Item item, Store::Done done) {
  if (const auto to = store.lock()) return to->put(std::move(item), std::move(done));
  const ApiError ended = overloaded("The server is shutting down.");
  done(&ended);
}

}  // namespace sluice::server
