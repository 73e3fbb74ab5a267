// Whether this machine has a device for which these kernels were compiled.
#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/per_device.h"

namespace sluice::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

// Devices up to the first one without code: ordinals are the driver's.
int device_count() {
  static const int count = [] {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess) return cudaGetLastError(), 0;
    int current = 0;
    cudaGetDevice(&current);
    int usable = 0;
    for (; usable < std::min(devices, kMostDevices); ++usable) {
      cudaFuncAttributes attributes{};
      cudaSetDevice(usable);
      if (cudaFuncGetAttributes(&attributes, nothing) != cudaSuccess) break;
    }
    cudaGetLastError();
    cudaSetDevice(current);
    return usable;
  }();
  return count;
}

}  // namespace sluice::cuda
