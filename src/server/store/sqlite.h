// SQLite's connections, statements and transactions as objects. Their errors are exceptions: std::bad_alloc where
// memory is short, else SqliteError.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace sluice::server {

struct SqliteError : std::runtime_error {
  SqliteError(int code, const std::string& message) : std::runtime_error(message), code(code) {}
  int code;  // SQLITE_FULL and others, without the extended bits
};

// A database. Used by one thread at a time.
class Connection {
 public:
  // `path`: an absolute path, or ":memory:". Does not read the file yet.
  explicit Connection(const std::string& path);

  void run(const char* statements);         // their results are dropped
  int64_t number(const char* statement);    // first column of the first row; 0 if there is none
  std::string text(const char* statement);  // the same, as text
  int64_t changes() const;                  // rows that the last statement changed, without those of cascades
  int64_t last_row() const;                 // number of the row that was inserted last
  bool in_transaction() const;

 private:
  friend class Statement;
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  [[noreturn]] void fail(int result) const;

  std::unique_ptr<sqlite3, Close> handle_;
};

// Usage: for (Statement s(connection, "SELECT a FROM t WHERE b = ?"); s.bind(5).step();) use(s.text(0));
class Statement {
 public:
  Statement(Connection& connection, std::string_view sql);

  // The next of the statement's '?'. Texts are not copied: they must outlive the steps.
  Statement& bind(std::string_view text);
  Statement& bind(int64_t number);
  bool step();       // true: there is a row
  Statement& run();  // steps to the end
  void again();      // to the start, with other values to come
  int64_t number(int column) const;
  std::string text(int column) const;

 private:
  struct Finish {
    void operator()(sqlite3_stmt* statement) const;
  };

  Connection& connection_;
  std::unique_ptr<sqlite3_stmt, Finish> handle_;
  int bound_ = 0;
};

// Undone unless it is committed.
class Transaction {
 public:
  explicit Transaction(Connection& connection);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Connection& connection_;
};

}  // namespace sluice::server
