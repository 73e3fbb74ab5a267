// Rows of the prefix cache outside of the blocks of a model that ranks compute: each rank has its own part of every
// row, in the same slots of its memory and its file (engine/row_mover.h). Rank 0's store decides for all. A transfer is
// done when all ranks have done it, and has failed for the rows that any rank could not move. With one rank it adds
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/row_mover.h"

namespace sluice {

class RankRows {
 public:
  // See RowMover. `tell` sends a message to the other ranks: the first one has them construct theirs, and they pass the
  // further ones to follow(). Only rank 0 needs `tell` and `wake`.
  RankRows(const EngineOptions& options, const LoadedModel& loaded, std::function<void()> wake,
           std::function<void(std::vector<std::byte>)> tell, RowServer::Events events = {});

  // For rank 0. Sizes of a store that all ranks can serve, and the rows that all ranks' files have, in their slots.
  const RowStoreOptions& store_options() const { return sizes_; }
  std::vector<RowFile::Kept> take_kept();
  void start(std::vector<std::shared_ptr<const RowTransfer>> transfers);
  // The same before a step is launched, so that rows of earlier steps are saved and sent while it runs. Loads wait for
  // the next start(), because the step may still read the blocks that they write to.
  void start_before_step(std::vector<std::shared_ptr<const RowTransfer>> transfers);
  std::vector<RowMover::Done> take_done();
  bool busy() const { return ranks_ == nullptr ? mover_.busy() : !open_.empty(); }
  // Whether other ranks have transfers to do. They do not call `wake`: take_done() has to be called now and then.
  bool busy_elsewhere() const { return ranks_ != nullptr && !open_.empty(); }

  // See RowMover. Servers exchange rows only without further ranks.
  size_t row_bytes() const { return mover_.row_bytes(); }
  const TcpAddress* address() const { return mover_.address(); }
  void release(const KvTransfer& transfer) { mover_.release(transfer); }

  // For the other ranks: does what a message says.
  void follow(std::span<const std::byte> message);

 private:
  struct Open {
    int ranks = 0;  // that have not done it
    std::vector<int> failed{};
  };
  void start_all(std::vector<std::shared_ptr<const RowTransfer>> transfers);
  std::vector<std::vector<std::byte>> gather(std::vector<std::byte> mine) const;
  std::vector<std::byte> done_here();
  void agree();

  const std::shared_ptr<Communicator> ranks_;  // null: there is one
  const std::function<void(std::vector<std::byte>)> tell_;
  std::map<uint64_t, Open> open_;                          // of rank 0
  std::vector<std::shared_ptr<const RowTransfer>> loads_;  // that wait for start()
  RowMover mover_;
  RowStoreOptions sizes_;
  std::vector<RowFile::Kept> kept_;
};

}  // namespace sluice
