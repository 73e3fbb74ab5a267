// Products of a warp group with int8 (compute capability 9.0; PTX ISA: wgmma).
#pragma once

#include "kernels/cuda/device/warpgroup.cuh"

namespace sluice::cuda {

// d[64, n] = a[64, 32] * b[n, 32], added to what d was unless `accumulate` is 0: int32 sums, in d as in
// WarpgroupProduct. b is a matrix of rows of 128 bytes. Of a, lane l holds, with g = l / 4 and t = l % 4, inputs 4 t .. + 3
// (a[0], a[1]) and 16 + 4 t .. + 3 (a[2], a[3]) of rows g and g + 8 of its warp's 16.
template <int n>
struct ByteProduct;

#define SLUICE_SUMS_8(i)                                                                                      \
  "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3]), "+r"(d[i + 4]), "+r"(d[i + 5]), "+r"(d[i + 6]), \
      "+r"(d[i + 7])
#define SLUICE_SUMS_16 SLUICE_SUMS_8(0)
#define SLUICE_SUMS_32 SLUICE_SUMS_16, SLUICE_SUMS_8(8)
#define SLUICE_SUMS_64 SLUICE_SUMS_32, SLUICE_SUMS_8(16), SLUICE_SUMS_8(24)
#define SLUICE_SUMS_128 SLUICE_SUMS_64, SLUICE_SUMS_8(32), SLUICE_SUMS_8(40), SLUICE_SUMS_8(48), SLUICE_SUMS_8(56)
#define SLUICE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SLUICE_NAMES_32 SLUICE_NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SLUICE_NAMES_64 \
  SLUICE_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLUICE_NAMES_128                                                               \
  SLUICE_NAMES_64                                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// o0 to o5: the numbers of the operands after n / 2 sums.
#define SLUICE_BYTE_PRODUCT(n, o0, o1, o2, o3, o4, o5)                                                            \
  template <>                                                                                                     \
  struct ByteProduct<n> {                                                                                         \
    template <int accumulate> \
    __device__ static void from_registers(int32_t(&d)[n / 2], const uint32_t(&a)[4], uint64_t b) {                \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n             \
                   "k32.s32.s8.s8 {" SLUICE_NAMES_##n "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 ", p; }" \
                   : SLUICE_SUMS_##n                                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(accumulate));                        \
    }                                                                                                             \
  };
SLUICE_BYTE_PRODUCT(16, 8, 9, 10, 11, 12, 13)
SLUICE_BYTE_PRODUCT(32, 16, 17, 18, 19, 20, 21)
SLUICE_BYTE_PRODUCT(64, 32, 33, 34, 35, 36, 37)
SLUICE_BYTE_PRODUCT(128, 64, 65, 66, 67, 68, 69)
#undef SLUICE_BYTE_PRODUCT
#undef SLUICE_NAMES_16
#undef SLUICE_NAMES_32
#undef SLUICE_NAMES_64
#undef SLUICE_NAMES_128
#undef SLUICE_SUMS_8
#undef SLUICE_SUMS_16
#undef SLUICE_SUMS_32
#undef SLUICE_SUMS_64
#undef SLUICE_SUMS_128

template <int count>
__device__ inline void hold(int32_t (&registers)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(registers[i])::"memory");
}

}  // namespace sluice::cuda
