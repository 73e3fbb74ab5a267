// Results that the blocks of a running kernel pass to each other without waiting for all of them: every word lies
// beside a tag, in one store of eight bytes, and who reads it looks again until the tag is the one of the step that it
// wants.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/step_program.h"

namespace sluice::cuda::step {

__device__ inline void put_word(uint2* to, uint32_t word, uint32_t tag) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word), "r"(tag) : "memory");
}
__device__ inline void put_words(uint4* to, uint32_t first, uint32_t second, uint32_t tag) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to), "r"(first), "r"(tag), "r"(second)
               : "memory");
}

// Two words with their tags, as they are now,
__device__ inline uint4 look_at_words(const uint4* from) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
// and when they are there.
__device__ inline uint2 wait_for_words(const uint4* from, uint4 v, uint32_t tag) {
  while (v.y != tag || v.w != tag) {
    __nanosleep(20);
    v = look_at_words(from);
  }
  return {v.x, v.z};
}

// The same of one word.
__device__ inline uint2 look_at_word(const uint2* from) {
  uint2 v;
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
__device__ inline uint32_t wait_for_word(const uint2* from, uint2 v, uint32_t tag) {
  while (v.y != tag) {
    __nanosleep(20);
    v = look_at_word(from);
  }
  return v.x;
}

// Two elements of 16 bits as they are stored in a word.
template <class T>
__device__ inline float2 unpack2(uint32_t pair);
template <>
__device__ inline float2 unpack2<__nv_bfloat16>(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}
template <>
__device__ inline float2 unpack2<__half>(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace sluice::cuda::step
