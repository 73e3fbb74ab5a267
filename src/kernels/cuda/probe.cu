// Whether this machine has a device for which these kernels were compiled.
#include "kernels/cuda/device_context.h"

namespace sluice::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

bool device_usable() {
  static const bool usable = [] {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return cudaGetLastError(), false;
    cudaFuncAttributes attributes{};
    const bool compiled = cudaFuncGetAttributes(&attributes, nothing) == cudaSuccess;
    cudaGetLastError();
    return compiled;
  }();
  return usable;
}

}  // namespace sluice::cuda
