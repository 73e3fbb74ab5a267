// The database of stored answers: its tables, and the file that holds it.
#pragma once

#include <cstdint>
#include <string>

#include "server/store/sqlite.h"

namespace sluice::server {

inline constexpr int64_t kStoreVersion = 1;  // of the tables; the file has it as its user_version

struct Database {
  Connection connection;
  int64_t bytes = 0;  // of all items
};

// Opens the file, or makes it with the tables, readable by its owner only. Empty: a database in memory. No other
// process can open the file until the connection ends. Throws Error that names the file: it cannot be written, is not
// such a database, is damaged, is in use, or was made by a later version.
Database open_database(const std::string& path);

}  // namespace sluice::server
