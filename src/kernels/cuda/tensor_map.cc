#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {

CUtensorMap encode_tensor_map(CUtensorMapDataType type, unsigned rank, const std::byte* data, const cuuint64_t* size,
                              const cuuint64_t* stride, const cuuint32_t* tile, CUtensorMapSwizzle swizzle) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
               "cuTensorMapEncodeTiled");
    CHECK(found == cudaDriverEntryPointSuccess,
          "the CUDA driver lacks cuTensorMapEncodeTiled (CUDA 12.0 or newer is needed)");
    return reinterpret_cast<Encode>(entry);
  }();
  std::array<cuuint32_t, 5> steps;
  steps.fill(1);
  CUtensorMap map{};
  const CUresult result = encode(&map, type, rank, const_cast<std::byte*>(data), size, stride, tile, steps.data(),
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS, "encoding a tensor map of {} x {} failed with error {}", size[0], size[1],
        static_cast<int>(result));
  return map;
}

}  // namespace sluice::cuda
