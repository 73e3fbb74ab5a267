// Instructions of compute capability 9.0 (sm_90a): matmuls of a warp group of four warps, barriers in shared memory
// that copies complete, and moving registers between warp groups (PTX ISA: wgmma, mbarrier, setmaxnreg).
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// The descriptor of a matrix in shared memory. Its rows are 64 elements of 16 bits (128 bytes) with swizzled packs of
// 16 bytes: pack i of row r lies at i ^ (r % 8). Eight rows, 1024 bytes, form a unit that begins at a multiple of 1024.
// Wider matrices are panels of 64 columns. `panel_bytes`, the distance between panels, matters only to matrices that
// are read transposed.
__device__ inline uint64_t matrix(uint32_t address, uint32_t panel_bytes = 16) {
  constexpr uint64_t kExchanged128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kExchanged128 | kEightRows | uint64_t{panel_bytes >> 4} << 16 | (address & 0x3ffff) >> 4;
}

// d[64, n] = a[64, 16] * b, plus the old d unless `accumulate` is 0, with fp32 sums. With g = l / 4 and t = l % 4, lane
// l of warp w of the group holds row 16 w + g + 8 h, column 8 i + 2 t + j in d[4 * i + 2 * h + j]. If a is in
// registers, the lane holds what mma() takes of the warp's 16 rows.
// - from_shared: a is a matrix [64, 16], b one [n, 16].
// - from_shared_transposed: the same, but b is [16, n].
// - from_registers: a is in registers, b is [16, n] and read transposed.
// - by_rows: a is in registers, b is [n, 16].
template <class T, int n>
struct Wgmma;

// The operands of an instruction cannot come from a loop. The sums come first, so the numbers of what follows depend on
// n. `r` is the register constraint.
#define SLUICE_EIGHT_SUMS(r, i) \
  r(d[i]), r(d[i + 1]), r(d[i + 2]), r(d[i + 3]), r(d[i + 4]), r(d[i + 5]), r(d[i + 6]), r(d[i + 7])
#define SLUICE_SUMS_8(r) r(d[0]), r(d[1]), r(d[2]), r(d[3])
#define SLUICE_SUMS_16(r) SLUICE_EIGHT_SUMS(r, 0)
#define SLUICE_SUMS_32(r) SLUICE_SUMS_16(r), SLUICE_EIGHT_SUMS(r, 8)
#define SLUICE_SUMS_64(r) SLUICE_SUMS_32(r), SLUICE_EIGHT_SUMS(r, 16), SLUICE_EIGHT_SUMS(r, 24)
#define SLUICE_SUMS_128(r)                                                                         \
  SLUICE_SUMS_64(r), SLUICE_EIGHT_SUMS(r, 32), SLUICE_EIGHT_SUMS(r, 40), SLUICE_EIGHT_SUMS(r, 48), \
      SLUICE_EIGHT_SUMS(r, 56)
#define SLUICE_SUMS_192(r)                                                                          \
  SLUICE_SUMS_128(r), SLUICE_EIGHT_SUMS(r, 64), SLUICE_EIGHT_SUMS(r, 72), SLUICE_EIGHT_SUMS(r, 80), \
      SLUICE_EIGHT_SUMS(r, 88)
#define SLUICE_SUMS_256(r)                                                                            \
  SLUICE_SUMS_192(r), SLUICE_EIGHT_SUMS(r, 96), SLUICE_EIGHT_SUMS(r, 104), SLUICE_EIGHT_SUMS(r, 112), \
      SLUICE_EIGHT_SUMS(r, 120)
#define SLUICE_NAMES_8 "%0, %1, %2, %3"
#define SLUICE_NAMES_16 SLUICE_NAMES_8 ", %4, %5, %6, %7"
#define SLUICE_NAMES_32 SLUICE_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_NAMES_64 \
  SLUICE_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_128                                                               \
  SLUICE_NAMES_64                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLUICE_NAMES_192                                                             \
  SLUICE_NAMES_128                                                                   \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SLUICE_NAMES_256                                                                         \
  SLUICE_NAMES_192                                                                               \
  ", "                                                                                           \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// o0 to o5 are the numbers of the operands after n / 2 sums.
// `transposed` says how b is read, an operand of the instruction.
#define SLUICE_FROM_REGISTERS(name, type, n, o0, o1, o2, o3, o4, o5, transposed)                                    \
  template <int accumulate = 1>                                                                                     \
  __device__ static void name(float(&d)[n / 2], const uint32_t(&a)[4], uint64_t b) {                                \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
                 "." type " {" SLUICE_NAMES_##n "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4                \
                                                ", p, 1, 1, " transposed "; }"                                      \
                 : SLUICE_SUMS_##n("+f")                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));                            \
  }
#define SLUICE_FROM_SHARED(name, type, n, o0, o1, o2, transposed)                                                   \
  __device__ static void name(float(&d)[n / 2], uint64_t a, uint64_t b, int accumulate) {                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type \
                 "." type " {" SLUICE_NAMES_##n "}, %" #o0 ", %" #o1 ", p, 1, 1, 0, " transposed "; }"              \
                 : SLUICE_SUMS_##n("+f")                                                                            \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                \
  }
#define SLUICE_WGMMA_CASE(T, type, n, o0, o1, o2, o3, o4, o5)                   \
  template <>                                                                   \
  struct Wgmma<T, n> {                                                          \
    SLUICE_FROM_SHARED(from_shared, type, n, o0, o1, o2, "0")                   \
    SLUICE_FROM_SHARED(from_shared_transposed, type, n, o0, o1, o2, "1")        \
    SLUICE_FROM_REGISTERS(from_registers, type, n, o0, o1, o2, o3, o4, o5, "1") \
    SLUICE_FROM_REGISTERS(by_rows, type, n, o0, o1, o2, o3, o4, o5, "0")        \
  };
#define SLUICE_WGMMA(n, o0, o1, o2, o3, o4, o5)                       \
  SLUICE_WGMMA_CASE(__nv_bfloat16, "bf16", n, o0, o1, o2, o3, o4, o5) \
  SLUICE_WGMMA_CASE(__half, "f16", n, o0, o1, o2, o3, o4, o5)
SLUICE_WGMMA(8, 4, 5, 6, 7, 8, 9)
SLUICE_WGMMA(16, 8, 9, 10, 11, 12, 13)
SLUICE_WGMMA(32, 16, 17, 18, 19, 20, 21)
SLUICE_WGMMA(64, 32, 33, 34, 35, 36, 37)
SLUICE_WGMMA(128, 64, 65, 66, 67, 68, 69)
SLUICE_WGMMA(192, 96, 97, 98, 99, 100, 101)
SLUICE_WGMMA(256, 128, 129, 130, 131, 132, 133)

// The same for 8-bit floats (E4M3), 32 elements of a row at a time: d[64, n] (+)= a[64, 32] * b[n, 32]. Rows have 128
// bytes and are swizzled as above. by_rows takes a from registers: of row g + 8 h, lane l holds elements 4 t to 4 t + 3
// in a[h] and those 16 further on in a[2 + h].
#define SLUICE_WGMMA_FP8(n, o0, o1, o2, o3, o4, o5)                                                            \
  template <>                                                                                                  \
  struct Wgmma<__nv_fp8_e4m3, n> {                                                                             \
    __device__ static void from_shared(float (&d)[n / 2], uint64_t a, uint64_t b, int accumulate) {            \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n          \
                   "k32.f32.e4m3.e4m3 {" SLUICE_NAMES_##n "}, %" #o0 ", %" #o1 ", p, 1, 1; }"                  \
                   : SLUICE_SUMS_##n("+f")                                                                     \
                   : "l"(a), "l"(b), "r"(accumulate));                                                         \
    }                                                                                                          \
    template <int accumulate = 1>                                                                              \
    __device__ static void by_rows(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b) {                    \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n          \
                   "k32.f32.e4m3.e4m3 {" SLUICE_NAMES_##n "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 \
                                                          ", p, 1, 1; }"                                       \
                   : SLUICE_SUMS_##n("+f")                                                                     \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));                     \
    }                                                                                                          \
  };
SLUICE_WGMMA_FP8(8, 4, 5, 6, 7, 8, 9)
SLUICE_WGMMA_FP8(16, 8, 9, 10, 11, 12, 13)
SLUICE_WGMMA_FP8(32, 16, 17, 18, 19, 20, 21)
SLUICE_WGMMA_FP8(64, 32, 33, 34, 35, 36, 37)
SLUICE_WGMMA_FP8(128, 64, 65, 66, 67, 68, 69)
SLUICE_WGMMA_FP8(192, 96, 97, 98, 99, 100, 101)
SLUICE_WGMMA_FP8(256, 128, 129, 130, 131, 132, 133)
#undef SLUICE_WGMMA_FP8

// The same for int8, with sums of int32.
#define SLUICE_WGMMA_INT8(n, o0, o1, o2, o3, o4, o5)                                                                \
  template <>                                                                                                       \
  struct Wgmma<int8_t, n> {                                                                                         \
    template <int accumulate>                                                                                       \
    __device__ static void by_rows(int32_t (&d)[n / 2], const uint32_t (&a)[4], uint64_t b) {                       \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n               \
                   "k32.s32.s8.s8 {" SLUICE_NAMES_##n "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p; }" \
                   : SLUICE_SUMS_##n("+r")                                                                          \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));                          \
    }                                                                                                               \
  };
SLUICE_WGMMA_INT8(16, 8, 9, 10, 11, 12, 13)
SLUICE_WGMMA_INT8(32, 16, 17, 18, 19, 20, 21)
#undef SLUICE_WGMMA_INT8
#undef SLUICE_WGMMA
#undef SLUICE_WGMMA_CASE
#undef SLUICE_FROM_REGISTERS
#undef SLUICE_FROM_SHARED
#undef SLUICE_NAMES_16
#undef SLUICE_NAMES_32
#undef SLUICE_SUMS_16
#undef SLUICE_SUMS_32
#undef SLUICE_NAMES_64
#undef SLUICE_NAMES_128
#undef SLUICE_EIGHT_SUMS
#undef SLUICE_SUMS_64
#undef SLUICE_SUMS_128
#undef SLUICE_SUMS_192
#undef SLUICE_SUMS_256
#undef SLUICE_NAMES_192
#undef SLUICE_NAMES_256

// wgmma_arrive() comes before matmuls whose registers other instructions wrote. wgmma_commit() ends a group of matmuls.
// wgmma_wait() waits until at most `Pending` groups are unfinished.
__device__ inline void wgmma_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses or definitions of these registers across this point: finished matmuls wrote them,
// or later ones read them.
template <int count>
__device__ inline void wgmma_fence_operands(float (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <class Integer, int count>
__device__ inline void wgmma_fence_operands(Integer (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Barriers of `arrivals` threads (or copies) in shared memory, 8 bytes each. Phases alternate between 0 and 1.
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive(uint32_t barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times) : "memory");
}
// Arrives for this thread when all its asynchronous copies so far have finished.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase end only when bulk copies have brought `bytes` more bytes.
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Copies `bytes` bytes to shared memory, counted by a barrier. Called by one thread. `bytes` and both addresses are
// multiples of 16.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Waits until the phase of this parity is complete.
__device__ inline void wait_barrier(uint32_t barrier, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Whether the phase of this parity is complete.
__device__ inline bool barrier_passed(uint32_t barrier, int parity) {
  int passed;
  asm volatile(
      "{ .reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.s32 %0, 1, 0, done; }"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

// Makes what this thread wrote to shared memory, or saw written, visible to later wgmma instructions and bulk copies.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// sync_threads() waits at named barrier `id`, 1 to 15, until `threads` threads have arrived. arrive_threads() arrives
// without waiting.
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
