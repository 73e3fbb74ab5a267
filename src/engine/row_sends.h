// The order of saves and sends of rows. A transfer to another server may begin while its rows are being saved to host
// slots: it waits here. A row that could not be saved is never sent.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache/row_store.h"

namespace sluice {

// Thread-safe. The callbacks must not call it.
class RowSends {
 public:
  using Transfer = std::shared_ptr<const RowTransfer>;
  // `send` is called for transfers of kSend and kRefuse that can begin, in order for each want. `fail` is called for
  // one of kSend that cannot, as a row is not there; `send` then gets a refusal with the number kRefusal before.
  RowSends(size_t slots, std::function<void(Transfer)> send, std::function<void(const Transfer&)> fail)
      : send_(std::move(send)), fail_(std::move(fail)), slots_(slots) {}

  static constexpr uint64_t kRefusal = 0;  // the store knows no transfer of this number

  // A transfer writes to host slots; to be called before it begins.
  void note(const RowTransfer& transfer);
  // One that saves has ended; `failed` [rows].
  void end_save(const RowTransfer& transfer, std::span<const uint8_t> failed);
  void start(Transfer transfer);

 private:
  enum class Slot : uint8_t { kFilled, kSaving, kFailed };
  bool any(const RowTransfer& transfer, Slot state) const;
  void begin(const Transfer& transfer);

  const std::function<void(Transfer)> send_;
  const std::function<void(const Transfer&)> fail_;
  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::list<Transfer> waiting_;  // in the order in which they came
};

}  // namespace sluice
