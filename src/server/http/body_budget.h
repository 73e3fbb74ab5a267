// The memory that the bodies of all requests may take together.
#pragma once

#include <atomic>
#include <cstdint>

namespace sluice::server {

// Counts the bytes of all request bodies that the server holds. Thread-safe.
class BodyBudget {
 public:
  // `limit` in bytes; 0: no limit.
  explicit BodyBudget(int64_t limit) : limit_(limit) {}

  // True if `bytes` more would fit now. Takes nothing.
  bool fits(int64_t bytes) const { return limit_ == 0 || used_ + bytes <= limit_; }
  int64_t used() const { return used_; }

 private:
  friend class BodyCharge;
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// What one connection or request takes of the budget, which must outlive the charge. Not thread-safe.
class BodyCharge {
 public:
  explicit BodyCharge(BodyBudget& budget) : budget_(budget) {}
  ~BodyCharge() { resize(0); }
  BodyCharge(const BodyCharge&) = delete;
  BodyCharge& operator=(const BodyCharge&) = delete;

  // Charges `bytes` instead of what was charged before. False, changing nothing, if the budget does not allow it.
  bool resize(int64_t bytes) {
    const int64_t more = bytes - bytes_;
    const int64_t used = budget_.used_ += more;
    if (more > 0 && budget_.limit_ > 0 && used > budget_.limit_) {
      budget_.used_ -= more;
      return false;
    }
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget& budget_;
  int64_t bytes_ = 0;
};

}  // namespace sluice::server
