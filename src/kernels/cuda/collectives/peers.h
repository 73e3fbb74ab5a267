// The memory through which the GPUs of several ranks exchange data, and the launches that do so.
//
// Every rank allocates one region on its device and maps those of the others: over NVLink or PCIe by CUDA IPC, or as
// plain pointers where the ranks are threads of one process. Kernels write to regions and wait for others' writes by
// themselves, so that they can be part of a captured graph. All ranks launch the same kernels in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/launch.h"
#include "ops/sum_runs.h"

namespace sluice {
class Communicator;
}

namespace sluice::cuda {

inline constexpr int kMostPeers = 8;
inline constexpr int kMostMeetingBlocks = 128;            // of a kernel whose blocks meet
inline constexpr size_t kInboxBytes = size_t{512} << 10;  // of one message of one rank, half of it flags
inline constexpr size_t kOutboxBytes = size_t{16} << 20;  // what a rank shows to others at a time
inline constexpr size_t kOutboxFloats = kOutboxBytes / sizeof(float);

// Runs of rows that one of two ranks sends to the other while it computes the next run (sums_begun.h).
inline constexpr int kLandings = 2 * ops::kMostRunsBegun;
inline constexpr size_t kLandingBytes = size_t{ops::kRunBytes};
inline constexpr uint32_t kRunNumbers = 256;

// What a rank receives from all others together in a sum of one shot (one_shot.cu).
inline constexpr size_t kOneShotBytes = size_t{2} << 20;

// Whether a matrix fits into an inbox. Rows have whole pairs of words, and every word has a flag of as many bytes.
constexpr bool fits_inbox(int64_t rows, int64_t columns) {
  return rows * ((columns + 1) / 2) * 16 <= static_cast<int64_t>(kInboxBytes);
}

// The start of a region. A region is zero at first, but for the part for one shot, where all bits are set.
struct RegionHeader {
  // [block][rank]: how often the block has met the rank's block with its number. The other rank writes `arrived`.
  uint32_t arrived[kMostMeetingBlocks][kMostPeers];
  uint32_t met[kMostMeetingBlocks][kMostPeers];
  uint32_t round;                 // how many messages were complete
  uint32_t landed[kLandings];     // the number of the run that lies in each landing; another rank writes it
  uint32_t numbers[kRunNumbers];  // 1, 2, 3, ...: sources of `landed`
  uint32_t shot;                  // how many sums of one shot were complete
  uint32_t shot_blocks;           // blocks of the present one
};

struct RegionLayout {
  static constexpr size_t kInboxes = size_t{64} << 10;  // [2 rounds in turn][rank] of kInboxBytes
  static constexpr size_t kOutbox = kInboxes + 2 * kMostPeers * kInboxBytes;
  static constexpr size_t kSums = kOutbox + kOutboxBytes;
  static constexpr size_t kLanding = kSums + kOutboxBytes;                  // [kLandings] of kLandingBytes
  static constexpr size_t kOneShot = kLanding + kLandings * kLandingBytes;  // [2 shots in turn] of kOneShotBytes
  static constexpr size_t kBytes = kOneShot + 2 * kOneShotBytes;
};
static_assert(sizeof(RegionHeader) <= RegionLayout::kInboxes);

// What kernels get: the regions of all ranks, as this rank's device sees them.
struct PeerMemory {
  int rank = 0, size = 0;
  std::byte* regions[kMostPeers] = {};
  const uint32_t* ended = nullptr;  // in host memory; nonzero: a rank was lost, and nobody may wait any more
};

class SumsBegun;

// One rank's end. Not thread-safe.
class Peers {
 public:
  // Every rank of the communicator calls it at the same time. Throws Error(kUnsupportedModel) if there are too many
  // ranks, or if a device cannot access another one's memory.
  Peers(int device, Communicator& communicator);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  const Communicator& communicator() const { return communicator_; }
  const PeerMemory& memory() const { return memory_; }
  // The sums that have begun; null unless there are two ranks.
  SumsBegun* sums_begun() const { return sums_begun_.get(); }
  // Throws Error(kInternal) if a rank was lost. Kernels that wait for it then end.
  void check();
  // Ends kernels that wait for other ranks.
  void end();

 private:
  void release();

  Communicator& communicator_;
  int device_;
  PeerMemory memory_;
  uint32_t* ended_ = nullptr;  // pinned host memory
  std::vector<void*> mapped_;  // by CUDA IPC
  std::unique_ptr<SumsBegun> sums_begun_;
};

// collectives.cu. Tensors are as for the ops of the same names (ops/ops.h).
void all_reduce(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x, bool accumulate);
void all_gather(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x);
void all_to_all(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x);
void broadcast(const Launch&, const PeerMemory&, const Tensor& x);
void send(const Launch&, const PeerMemory&, int rank, const Tensor& x);
void receive(const Launch&, const PeerMemory&, int rank, const Tensor& x);

// one_shot.cu. They return false and do nothing if there are too many elements for one shot. With a norm, also if rows
// are not whole units of four columns, or longer than a cluster of blocks holds, or if the device has no clusters.
bool all_reduce_one_shot(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x, bool accumulate);
bool all_reduce_one_shot(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x, bool accumulate,
                         const ops::RowNorm& norm);
bool all_gather_one_shot(const Launch&, const PeerMemory&, const Tensor& out, const Tensor& x);

}  // namespace sluice::cuda
