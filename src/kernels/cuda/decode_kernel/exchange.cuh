// Results that the blocks of a running kernel pass to each other without a grid barrier. Every word is stored with a
// tag in one store of eight bytes, and every quad in one store of sixteen bytes. A reader loads again until the tag is
// that of the step that it wants. (PTX ISA, memory consistency model: vector accesses are not single accesses, but b128
// is one.)
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/device/numeric.cuh"

namespace sluice::cuda::persistent {

__device__ inline void put_word(uint2* to, uint32_t word, uint32_t tag) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word), "r"(tag) : "memory");
}

// Four elements of 16 bits and the sum of the squares of their unrounded values.
struct Quad {
  uint32_t low, high;
  float squares;
  uint32_t tag;
};
__device__ inline void put_quad(uint2* to, const Quad& q) {
  asm volatile(
      "{ .reg .b64 a, b; .reg .b128 q;\n"
      "mov.b64 a, {%1, %2}; mov.b64 b, {%3, %4}; mov.b128 q, {a, b};\n"
      "st.relaxed.gpu.global.b128 [%0], q; }" ::"l"(to),
      "r"(q.low), "r"(q.high), "r"(__float_as_uint(q.squares)), "r"(q.tag)
      : "memory");
}
__device__ inline Quad load_quad(const uint2* from) {
  Quad q;
  uint32_t squares;
  asm volatile(
      "{ .reg .b64 a, b; .reg .b128 q;\n"
      "ld.relaxed.gpu.global.b128 q, [%4];\n"
      "mov.b128 {a, b}, q; mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
      : "=r"(q.low), "=r"(q.high), "=r"(squares), "=r"(q.tag)
      : "l"(from));
  q.squares = __uint_as_float(squares);
  return q;
}
__device__ inline Quad wait_for_quad(const uint2* from, Quad q, uint32_t tag) {
  while (q.tag != tag) {
    __nanosleep(20);
    q = load_quad(from);
  }
  return q;
}

// Loads a word with its tag, whether or not it is there yet.
__device__ inline uint2 load_word(const uint2* from) {
  uint2 v;
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from));
  return v;
}
// Waits until the word is there. `v` is what load_word() returned.
__device__ inline uint32_t wait_for_word(const uint2* from, uint2 v, uint32_t tag) {
  while (v.y != tag) {
    __nanosleep(20);
    v = load_word(from);
  }
  return v.x;
}

// Unpacks two 16-bit elements from a word.
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

}  // namespace sluice::cuda::persistent
