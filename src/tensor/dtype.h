// Data types as immutable descriptors, compared by address. Adding a type edits no existing file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

struct TypeInfo {
  std::string_view name;         // "bfloat16"
  int block_size;                // elements per block: 1 for plain types
  int block_bytes;               // bytes per block
  std::string_view safetensors;  // spelling in a safetensors header, empty when safetensors has no such type
  int gguf = -1;                 // number in a GGUF file (ggml_type), -1 when GGUF has no such type

  // Convert `count` elements (whole blocks) to and from fp32; memory may be unaligned. Null when there is no
  // conversion.
  void (*decode)(const std::byte* from, float* to, size_t count) = nullptr;
  void (*encode)(const float* from, std::byte* to, size_t count) = nullptr;
};
using DType = const TypeInfo*;

// Codecs of the plain types.
namespace codec {
void decode_f32(const std::byte*, float*, size_t);
void decode_bf16(const std::byte*, float*, size_t);
void decode_f16(const std::byte*, float*, size_t);
void decode_f64(const std::byte*, float*, size_t);
void decode_f8e4m3(const std::byte*, float*, size_t);
void decode_f8e5m2(const std::byte*, float*, size_t);
void decode_i32(const std::byte*, float*, size_t);
void encode_f32(const float*, std::byte*, size_t);
void encode_bf16(const float*, std::byte*, size_t);
void encode_f16(const float*, std::byte*, size_t);
void encode_f8e4m3(const float*, std::byte*, size_t);
void encode_f8e5m2(const float*, std::byte*, size_t);
}  // namespace codec

inline constexpr TypeInfo kFloat32{"float32", 1, 4, "F32", 0, codec::decode_f32, codec::encode_f32};
inline constexpr TypeInfo kBFloat16{"bfloat16", 1, 2, "BF16", 30, codec::decode_bf16, codec::encode_bf16};
inline constexpr TypeInfo kFloat16{"float16", 1, 2, "F16", 1, codec::decode_f16, codec::encode_f16};
inline constexpr TypeInfo kFloat64{"float64", 1, 8, "F64", 28, codec::decode_f64};
inline constexpr TypeInfo kInt64{"int64", 1, 8, "I64", 27};
inline constexpr TypeInfo kInt32{"int32", 1, 4, "I32", 26, codec::decode_i32};
inline constexpr TypeInfo kInt16{"int16", 1, 2, "I16", 25};
inline constexpr TypeInfo kInt8{"int8", 1, 1, "I8", 24};
inline constexpr TypeInfo kUInt8{"uint8", 1, 1, "U8"};
inline constexpr TypeInfo kUInt16{"uint16", 1, 2, "U16"};
inline constexpr TypeInfo kUInt32{"uint32", 1, 4, "U32"};
inline constexpr TypeInfo kUInt64{"uint64", 1, 8, "U64"};
inline constexpr TypeInfo kBool{"bool", 1, 1, "BOOL"};
inline constexpr TypeInfo kFloat8E4M3{"float8_e4m3fn", 1, 1, "F8_E4M3", -1, codec::decode_f8e4m3, codec::encode_f8e4m3};
inline constexpr TypeInfo kFloat8E5M2{"float8_e5m2", 1, 1, "F8_E5M2", -1, codec::decode_f8e5m2, codec::encode_f8e5m2};
inline constexpr TypeInfo kFloat8E8M0{"float8_e8m0fnu", 1, 1, "F8_E8M0"};

// Types are found in Registry<TypeInfo>. It holds the plain types above and those that other folders register (quant/).
// Each function returns nullptr when no type has the given name, spelling or number.
DType find_dtype(std::string_view name);
DType find_safetensors_dtype(std::string_view spelling);
DType find_gguf_dtype(int number);
const std::vector<DType>& plain_dtypes();  // the plain types above

// Scalar conversions shared by readers, references and tests. They round to nearest even; NaN stays NaN.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);
// E4M3 without infinities (OCP 8-bit Floating Point, Micikevicius et al. 2022, arXiv:2209.05433). Larger values
// saturate to 448, the largest number.
float fp8_to_float(uint8_t bits);
uint8_t float_to_fp8(float value);
// E5M2 (same source) is the upper half of an fp16. Larger values saturate to 57344, the largest finite number.
float fp8_e5m2_to_float(uint8_t bits);
uint8_t float_to_fp8_e5m2(float value);

// Converts `count` elements (whole blocks) to or from fp32. Throws Error(kUnsupportedModel) when the type has no
// conversion in that direction.
void to_float(DType type, const std::byte* from, float* to, size_t count);
void from_float(DType type, const float* from, std::byte* to, size_t count);

}  // namespace sluice
