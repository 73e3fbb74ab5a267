// What compute capability 9.0 adds (sm_90a): products of a warp group of four warps, barriers in shared memory that
// copies complete on, registers moved from warp group to warp group (PTX ISA: wgmma, mbarrier, setmaxnreg).
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/device/tensor_core.cuh"

namespace sluice::cuda {

// Matrices in shared memory: rows of 64 elements of 16 bits (128 bytes) whose packs of 16 bytes are exchanged, pack i
// of row r lying at i ^ (r % 8); eight rows, 1024 bytes, are a unit that begins at a multiple of 1024. Wider matrices
// are panels of 64 columns. `panel_bytes` from a panel to the next one matters only to matrices that are read
// transposed.
__device__ inline uint64_t matrix(uint32_t address, uint32_t panel_bytes = 16) {
  constexpr uint64_t kExchanged128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kExchanged128 | kEightRows | uint64_t{panel_bytes >> 4} << 16 | (address & 0x3ffff) >> 4;
}

// d[64, n] = a[64, 16] * b, added to what d was unless `accumulate` is 0: fp32 sums. Lane l of warp w of the group
// holds, with g = l / 4 and t = l % 4, in d[4 * i + 2 * h + j] row 16 w + g + 8 h, column 8 i + 2 t + j, and of a in
// registers what mma takes of its 16 rows. `from_shared`: a is a matrix [64, 16], b one [n, 16];
// `from_shared_transposed`: b is [16, n]. `from_registers`: b is [16, n], read transposed; `by_rows`: the same with b
// as in from_shared.
template <class T, int n>
struct Wgmma;

// The operands of an instruction cannot be a loop. The sums come first, so that what follows them is numbered by n.
// `r`: what kind of registers they are.
#define SLUICE_EIGHT_SUMS(r, i) \
  r(d[i]), r(d[i + 1]), r(d[i + 2]), r(d[i + 3]), r(d[i + 4]), r(d[i + 5]), r(d[i + 6]), r(d[i + 7])
#define SLUICE_SUMS_8(r) r(d[0]), r(d[1]), r(d[2]), r(d[3])
#define SLUICE_SUMS_16(r) SLUICE_EIGHT_SUMS(r, 0)
#define SLUICE_SUMS_32(r) SLUICE_SUMS_16(r), SLUICE_EIGHT_SUMS(r, 8)
#define SLUICE_SUMS_64(r) SLUICE_SUMS_32(r), SLUICE_EIGHT_SUMS(r, 16), SLUICE_EIGHT_SUMS(r, 24)
#define SLUICE_SUMS_128(r)                                                                         \
  SLUICE_SUMS_64(r), SLUICE_EIGHT_SUMS(r, 32), SLUICE_EIGHT_SUMS(r, 40), SLUICE_EIGHT_SUMS(r, 48), \
      SLUICE_EIGHT_SUMS(r, 56)
#define SLUICE_NAMES_8 "%0, %1, %2, %3"
#define SLUICE_NAMES_16 SLUICE_NAMES_8 ", %4, %5, %6, %7"
#define SLUICE_NAMES_32 SLUICE_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_NAMES_64 \
  SLUICE_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_128                                                               \
  SLUICE_NAMES_64                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// o0 to o5: the numbers of the operands after n / 2 sums.
// `transposed`: how b is read, an operand of the instruction.
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

// The same of 8-bit floats (E4M3), 32 of a row at a time: d[64, n] (+)= a[64, 32] * b[n, 32], both of rows of 128 bytes
// that are exchanged as above; `by_rows` with a in registers, of whose row g + 8 h lane l holds elements 4 t to 4 t +
// 3, and 16 more, in a[h] and a[2 + h].
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
#undef SLUICE_WGMMA_FP8

// And of int8, with sums of int32.
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

// Before products whose registers others wrote; after the products of one group; until all but `Pending` groups of them
// are done.
__device__ inline void wgmma_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler moves no use of these registers across this point, and none of what makes them: they are written by
// products that were waited for, or read by those to come.
template <int count>
__device__ inline void hold(float (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <class Integer, int count>
__device__ inline void hold(Integer (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

// Barriers of `arrivals` threads (or copies) in shared memory, 8 bytes each; phases alternate between 0 and 1.
__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void arrive(uint32_t barrier, int times) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(times) : "memory");
}
// Arrives for this thread when all of its asynchronous copies so far are done.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and lets the phase end only when `bytes` more of bulk copies have come.
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// `bytes` to shared memory at once, a multiple of 16 as both addresses are, by one thread; counted by a barrier.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
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

// Is it?
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

// What this thread wrote to shared memory, or saw written, is seen by products of warp groups from here on.
__device__ inline void wgmma_fence_operand() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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
