// The store by itself: what it keeps, for how long, and what it does about bad files and a disk that fails.
#include "server/store/store.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <future>
#include <thread>

#include "server/store/failing_disk.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::server::store_test {
namespace {

using std::chrono::hours;
using ::testing::HasSubstr;
using testing::TempFolder;

// Waits until the item is kept. Returns the error's message.
template <class Item>
std::string put(Store& store, Item item) {
  std::promise<std::string> message;
  store.put(std::move(item), [&](const ApiError* error) { message.set_value(error != nullptr ? error->message : ""); });
  return message.get_future().get();
}

StoredResponse response(std::string id, std::string body = "{}", std::string tenant = {}) {
  return {.id = std::move(id),
          .tenant = std::move(tenant),
          .body = std::move(body),
          .input_items = "[]",
          .conversation = "[1]"};
}

StoredChat chat(std::string id, std::string metadata = "{}", std::string model = "m", std::string tenant = {}) {
  return {.id = std::move(id),
          .tenant = std::move(tenant),
          .model = std::move(model),
          .metadata = std::move(metadata),
          .body = R"({"a":1})",
          .messages = "[]"};
}

// "a b c" and, if there is more, "+".
std::string ids(Store& store, const ChatQuery& query, std::string_view tenant = "") {
  const auto page = store.chats(tenant, query);
  if (!page) return "unknown";
  std::string out;
  for (const StoredChat& item : page->items) out += (out.empty() ? "" : " ") + item.id;
  return out + (page->has_more ? "+" : "");
}

std::string failure_of(const std::string& path) {
  try {
    Store store({.path = path});
    return {};
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Store, KeepsBothKinds) {
  Store store;
  EXPECT_EQ(put(store, response("a", "body")), "");
  EXPECT_EQ(put(store, chat("a", R"({"k":"v"})", "model")), "");
  const auto kept = store.response("a", "");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->body, "body");
  EXPECT_EQ(kept->input_items, "[]");
  EXPECT_EQ(kept->conversation, "[1]");
  const auto other = store.chat("a", "");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->model, "model");
  EXPECT_EQ(other->metadata, R"({"k":"v"})");
  EXPECT_EQ(other->body, R"({"a":1})");
  EXPECT_EQ(other->messages, "[]");
  EXPECT_TRUE(store.erase_response("a", ""));
  EXPECT_FALSE(store.erase_response("a", ""));
  EXPECT_FALSE(store.response("a", ""));
  EXPECT_TRUE(store.chat("a", ""));
}

// Clients may choose ids: they neither meet those of others nor hide a later item.
TEST(Store, ItemsBelongToTheirTenant) {
  Store store;
  put(store, response("a", "first", "s"));
  put(store, response("a", "other", "t"));
  put(store, response("a", "second", "s"));
  EXPECT_EQ(store.response("a", "s")->body, "second");
  EXPECT_EQ(store.response("a", "t")->body, "other");
  EXPECT_FALSE(store.response("a", ""));
  EXPECT_TRUE(store.erase_response("a", "s"));
  EXPECT_FALSE(store.response("a", "s"));
  EXPECT_TRUE(store.response("a", "t"));
  put(store, chat("c", "{}", "m", "s"));
  EXPECT_FALSE(store.chat("c", "t"));
  EXPECT_FALSE(store.erase_chat("c", "t"));
  EXPECT_FALSE(store.set_metadata("c", "t", "{}"));
  EXPECT_EQ(ids(store, {}, "t"), "");
  EXPECT_EQ(ids(store, {}, "s"), "c");
  EXPECT_EQ(ids(store, {.after = "c"}, "t"), "unknown");
}

TEST(Store, TheOldestMakeRoom) {
  Store store({.max_bytes = 4000});
  put(store, response("a", std::string(1500, 'x')));
  put(store, response("b", std::string(1500, 'x')));
  EXPECT_THAT(put(store, response("c", std::string(4000, 'x'))), HasSubstr("and the store holds 4000"));
  EXPECT_TRUE(store.response("a", ""));
  put(store, response("d", std::string(2000, 'x')));
  EXPECT_FALSE(store.response("a", ""));
  EXPECT_TRUE(store.response("b", ""));
  put(store, response("b", std::string(1500, 'y')));  // takes its own place
  EXPECT_TRUE(store.response("d", ""));
  EXPECT_TRUE(store.erase_response("b", ""));
  put(store, chat("e"));
  EXPECT_TRUE(store.response("d", ""));
  EXPECT_TRUE(store.set_metadata("e", "", R"({"k":")" + std::string(1800, 'v') + R"("})"));
  put(store, chat("f"));  // the metadata counts
  EXPECT_FALSE(store.response("d", ""));
  EXPECT_EQ(ids(store, {}), "e f");
}

TEST(Store, ItemsExpire) {
  Store brief({.life = std::chrono::milliseconds(0)});
  put(brief, response("a"));
  put(brief, chat("b"));
  EXPECT_FALSE(brief.response("a", ""));
  EXPECT_FALSE(brief.erase_response("a", ""));
  EXPECT_FALSE(brief.chat("b", ""));
  EXPECT_EQ(ids(brief, {}), "");
}

// Nobody asks for what has expired, and it is gone from the file all the same.
TEST(Store, ExpiredItemsAreErased) {
  const TempFolder folder;
  const std::string path = folder / "store.db";
  {
    Store store({.path = path, .life = std::chrono::milliseconds(100)});
    put(store, response("a"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  }
  EXPECT_EQ(open_database(path).connection.number("SELECT count(*) FROM items"), 0);
}

TEST(Store, ListsChatCompletions) {
  Store store;
  put(store, chat("a", R"({"k":"1"})"));
  put(store, chat("b", R"({"k":"2","o":"x"})", "n"));
  put(store, chat("c", R"({"k":"1","o":"x"})"));
  put(store, chat("d"));
  put(store, response("r"));
  EXPECT_EQ(ids(store, {}), "a b c d");
  EXPECT_EQ(ids(store, {.descending = true}), "d c b a");
  EXPECT_EQ(ids(store, {.limit = 2}), "a b+");
  EXPECT_EQ(ids(store, {.after = "b", .limit = 2}), "c d");
  EXPECT_EQ(ids(store, {.after = "b", .descending = true}), "a");
  EXPECT_EQ(ids(store, {.after = "d"}), "");
  EXPECT_EQ(ids(store, {.after = "r"}), "unknown");
  EXPECT_EQ(ids(store, {.model = "n"}), "b");
  EXPECT_EQ(ids(store, {.metadata = {{"k", "1"}}}), "a c");
  EXPECT_EQ(ids(store, {.metadata = {{"k", "1"}, {"o", "x"}}}), "c");
  EXPECT_EQ(ids(store, {.metadata = {{"k", "' OR 1"}}}), "");
  EXPECT_TRUE(store.set_metadata("a", "", R"({"o":"x"})"));
  EXPECT_EQ(ids(store, {.metadata = {{"o", "x"}}}), "a b c");
  // A list goes on from what was erased.
  EXPECT_TRUE(store.erase_chat("b", ""));
  EXPECT_FALSE(store.erase_chat("b", ""));
  EXPECT_FALSE(store.set_metadata("b", "", "{}"));
  EXPECT_FALSE(store.chat("b", ""));
  EXPECT_EQ(ids(store, {}), "a c d");
  EXPECT_EQ(ids(store, {.after = "b"}), "c d");
  // The id is free for another.
  EXPECT_EQ(put(store, chat("b")), "");
  EXPECT_EQ(ids(store, {}), "a c d b");
}

TEST(Store, APageHasALimitOfBytes) {
  Store store;
  for (const char* id : {"a", "b", "c"}) {
    StoredChat large = chat(id);
    large.body = std::string(12 << 20, 'x');
    put(store, std::move(large));
  }
  EXPECT_EQ(ids(store, {}), "a b+");
  EXPECT_EQ(ids(store, {.after = "b"}), "c");
}

TEST(Store, AFileOutlivesTheProcess) {
  const TempFolder folder;
  const std::string path = folder / "store.db";
  {
    Store store({.path = path, .life = hours(1), .max_bytes = 1 << 20});
    put(store, response("a", "kept", "t"));
    put(store, chat("b"));
    put(store, chat("c"));
    store.erase_chat("b", "");
    EXPECT_THAT(failure_of(path), HasSubstr("store.db is in use by another process"));
  }
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  Store store({.path = path, .life = hours(1), .max_bytes = 2000});
  EXPECT_EQ(store.response("a", "t")->body, "kept");
  EXPECT_EQ(ids(store, {.after = "b"}), "c");
  // What the file holds counts towards the limit.
  put(store, response("d", std::string(1600, 'x')));
  EXPECT_FALSE(store.response("a", "t"));
}

TEST(Store, BadFilesAreRefused) {
  const TempFolder folder;
  EXPECT_THAT(failure_of(folder / "missing/store.db"),
              HasSubstr("missing/store.db cannot be opened for writing: No such"));
  EXPECT_THAT(failure_of(folder.path().string()), HasSubstr("cannot be opened for writing: it is not a file"));
  const std::string text = folder.write("notes.txt", std::string(5000, 'x'));
  EXPECT_THAT(failure_of(text), HasSubstr("notes.txt is not a database of stored answers; name a new file"));
  const std::string other = folder / "other.db";
  Connection(other).run("CREATE TABLE t (a)");
  EXPECT_THAT(failure_of(other), HasSubstr("other.db is a database of another program"));
  EXPECT_EQ(Connection(other).text("PRAGMA journal_mode"), "delete") << "it was changed";
  const std::string newer = folder / "newer.db";
  EXPECT_EQ(failure_of(newer), "");
  Connection(newer).run("PRAGMA user_version = 99");
  EXPECT_THAT(failure_of(newer), HasSubstr("newer.db has version 99 of the tables, and this program reads version 1"));
  const std::string damaged = folder / "damaged.db";
  EXPECT_EQ(failure_of(damaged), "");
  Connection(damaged).run("DROP TABLE chat_completions");
  EXPECT_THAT(failure_of(damaged), HasSubstr("damaged.db is damaged (no such table: chat_completions)"));
  EXPECT_EQ(failure_of(folder.write("empty.db", "")), "");
}

TEST(Store, AFailingDiskIsAnErrorUntilItWorksAgain) {
  const FailingDisk disk;
  const TempFolder folder;
  Store store({.path = folder / "store.db"});
  EXPECT_EQ(put(store, response("a")), "");
  for (const auto& [error, text] : {std::pair(SQLITE_FULL, "database or disk is full"),
                                    std::pair(SQLITE_READONLY, "attempt to write a readonly database"),
                                    std::pair(SQLITE_IOERR_WRITE, "disk I/O error")}) {
    SCOPED_TRACE(text);
    FailingDisk::error = error;
    EXPECT_THAT(put(store, response("b")),
                ::testing::StartsWith(std::string("The server's store failed: ") + text + ". Send"));
    EXPECT_TRUE(store.response("a", ""));
    try {
      store.expect_writable();
      FAIL();
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status, 500);
      EXPECT_EQ(e.code, "store_failed");
      EXPECT_THAT(e.message, HasSubstr("Send \"store\": false to get answers that are not stored."));
    }
    EXPECT_THROW(store.erase_response("a", ""), ApiError);
    FailingDisk::error = SQLITE_OK;
    store.expect_writable();
    EXPECT_FALSE(store.response("b", ""));
  }
  EXPECT_EQ(put(store, response("b")), "");
  EXPECT_TRUE(store.erase_response("a", ""));
}

// One item that is too large does not fail those that are written with it.
TEST(Store, ItemsOfATransactionFailAlone) {
  Store store({.max_bytes = 2000});
  std::vector<std::promise<bool>> kept(60);
  for (size_t i = 0; i < kept.size(); ++i) {
    store.put(response(std::to_string(i), std::string(i % 10 == 0 ? 5000 : 10, 'x')),
              [&, i](const ApiError* error) { kept[i].set_value(error == nullptr); });
  }
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i].get_future().get(), i % 10 != 0);
}

TEST(Store, SeveralThreads) {
  const TempFolder folder;
  Store store({.path = folder / "store.db"});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        EXPECT_EQ(put(store, response(id, id)), "");
        EXPECT_EQ(store.response(id, "")->body, id);
        EXPECT_EQ(store.erase_response(id, ""), true);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Store, EndsWithWhatWaits) {
  const TempFolder folder;
  int written = 0;
  {
    Store store({.path = folder / "store.db"});
    for (int i = 0; i < 20; ++i)
      store.put(response(std::to_string(i)), [&](const ApiError* e) { written += e == nullptr; });
  }
  EXPECT_EQ(written, 20);
}

TEST(Store, Options) {
  ServerOptions options;
  EXPECT_EQ(store_options(options).life, hours(1));
  EXPECT_EQ(store_options(options).max_bytes, 64 << 20);
  options.store = "a.db";
  EXPECT_EQ(store_options(options).life, hours(720));
  EXPECT_EQ(store_options(options).max_bytes, 1 << 30);
  options.store_ttl = 60;
  options.store_size = 1000;
  EXPECT_EQ(store_options(options).life, std::chrono::minutes(1));
  EXPECT_EQ(store_options(options).max_bytes, 1000);
}

}  // namespace
}  // namespace sluice::server::store_test
