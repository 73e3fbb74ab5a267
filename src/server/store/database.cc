// Checks a file before anything in it is changed.
#include "server/store/database.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "sluice/error.h"

namespace sluice::server {
namespace {

constexpr int64_t kApplication = 0x536c6365;  // "Slce" marks our files

// `items` has what all kinds share. Deleting an item deletes its row in the other table, too. Numbers grow with time
// and are never used again, so they order lists.
constexpr const char* kTables = R"(
CREATE TABLE items (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  kind INTEGER NOT NULL,    -- see Store::Kind
  tenant TEXT NOT NULL,
  id TEXT NOT NULL,
  stored INTEGER NOT NULL,  -- Unix time in milliseconds
  bytes INTEGER NOT NULL,   -- counted towards the limit
  UNIQUE (tenant, kind, id)
) STRICT;
CREATE INDEX items_in_order ON items (tenant, kind, number);
CREATE INDEX items_by_age ON items (stored);
CREATE TABLE responses (
  number INTEGER PRIMARY KEY REFERENCES items (number) ON DELETE CASCADE,
  body TEXT NOT NULL,
  input_items TEXT NOT NULL,
  conversation TEXT NOT NULL
) STRICT;
CREATE TABLE chat_completions (
  number INTEGER PRIMARY KEY REFERENCES items (number) ON DELETE CASCADE,
  model TEXT NOT NULL,
  metadata TEXT NOT NULL,
  body TEXT NOT NULL,
  messages TEXT NOT NULL
) STRICT;
)";

[[noreturn]] void refuse(ErrorCode code, const std::string& path, std::string_view what) {
  throw Error(code, fmt::format("--store: {} {}", path, what), "store", "");
}

// Makes an empty file if there is none. SQLite gives its other files the same mode. A file that exists is not opened:
// closing it would end the locks of a connection in this process.
void make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd >= 0) {
    ::close(fd);
    return;
  }
  struct stat status {};
  const bool usable = errno == EEXIST && ::access(path.c_str(), R_OK | W_OK) == 0 && ::stat(path.c_str(), &status) == 0;
  if (usable && S_ISREG(status.st_mode)) return;
  refuse(ErrorCode::kInvalidRequest, path,
         fmt::format("cannot be opened for writing: {}", usable ? "it is not a file" : std::strerror(errno)));
}

void make_tables(Connection& connection) {
  Transaction transaction(connection);
  connection.run(kTables);
  connection.run(
      fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kStoreVersion).c_str());
  transaction.commit();
}

// Throws unless the file is empty or holds the tables.
void check_file(Connection& connection, const std::string& path) {
  const int64_t application = connection.number("PRAGMA application_id");
  const int64_t version = connection.number("PRAGMA user_version");
  if (application == 0 && version == 0 && connection.number("SELECT count(*) FROM sqlite_schema") == 0) return;
  if (application != kApplication) {
    refuse(ErrorCode::kInvalidRequest, path, "is a database of another program; name a new file");
  }
  if (version == kStoreVersion) return;
  refuse(ErrorCode::kInvalidRequest, path,
         fmt::format("has version {} of the tables, and this program reads version {}; update it or name a new file",
                     version, kStoreVersion));
}

std::string reason_of(const SqliteError& error) {
  switch (error.code) {
    case SQLITE_NOTADB:
      return "is not a database of stored answers; name a new file";
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return "is in use by another process";
    case SQLITE_READONLY:
      return "cannot be written: it is read-only";
    case SQLITE_CORRUPT:
    case SQLITE_ERROR:  // a table is missing
      return fmt::format("is damaged ({}); restore it or name a new file", error.what());
    default:
      return fmt::format("cannot be used: {}", error.what());
  }
}

Connection open_file(const std::string& path) {
  make_file(path);
  try {
    Connection connection(path);
    connection.run("PRAGMA locking_mode = EXCLUSIVE; PRAGMA busy_timeout = 1000");
    check_file(connection, path);
    if (connection.text("PRAGMA journal_mode = WAL") != "wal") {
      refuse(ErrorCode::kInvalidRequest, path, "cannot be used: its file system has no write-ahead log");
    }
    // A process that is killed loses nothing; a machine that loses power may lose the last answers.
    connection.run("PRAGMA synchronous = NORMAL; PRAGMA secure_delete = ON; PRAGMA journal_size_limit = 16777216");
    return connection;
  } catch (const SqliteError& error) {
    refuse(ErrorCode::kInvalidRequest, path, reason_of(error));
  }
}

}  // namespace

Database open_database(const std::string& path) {
  std::string absolute;  // a relative path could be read as a URI
  if (!path.empty()) absolute = std::filesystem::absolute(path).string();
  try {
    Database out{.connection = path.empty() ? Connection(":memory:") : open_file(absolute)};
    out.connection.run("PRAGMA foreign_keys = ON; PRAGMA temp_store = MEMORY");
    if (out.connection.number("PRAGMA user_version") == 0) make_tables(out.connection);
    out.connection.run("SELECT number FROM responses UNION ALL SELECT number FROM chat_completions LIMIT 1");
    out.bytes = out.connection.number("SELECT sum(bytes) FROM items");
    return out;
  } catch (const SqliteError& error) {
    refuse(ErrorCode::kInvalidRequest, path.empty() ? "the database in memory" : absolute, reason_of(error));
  }
}

}  // namespace sluice::server
