// Calls of SQLite's C interface, with their results checked.
#include "server/store/sqlite.h"

#include <sqlite3.h>

#include <new>

namespace sluice::server {
namespace {

[[noreturn]] void fail_with(int result, const char* message) {
  const int code = result & 0xff;
  if (code == SQLITE_NOMEM) throw std::bad_alloc();
  throw SqliteError(code, message != nullptr ? message : sqlite3_errstr(result));
}

}  // namespace

void Connection::Close::operator()(sqlite3* connection) const { sqlite3_close(connection); }

void Connection::fail(int result) const { fail_with(result, sqlite3_errmsg(handle_.get())); }

Connection::Connection(const std::string& path) {
  sqlite3* opened = nullptr;
  // Callers take turns, so the connection needs no locks of its own.
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  const int result = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  handle_.reset(opened);  // also after a failure
  if (result != SQLITE_OK) fail_with(result, opened != nullptr ? sqlite3_errmsg(opened) : nullptr);
}

void Connection::run(const char* statements) {
  if (const int result = sqlite3_exec(handle_.get(), statements, nullptr, nullptr, nullptr); result != SQLITE_OK) {
    fail(result);
  }
}

int64_t Connection::number(const char* statement) {
  Statement s(*this, statement);
  return s.step() ? s.number(0) : 0;
}

std::string Connection::text(const char* statement) {
  Statement s(*this, statement);
  return s.step() ? s.text(0) : std::string();
}

int64_t Connection::changes() const { return sqlite3_changes64(handle_.get()); }
int64_t Connection::last_row() const { return sqlite3_last_insert_rowid(handle_.get()); }
bool Connection::in_transaction() const { return sqlite3_get_autocommit(handle_.get()) == 0; }

void Statement::Finish::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Statement::Statement(Connection& connection, std::string_view sql) : connection_(connection) {
  sqlite3_stmt* prepared = nullptr;
  const int result =
      sqlite3_prepare_v2(connection.handle_.get(), sql.data(), static_cast<int>(sql.size()), &prepared, nullptr);
  handle_.reset(prepared);
  if (result != SQLITE_OK) connection_.fail(result);
}

Statement& Statement::bind(std::string_view text) {
  // A null pointer would be SQL's NULL.
  const char* data = text.data() != nullptr ? text.data() : "";
  const int result = sqlite3_bind_text64(handle_.get(), ++bound_, data, text.size(), SQLITE_STATIC, SQLITE_UTF8);
  if (result != SQLITE_OK) connection_.fail(result);
  return *this;
}

Statement& Statement::bind(int64_t number) {
  if (const int result = sqlite3_bind_int64(handle_.get(), ++bound_, number); result != SQLITE_OK) {
    connection_.fail(result);
  }
  return *this;
}

bool Statement::step() {
  const int result = sqlite3_step(handle_.get());
  if (result != SQLITE_ROW && result != SQLITE_DONE) connection_.fail(result);
  return result == SQLITE_ROW;
}

Statement& Statement::run() {
  while (step()) {
  }
  return *this;
}

void Statement::again() {
  sqlite3_reset(handle_.get());
  bound_ = 0;
}

int64_t Statement::number(int column) const { return sqlite3_column_int64(handle_.get(), column); }

std::string Statement::text(int column) const {
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(handle_.get(), column));
  if (data == nullptr) {
    if (sqlite3_errcode(connection_.handle_.get()) == SQLITE_NOMEM) throw std::bad_alloc();
    return {};
  }
  return {data, static_cast<size_t>(sqlite3_column_bytes(handle_.get(), column))};
}

Transaction::Transaction(Connection& connection) : connection_(connection) { connection_.run("BEGIN IMMEDIATE"); }

Transaction::~Transaction() {
  if (!connection_.in_transaction()) return;  // committed, or undone by a failure
  try {
    connection_.run("ROLLBACK");
  } catch (const std::exception&) {  // the next BEGIN reports it
  }
}

void Transaction::commit() { connection_.run("COMMIT"); }

}  // namespace sluice::server
