// Allocates a rank's region and maps those of the others.
#include "kernels/cuda/collectives/peers.h"

#include <unistd.h>

#include <optional>
#include <span>
#include <string>

#include "kernels/cuda/collectives/sums_begun.h"
#include "kernels/cuda/device.h"
#include "parallel/communicator.h"
#include "sluice/error.h"

namespace sluice::cuda {
namespace {

// What a rank tells the others about its region.
struct Offer {
  int64_t process = 0;
  int32_t device = 0;
  std::byte* region = nullptr;
  cudaIpcMemHandle_t handle{};
};

[[noreturn]] void refuse(int device, int rank, const Offer& other, cudaError_t error) {
  cudaGetLastError();  // the error is not sticky
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("ranks on several GPUs: device {} cannot access the memory of rank {} on device {}: {}",
                          device, rank, other.device, cudaGetErrorString(error)));
}

}  // namespace

Peers::Peers(int device, Communicator& communicator) : communicator_(communicator), device_(device) {
  const int rank = communicator.rank(), size = communicator.size();
  if (size > kMostPeers) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{} ranks on GPUs that exchange data (expected at most {})", size, kMostPeers));
  }
  memory_.rank = rank, memory_.size = size;
  make_current(device);
  try {
    check_cuda(cudaHostAlloc(reinterpret_cast<void**>(&ended_), sizeof *ended_, cudaHostAllocMapped), "ranks");
    *ended_ = 0;
    memory_.ended = ended_;
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&memory_.regions[rank]), RegionLayout::kBytes), "memory of ranks");
    check_cuda(cudaMemset(memory_.regions[rank], 0, RegionLayout::kOneShot), "memory of ranks");
    check_cuda(cudaMemset(memory_.regions[rank] + RegionLayout::kOneShot, 0xff, 2 * kOneShotBytes), "memory of ranks");
    check_cuda(cudaDeviceSynchronize(), "memory of ranks");
    Offer mine{.process = ::getpid(), .device = device, .region = memory_.regions[rank]};
    check_cuda(cudaIpcGetMemHandle(&mine.handle, mine.region), "sharing memory with other ranks");
    std::vector<Offer> offers(static_cast<size_t>(size));
    communicator.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(offers)));
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const Offer& offer = offers[static_cast<size_t>(other)];
      if (offer.process == mine.process) {
        if (offer.device != device) {
          const cudaError_t error = cudaDeviceEnablePeerAccess(offer.device, 0);
          if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) refuse(device, other, offer, error);
          cudaGetLastError();
        }
        memory_.regions[other] = offer.region;
        continue;
      }
      void* mapped = nullptr;
      const cudaError_t error = cudaIpcOpenMemHandle(&mapped, offer.handle, cudaIpcMemLazyEnablePeerAccess);
      if (error != cudaSuccess) refuse(device, other, offer, error);
      mapped_.push_back(mapped);
      memory_.regions[other] = static_cast<std::byte*>(mapped);
    }
    if (size == 2) {
      const bool one_device = offers[0].device == offers[1].device;
      sums_begun_ = std::make_unique<SumsBegun>(memory_, one_device);
    }
    communicator.barrier();  // all have mapped
  } catch (...) {
    release();
    throw;
  }
}

Peers::~Peers() { release(); }

void Peers::release() {
  try_make_current(device_);
  sums_begun_.reset();
  for (void* mapped : mapped_) cudaIpcCloseMemHandle(mapped);
  cudaFree(memory_.regions[memory_.rank]);
  cudaFreeHost(ended_);
}

void Peers::check() {
  const std::optional<std::string> lost = communicator_.lost();
  if (!lost) return;
  end();
  throw Error(ErrorCode::kInternal, *lost);
}

void Peers::end() { *const_cast<volatile uint32_t*>(ended_) = 1; }

}  // namespace sluice::cuda
