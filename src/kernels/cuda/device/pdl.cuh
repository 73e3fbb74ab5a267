// Programmatic dependent launch (PDL, compute capability 9.0): a kernel begins while the one before it ends. What it
// does before wait_for_earlier() runs alongside the tail of its predecessor. That part may touch only memory that no
// kernel of a step writes: weights, tables and, in captured graphs (Launch::captured), indices and caches of earlier
// steps. Every kernel launched here calls wait_for_earlier() in every thread before anything else.
#pragma once

#include <utility>

#include "kernels/cuda/launch.h"

namespace sluice::cuda {

// Makes everything visible that earlier kernels wrote. Lets the blocks of the next kernel start, which wait in turn.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <class... Parameters, class... Arguments>
void launch_pdl(const Launch& l, const char* name, void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                size_t shared, Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = l.stream;
  cudaLaunchAttribute pdl{};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &pdl;
  config.numAttrs = l.pdl ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), name);
}

}  // namespace sluice::cuda
