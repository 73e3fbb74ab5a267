// A disk under SQLite that fails on command.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>
#include <map>

namespace sluice::server {

// While it exists, databases that are opened have files whose writes fail with `error` (SQLITE_FULL and others) unless
// that is SQLITE_OK. One at a time, and the last database must end before it.
class FailingDisk {
 public:
  static inline std::atomic<int> error{SQLITE_OK};

  FailingDisk() {
    error = SQLITE_OK;
    real_ = sqlite3_vfs_find(nullptr);
    disk_ = *real_;
    disk_.zName = "failing";
    disk_.xOpen = open;
    EXPECT_EQ(sqlite3_vfs_register(&disk_, /*makeDflt=*/1), SQLITE_OK);
  }
  ~FailingDisk() {
    sqlite3_vfs_unregister(&disk_);
    sqlite3_vfs_register(real_, 1);
  }
  FailingDisk(const FailingDisk&) = delete;
  FailingDisk& operator=(const FailingDisk&) = delete;

 private:
  static int open(sqlite3_vfs*, sqlite3_filename name, sqlite3_file* file, int flags, int* out_flags) {
    const int result = real_->xOpen(real_, name, file, flags, out_flags);
    if (result != SQLITE_OK || file->pMethods == nullptr) return result;
    // SQLite has a table of functions for each way of locking; all write in the same way.
    sqlite3_io_methods& methods = methods_[file->pMethods];
    methods = *file->pMethods;
    write_ = methods.xWrite;
    methods.xWrite = write;
    file->pMethods = &methods;
    return SQLITE_OK;
  }
  static int write(sqlite3_file* file, const void* data, int size, sqlite3_int64 offset) {
    return error != SQLITE_OK ? error.load() : write_(file, data, size, offset);
  }

  static inline sqlite3_vfs* real_ = nullptr;
  static inline sqlite3_vfs disk_{};
  static inline std::map<const sqlite3_io_methods*, sqlite3_io_methods> methods_;
  static inline int (*write_)(sqlite3_file*, const void*, int, sqlite3_int64) = nullptr;
};

}  // namespace sluice::server
