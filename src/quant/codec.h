// The interface of the block formats in this folder. A format is a struct with
//   struct Block              the bytes of one block, as the file stores them (alignment 1)
//   kElements                 weights per block
//   dequantize(block, out)    writes kElements floats, with the operations and order of the format's reference
//   quantize(in, block)       present where this project writes the format
//   kType                     the format's descriptor
// dequantize is always inlined, so that kernels compiled for an instruction set may include these headers. No copy
// exists that could be linked into code for an older processor. CUDA kernels call it, too. The layouts come from
// ggml-common.h and ggml-quants.c of llama.cpp, and from the Python package gguf (quants.py). The tests compare with
// that package value by value.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

#ifdef __CUDACC__
#define SLUICE_ANY_PROCESSOR __host__ __device__
#else
#define SLUICE_ANY_PROCESSOR
#endif
#define SLUICE_CODEC [[gnu::always_inline]] static inline SLUICE_ANY_PROCESSOR
// For codecs that read tables unavailable to CUDA kernels.
#define SLUICE_HOST_CODEC [[gnu::always_inline]] static inline

namespace sluice::quant {

inline constexpr int kSuperBlock = 256;  // elements in a block of the K, IQ and TQ formats

// Convert blocks to floats and back, for TypeInfo. Instantiated in codecs.cc.
template <class Codec>
void decode_blocks(const std::byte* from, float* to, size_t count);
template <class Codec>
void encode_blocks(const float* from, std::byte* to, size_t count);

template <class Codec, class Block>
constexpr TypeInfo read_only_type(std::string_view name, int gguf, int elements) {
  return {.name = name,
          .block_size = elements,
          .block_bytes = sizeof(Block),
          .safetensors = {},
          .gguf = gguf,
          .decode = decode_blocks<Codec>};
}

template <class Codec, class Block>
constexpr TypeInfo block_type(std::string_view name, int gguf, int elements) {
  TypeInfo type = read_only_type<Codec, Block>(name, gguf, elements);
  type.encode = encode_blocks<Codec>;
  return type;
}

[[gnu::always_inline]] inline SLUICE_ANY_PROCESSOR uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

[[gnu::always_inline]] inline SLUICE_ANY_PROCESSOR uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

// Converts an IEEE half to float: exponent and mantissa move into place and are scaled by 2^112. Subnormals use a
// subtraction.
[[gnu::always_inline]] inline SLUICE_ANY_PROCESSOR float half_to_float(uint16_t half) {
#ifdef __F16C__
  return _cvtsh_ss(half);
#else
  const uint32_t wide = static_cast<uint32_t>(half) << 16, twice = wide + wide;
  const float normal = __builtin_bit_cast(float, (twice >> 4) + (0xe0u << 23)) * 0x1.0p-112f;
  const float subnormal = __builtin_bit_cast(float, (twice >> 17) | (126u << 23)) - 0.5f;
  const uint32_t magnitude = __builtin_bit_cast(uint32_t, twice < (1u << 27) ? subnormal : normal);
  return __builtin_bit_cast(float, (wide & 0x80000000u) | magnitude);
#endif
}

}  // namespace sluice::quant
