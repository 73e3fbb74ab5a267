// Looks up data types and converts scalars of the plain types.
#include "tensor/dtype.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/registry.h"
#include "base/wide.h"
#include "sluice/error.h"

namespace sluice {

const std::vector<DType>& plain_dtypes() {
  static const std::vector<DType> all = {&kFloat32, &kBFloat16,   &kFloat16,    &kFloat64,   &kInt64,  &kInt32,
                                         &kInt16,   &kInt8,       &kUInt8,      &kUInt16,    &kUInt32, &kUInt64,
                                         &kBool,    &kFloat8E4M3, &kFloat8E5M2, &kFloat8E8M0};
  return all;
}

DType find_dtype(std::string_view name) { return Registry<TypeInfo>::find(name); }

DType find_safetensors_dtype(std::string_view spelling) {
  if (spelling.empty()) return nullptr;  // types without a safetensors spelling have an empty one
  for (DType type : Registry<TypeInfo>::all()) {
    if (type->safetensors == spelling) return type;
  }
  return nullptr;
}

DType find_gguf_dtype(int number) {
  if (number < 0) return nullptr;  // types without a GGUF number have -1
  for (DType type : Registry<TypeInfo>::all()) {
    if (type->gguf == number) return type;
  }
  return nullptr;
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // Stays a quiet NaN instead of rounding to infinity.
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float fp16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) return std::bit_cast<float>(sign) + (sign ? -1.0f : 1.0f) * std::ldexp(float(mantissa), -24);
  const uint32_t widened = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (widened << 23) | (mantissa << 13));
}

uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to infinity
  if (magnitude < 0x38800000) {                       // subnormal or zero: units of 2^-24
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return sign | static_cast<uint16_t>(std::nearbyint(scaled));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

float fp8_to_float(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24, magnitude = bits & 0x7f;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000);
  if (magnitude < 8) return std::copysign(static_cast<float>(magnitude) * 0x1.0p-9f, std::bit_cast<float>(sign));
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

float fp8_e5m2_to_float(uint8_t bits) { return fp16_to_float(static_cast<uint16_t>(bits << 8)); }

namespace {

// Rounds to an 8-bit float with `mantissa_bits` bits of mantissa; `largest` is the stored form of the largest number.
// It has no branch, so that the compiler can vectorize it.
template <int mantissa_bits>
uint8_t to_fp8(float value, int32_t largest) {
  constexpr int kShift = 23 - mantissa_bits, kBias = (1 << (6 - mantissa_bits)) - 1;
  // kNormal holds the bits of 2^(1 - bias), the smallest normal number. kUnits holds a number whose last bit has the
  // weight of a subnormal's last bit: adding it to a subnormal rounds that.
  constexpr int32_t kNormal = (127 + 1 - kBias) << 23, kUnits = (127 + 23 + 1 - kBias - mantissa_bits) << 23;
  const auto bits = std::bit_cast<int32_t>(value), m = bits & 0x7fffffff;
  const int32_t finite = m < 0x7f800000 ? m : 0x7f800000;
  const int32_t rounded = (finite + (1 << (kShift - 1)) - 1 + (finite >> kShift & 1)) >> kShift;
  const int32_t normal = rounded - ((127 - kBias) << mantissa_bits);
  const int32_t subnormal = std::bit_cast<int32_t>(std::bit_cast<float>(m) + std::bit_cast<float>(kUnits)) - kUnits;
  const int32_t number = m < kNormal ? subnormal : normal < largest ? normal : largest;
  return static_cast<uint8_t>((bits >> 24 & 0x80) | (m > 0x7f800000 ? 0x7f : number));
}

}  // namespace

uint8_t float_to_fp8(float value) { return to_fp8<3>(value, 0x7e); }
uint8_t float_to_fp8_e5m2(float value) { return to_fp8<2>(value, 0x7b); }

namespace {

template <class T, class F>
void read_each(const std::byte* from, float* to, size_t count, F&& convert) {
  for (size_t i = 0; i < count; ++i) {
    T raw;
    std::memcpy(&raw, from + i * sizeof(T), sizeof(T));
    to[i] = convert(raw);
  }
}

template <class F>
void write_each(const float* from, std::byte* to, size_t count, F&& convert) {
  using T = decltype(convert(0.0f));
  for (size_t i = 0; i < count; ++i) {
    const T raw = convert(from[i]);
    std::memcpy(to + i * sizeof(T), &raw, sizeof(T));
  }
}

const bool registered = [] {
  for (DType type : plain_dtypes()) Registry<TypeInfo> added(*type);
  return true;
}();

}  // namespace

namespace codec {

void decode_f32(const std::byte* from, float* to, size_t count) { std::memcpy(to, from, count * sizeof(float)); }
void decode_bf16(const std::byte* from, float* to, size_t count) {
  read_each<uint16_t>(from, to, count, bf16_to_float);
}
void decode_f16(const std::byte* from, float* to, size_t count) { read_each<uint16_t>(from, to, count, fp16_to_float); }
void decode_f8e4m3(const std::byte* from, float* to, size_t count) {
  read_each<uint8_t>(from, to, count, fp8_to_float);
}
void decode_f64(const std::byte* from, float* to, size_t count) {
  read_each<double>(from, to, count, [](double v) { return static_cast<float>(v); });
}
void decode_i32(const std::byte* from, float* to, size_t count) {
  read_each<int32_t>(from, to, count, [](int32_t v) { return static_cast<float>(v); });
}
void encode_f32(const float* from, std::byte* to, size_t count) { std::memcpy(to, from, count * sizeof(float)); }
void encode_bf16(const float* from, std::byte* to, size_t count) { write_each(from, to, count, float_to_bf16); }
void encode_f16(const float* from, std::byte* to, size_t count) { write_each(from, to, count, float_to_fp16); }
void decode_f8e5m2(const std::byte* from, float* to, size_t count) {
  read_each<uint8_t>(from, to, count, fp8_e5m2_to_float);
}
void encode_f8e5m2(const float* from, std::byte* to, size_t count) { write_each(from, to, count, float_to_fp8_e5m2); }
SLUICE_WIDE void encode_f8e4m3(const float* from, std::byte* to, size_t count) {
  write_each(from, to, count, [](float value) { return to_fp8<3>(value, 0x7e); });
}

}  // namespace codec

void to_float(DType type, const std::byte* from, float* to, size_t count) {
  if (type->decode == nullptr) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("cannot read weights of type {}", type->name));
  }
  if (count > 0) type->decode(from, to, count);  // pointers of empty arrays may be null
}

void from_float(DType type, const float* from, std::byte* to, size_t count) {
  if (type->encode == nullptr) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("cannot convert weights to type {}", type->name));
  }
  if (count > 0) type->encode(from, to, count);
}

}  // namespace sluice
