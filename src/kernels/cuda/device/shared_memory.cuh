// Loads and stores by 32-bit shared-memory addresses, which byte layouts and asynchronous copies use.
#pragma once

#include <cstdint>

namespace sluice::cuda {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Addresses are multiples of the size of what is loaded or stored.
template <class T>
__device__ inline T load_shared(uint32_t from);
template <>
__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
template <>
__device__ inline uint2 load_shared(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
  return v;
}
template <>
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
template <>
__device__ inline float load_shared(uint32_t from) {
  return __uint_as_float(load_shared<uint32_t>(from));
}
template <>
__device__ inline float2 load_shared(uint32_t from) {
  const auto v = load_shared<uint2>(from);
  return {__uint_as_float(v.x), __uint_as_float(v.y)};
}

__device__ inline void store_shared(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ inline void store_shared(uint32_t to, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(v) : "memory");
}
__device__ inline void store_shared(uint32_t to, float v) { store_shared(to, __float_as_uint(v)); }
__device__ inline void store_shared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

}  // namespace sluice::cuda
