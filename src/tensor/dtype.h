// Data types as immutable descriptors compared by address (style G7): adding one edits no existing file.
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
  std::string_view safetensors;  // spelling in a safetensors header, empty when the format has none
};
using DType = const TypeInfo*;

inline constexpr TypeInfo kFloat32{"float32", 1, 4, "F32"};
inline constexpr TypeInfo kBFloat16{"bfloat16", 1, 2, "BF16"};
inline constexpr TypeInfo kFloat16{"float16", 1, 2, "F16"};
inline constexpr TypeInfo kFloat64{"float64", 1, 8, "F64"};
inline constexpr TypeInfo kInt64{"int64", 1, 8, "I64"};
inline constexpr TypeInfo kInt32{"int32", 1, 4, "I32"};
inline constexpr TypeInfo kInt16{"int16", 1, 2, "I16"};
inline constexpr TypeInfo kInt8{"int8", 1, 1, "I8"};
inline constexpr TypeInfo kUInt8{"uint8", 1, 1, "U8"};
inline constexpr TypeInfo kUInt16{"uint16", 1, 2, "U16"};
inline constexpr TypeInfo kUInt32{"uint32", 1, 4, "U32"};
inline constexpr TypeInfo kUInt64{"uint64", 1, 8, "U64"};
inline constexpr TypeInfo kBool{"bool", 1, 1, "BOOL"};
inline constexpr TypeInfo kFloat8E4M3{"float8_e4m3fn", 1, 1, "F8_E4M3"};
inline constexpr TypeInfo kFloat8E5M2{"float8_e5m2", 1, 1, "F8_E5M2"};
inline constexpr TypeInfo kFloat8E8M0{"float8_e8m0fnu", 1, 1, "F8_E8M0"};

// The plain types above; nullptr when none has that name.
DType find_dtype(std::string_view name);
DType find_safetensors_dtype(std::string_view name);
const std::vector<DType>& plain_dtypes();

// Scalar conversions shared by readers, references and tests. Rounding is to nearest even; NaN stays NaN.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float value);
float fp16_to_float(uint16_t bits);
uint16_t float_to_fp16(float value);

// Converts `count` elements of a plain type to or from fp32. Throws Error(kUnsupportedModel) for a type without a
// meaning as numbers here.
void to_float(DType type, const std::byte* from, float* to, size_t count);
void from_float(DType type, const float* from, std::byte* to, size_t count);

}  // namespace sluice
