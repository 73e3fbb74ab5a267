// What compute capability 9.0 adds (sm_90a): products of a warp group of four warps, barriers in shared memory that
// copies complete on, registers moved from warp group to warp group (PTX ISA: wgmma, mbarrier, setmaxnreg).
#pragma once

#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// Matrices in shared memory: rows of 64 elements of 16 bits (128 bytes) whose packs of 16 bytes are exchanged, pack i of
// row r lying at i ^ (r % 8); eight rows, 1024 bytes, are a unit that begins at a multiple of 1024. Wider matrices are
// panels of 64 columns. `panel_bytes` from a panel to the next one matters only to matrices that are read transposed.
__device__ inline uint64_t matrix(uint32_t address, uint32_t panel_bytes = 16) {
  constexpr uint64_t kExchanged128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kExchanged128 | kEightRows | uint64_t{panel_bytes >> 4} << 16 | (address & 0x3ffff) >> 4;
}

// d[64, n] (+)= a[64, 16] * b: fp32 sums. Lane l of warp w of the group holds, with g = l / 4 and t = l % 4, in
// d[4 * i + 2 * h + j] row 16 w + g + 8 h, column 8 i + 2 t + j, and of a in registers what mma takes of its 16 rows.
// `from_shared`: a is a matrix [64, 16], b one [n, 16]. `from_registers`: b is [16, n], read transposed.
template <class T, int n>
struct WarpgroupProduct;

// The operands of an instruction cannot be a loop.
#define SLUICE_SUMS_64 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31])
#define SLUICE_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_SUMS_128 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), \
  "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), \
  "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), \
  "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
  "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), \
  "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), \
  "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), \
  "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
  "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define SLUICE_NAMES_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_WARPGROUP_PRODUCT_64(T, type)                                                                       \
  template <>                                                                                                       \
  struct WarpgroupProduct<T, 64> {                                                                                  \
    __device__ static void from_shared(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {                    \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type \
                   " {" SLUICE_NAMES_64 "}, %32, %33, p, 1, 1, 0, 0; }"                                              \
                   : SLUICE_SUMS_64                                                                                 \
                   : "l"(a), "l"(b), "r"(accumulate));                                                              \
    }                                                                                                               \
    __device__ static void from_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {                     \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type     \
                   " {" SLUICE_NAMES_64 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"                            \
                   : SLUICE_SUMS_64                                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                           \
    }                                                                                                               \
  };
#define SLUICE_WARPGROUP_PRODUCT_128(T, type)                                                                       \
  template <>                                                                                                       \
  struct WarpgroupProduct<T, 128> {                                                                                  \
    __device__ static void from_shared(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {                    \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type \
                   " {" SLUICE_NAMES_128 "}, %64, %65, p, 1, 1, 0, 0; }"                                              \
                   : SLUICE_SUMS_128                                                                                 \
                   : "l"(a), "l"(b), "r"(accumulate));                                                              \
    }                                                                                                               \
    __device__ static void from_registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {                     \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type     \
                   " {" SLUICE_NAMES_128 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                            \
                   : SLUICE_SUMS_128                                                                                 \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                           \
    }                                                                                                               \
  };
SLUICE_WARPGROUP_PRODUCT_64(__nv_bfloat16, "bf16")
SLUICE_WARPGROUP_PRODUCT_64(__half, "f16")
SLUICE_WARPGROUP_PRODUCT_128(__nv_bfloat16, "bf16")
SLUICE_WARPGROUP_PRODUCT_128(__half, "f16")
#undef SLUICE_WARPGROUP_PRODUCT_64
#undef SLUICE_WARPGROUP_PRODUCT_128
#undef SLUICE_NAMES_64
#undef SLUICE_NAMES_128
#undef SLUICE_SUMS_64
#undef SLUICE_SUMS_128

// Before products whose registers others wrote; after the products of one group; until all but `Pending` groups of them
// are done.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler moves no use of these registers across this point: they are written by products that were waited for.
template <int count>
__device__ inline void hold(float (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// Barriers of `arrivals` threads (or copies) in shared memory, 8 bytes each; phases alternate between 0 and 1.
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives for this thread when all of its asynchronous copies so far are done.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is complete.
__device__ inline void wait_barrier(uint32_t barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// What this thread wrote to shared memory, or saw written, is seen by products of warp groups from here on.
__device__ inline void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits at barrier `id`, 1 to 15, until `threads` threads have come to it; comes to it and goes on.
__device__ inline void sync_threads(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int registers>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

}  // namespace sluice::cuda
