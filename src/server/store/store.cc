// The statements that use the database, and the thread that writes.
#include "server/store/store.h"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <type_traits>

#include "base/log.h"

namespace sluice::server {
namespace {

constexpr int64_t kItemBytes = 128;       // what an item takes besides its texts
constexpr int64_t kPageBytes = 16 << 20;  // of bodies on a page
constexpr int64_t kExpiredAtOnce = 1000;  // items that one transaction forgets
constexpr std::string_view kInstead = " Send \"store\": false to get answers that are not stored.";

int64_t text_bytes(std::string_view text) { return static_cast<int64_t>(text.size()); }

int64_t unix_milliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

ApiError too_large(int64_t bytes, int64_t most) {
  return {
      .message = fmt::format("The answer cannot be stored: it takes {} bytes, and the store holds {}.", bytes, most),
      .param = "store",
      .code = "answer_above_store_size"};
}

}  // namespace

Store::Store(StoreOptions options) : options_(std::move(options)), database_(open_database(options_.path)) {
  threads_.start([this] { work(); });
}

Store::~Store() { threads_.join(); }

// Use of the database

template <class F>
auto Store::read(F&& use) {
  const std::lock_guard lock(database_mutex_);
  try {
    return use();
  } catch (const SqliteError& error) {
    throw failure(error);
  }
}

template <class F>
auto Store::change(F&& use) {
  return read([&] {
    struct Count {  // goes back unless the transaction is committed
      int64_t& bytes;
      const int64_t before = bytes;
      bool committed = false;
      ~Count() {
        if (!committed) bytes = before;
      }
    } count{database_.bytes};
    Transaction transaction(database_.connection);
    if constexpr (std::is_void_v<decltype(use())>) {
      use();
      transaction.commit();
      count.committed = true;
    } else {
      auto result = use();
      transaction.commit();
      count.committed = true;
      return result;
    }
  });
}

ApiError Store::failure(const SqliteError& error) {
  if (!failing_.exchange(true)) {
    log::error("the store {} failed: {}", options_.path.empty() ? "in memory" : options_.path, error.what());
  }
  return {.status = 500,
          .message = fmt::format("The server's store failed: {}.", error.what()),
          .code = "store_failed",
          .type = "server_error"};
}

int64_t Store::oldest_alive() const { return unix_milliseconds() - options_.life.count(); }

void Store::expect_writable() {
  if (!failing_) return;
  try {
    change([&] { database_.connection.run(fmt::format("PRAGMA user_version = {}", kStoreVersion).c_str()); });
    failing_ = false;
  } catch (ApiError& error) {
    error.message += kInstead;
    throw;
  }
}

// The thread that writes

void Store::enqueue(Write write) {
  {
    const std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(write));
  }
  wake_.notify_one();
}

void Store::close() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
}

void Store::work() {
  const auto pause =
      std::clamp<std::chrono::milliseconds>(options_.life, std::chrono::seconds(1), std::chrono::minutes(1));
  std::vector<Write> batch;
  std::unique_lock lock(queue_mutex_);
  for (;;) {
    const bool woken = wake_.wait_for(lock, pause, [this] { return stopped_ || !queue_.empty(); });
    if (queue_.empty() && stopped_) return;
    batch.swap(queue_);
    lock.unlock();
    woken ? write_all(batch) : clean();
    batch.clear();
    lock.lock();
  }
}

void Store::write_all(std::span<const Write> batch) {
  std::optional<ApiError> error;
  const ApiError* failed = try_write(batch, error);
  if (failed != nullptr && batch.size() > 1) {  // perhaps because of one of them
    for (const Write& one : batch) write_all({&one, 1});
    return;
  }
  for (const Write& write : batch) write.done(failed);
}

// Null: all are written.
const ApiError* Store::try_write(std::span<const Write> batch, std::optional<ApiError>& error) {
  try {
    try {
      change([&] {
        forget_expired();
        for (const Write& write : batch) std::visit([this](const auto& item) { insert(item); }, write.item);
      });
      failing_ = false;
      return nullptr;
    } catch (ApiError& thrown) {
      thrown.message += kInstead;
      return &error.emplace(std::move(thrown));
    }
  } catch (const std::bad_alloc&) {
    return &no_memory_;
  }
}

void Store::clean() {
  try {
    int64_t forgotten = 0;
    do {
      change([&] { forgotten = forget_expired(); });
    } while (forgotten == kExpiredAtOnce);
  } catch (const ApiError&) {        // in the log
  } catch (const std::bad_alloc&) {  // the next pause comes
  }
}

// Items of both kinds

int64_t Store::insert_item(const Key& key, int64_t texts) {
  const int64_t bytes = kItemBytes + text_bytes(key.id) + text_bytes(key.tenant) + texts;
  if (bytes > options_.max_bytes) throw too_large(bytes, options_.max_bytes);
  erase(key);
  Statement oldest(database_.connection,
                   "DELETE FROM items WHERE number = (SELECT min(number) FROM items) RETURNING bytes");
  while (database_.bytes + bytes > options_.max_bytes && erase_rows(oldest) > 0) oldest.again();
  Statement(database_.connection, "INSERT INTO items (kind, tenant, id, stored, bytes) VALUES (?, ?, ?, ?, ?)")
      .bind(static_cast<int64_t>(key.kind))
      .bind(key.tenant)
      .bind(key.id)
      .bind(unix_milliseconds())
      .bind(bytes)
      .run();
  database_.bytes += bytes;
  return database_.connection.last_row();
}

int64_t Store::erase_rows(Statement& statement) {
  int64_t rows = 0;
  for (; statement.step(); ++rows) database_.bytes -= statement.number(0);
  return rows;
}

int64_t Store::forget_expired() {
  Statement expired(database_.connection,
                    "DELETE FROM items WHERE number IN (SELECT number FROM items WHERE stored <= ? LIMIT ?) "
                    "RETURNING bytes");
  return erase_rows(expired.bind(oldest_alive()).bind(kExpiredAtOnce));
}

bool Store::erase(const Key& key) {
  Statement same(database_.connection, "DELETE FROM items WHERE tenant = ? AND kind = ? AND id = ? RETURNING bytes");
  return erase_rows(same.bind(key.tenant).bind(static_cast<int64_t>(key.kind)).bind(key.id)) > 0;
}

std::optional<int64_t> Store::number_of(const Key& key) {
  Statement found(database_.connection,
                  "SELECT number FROM items WHERE tenant = ? AND kind = ? AND id = ? AND stored > ?");
  found.bind(key.tenant).bind(static_cast<int64_t>(key.kind)).bind(key.id).bind(oldest_alive());
  return found.step() ? std::optional(found.number(0)) : std::nullopt;
}

// Responses

void Store::insert(const StoredResponse& item) {
  const int64_t texts = text_bytes(item.body) + text_bytes(item.input_items) + text_bytes(item.conversation);
  const int64_t number = insert_item({Kind::kResponse, item.id, item.tenant}, texts);
  Statement(database_.connection, "INSERT INTO responses (number, body, input_items, conversation) VALUES (?, ?, ?, ?)")
      .bind(number)
      .bind(item.body)
      .bind(item.input_items)
      .bind(item.conversation)
      .run();
}

std::optional<StoredResponse> Store::response(std::string_view id, std::string_view tenant) {
  return read([&]() -> std::optional<StoredResponse> {
    const auto number = number_of({Kind::kResponse, id, tenant});
    if (!number) return std::nullopt;
    Statement row(database_.connection, "SELECT body, input_items, conversation FROM responses WHERE number = ?");
    if (!row.bind(*number).step()) return std::nullopt;
    return StoredResponse{.id = std::string(id),
                          .tenant = std::string(tenant),
                          .body = row.text(0),
                          .input_items = row.text(1),
                          .conversation = row.text(2)};
  });
}

bool Store::erase_response(std::string_view id, std::string_view tenant) {
  return change([&] {
    const Key key{Kind::kResponse, id, tenant};
    return number_of(key) && erase(key);
  });
}

// Chat completions

void Store::insert(const StoredChat& item) {
  const int64_t texts =
      text_bytes(item.model) + text_bytes(item.metadata) + text_bytes(item.body) + text_bytes(item.messages);
  const int64_t number = insert_item({Kind::kChat, item.id, item.tenant}, texts);
  Statement(database_.connection,
            "INSERT INTO chat_completions (number, model, metadata, body, messages) VALUES (?, ?, ?, ?, ?)")
      .bind(number)
      .bind(item.model)
      .bind(item.metadata)
      .bind(item.body)
      .bind(item.messages)
      .run();
}

std::optional<StoredChat> Store::chat(std::string_view id, std::string_view tenant) {
  return read([&]() -> std::optional<StoredChat> {
    const auto number = number_of({Kind::kChat, id, tenant});
    if (!number) return std::nullopt;
    Statement row(database_.connection,
                  "SELECT model, metadata, body, messages FROM chat_completions WHERE number = ?");
    if (!row.bind(*number).step()) return std::nullopt;  // erased
    return StoredChat{.id = std::string(id),
                      .tenant = std::string(tenant),
                      .model = row.text(0),
                      .metadata = row.text(1),
                      .body = row.text(2),
                      .messages = row.text(3)};
  });
}

// Its row of `items` stays, so that a list can go on after it.
bool Store::erase_chat(std::string_view id, std::string_view tenant) {
  return change([&] {
    const auto number = number_of({Kind::kChat, id, tenant});
    if (!number) return false;
    Statement(database_.connection, "DELETE FROM chat_completions WHERE number = ?").bind(*number).run();
    if (database_.connection.changes() == 0) return false;  // erased before
    const int64_t rest = kItemBytes + text_bytes(id) + text_bytes(tenant);
    Statement before(database_.connection, "SELECT bytes FROM items WHERE number = ?");
    before.bind(*number).step();
    database_.bytes += rest - before.number(0);
    Statement(database_.connection, "UPDATE items SET bytes = ? WHERE number = ?").bind(rest).bind(*number).run();
    return true;
  });
}

bool Store::set_metadata(std::string_view id, std::string_view tenant, std::string_view metadata) {
  return change([&] {
    const auto number = number_of({Kind::kChat, id, tenant});
    if (!number) return false;
    Statement before(database_.connection, "SELECT metadata FROM chat_completions WHERE number = ?");
    if (!before.bind(*number).step()) return false;  // erased
    const int64_t more = text_bytes(metadata) - text_bytes(before.text(0));
    Statement(database_.connection, "UPDATE chat_completions SET metadata = ? WHERE number = ?")
        .bind(metadata)
        .bind(*number)
        .run();
    Statement(database_.connection, "UPDATE items SET bytes = bytes + ? WHERE number = ?")
        .bind(more)
        .bind(*number)
        .run();
    database_.bytes += more;
    return true;
  });
}

std::optional<ChatPage> Store::chats(std::string_view tenant, const ChatQuery& query) {
  std::string sql =
      "SELECT i.id, c.model, c.metadata, c.body FROM items AS i INDEXED BY items_in_order "
      "JOIN chat_completions AS c ON c.number = i.number WHERE i.tenant = ? AND i.kind = ? AND i.stored > ?";
  if (!query.after.empty()) sql += query.descending ? " AND i.number < ?" : " AND i.number > ?";
  if (!query.model.empty()) sql += " AND c.model = ?";
  for (size_t i = 0; i < query.metadata.size(); ++i) {
    sql += " AND EXISTS (SELECT 1 FROM json_each(c.metadata) WHERE key = ? AND value = ?)";
  }
  sql += query.descending ? " ORDER BY i.number DESC" : " ORDER BY i.number";
  return read([&]() -> std::optional<ChatPage> {
    Statement rows(database_.connection, sql);
    rows.bind(tenant).bind(static_cast<int64_t>(Kind::kChat)).bind(oldest_alive());
    if (!query.after.empty()) {
      const auto after = number_of({Kind::kChat, query.after, tenant});
      if (!after) return std::nullopt;
      rows.bind(*after);
    }
    if (!query.model.empty()) rows.bind(query.model);
    for (const auto& [key, value] : query.metadata) rows.bind(key).bind(value);
    ChatPage page;
    for (int64_t bytes = 0; rows.step();) {
      page.has_more = std::ssize(page.items) == query.limit || bytes > kPageBytes;
      if (page.has_more) break;
      page.items.push_back({.id = rows.text(0),
                            .tenant = std::string(tenant),
                            .model = rows.text(1),
                            .metadata = rows.text(2),
                            .body = rows.text(3),
                            .messages = {}});
      bytes += text_bytes(page.items.back().body);
    }
    return page;
  });
}

}  // namespace sluice::server
