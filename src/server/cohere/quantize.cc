#include "server/cohere/quantize.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace sluice::server {
namespace {

std::vector<int> plus(std::vector<int> values, int offset) {
  for (int& value : values) value += offset;
  return values;
}

}  // namespace

std::vector<int> int8_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = largest > 0 ? 127 / largest : 0;
  std::vector<int> out;
  out.reserve(values.size());
  for (const float value : values) out.push_back(static_cast<int>(std::lround(value * scale)));
  return out;
}

std::vector<int> uint8_of(std::span<const float> values) { return plus(int8_of(values), 128); }

std::vector<int> ubinary_of(std::span<const float> values) {
  CHECK(values.size() % 8 == 0, "{} values fill no whole bytes", values.size());
  std::vector<int> out(values.size() / 8);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0) out[i / 8] |= 0x80 >> i % 8;
  }
  return out;
}

std::vector<int> binary_of(std::span<const float> values) { return plus(ubinary_of(values), -128); }

}  // namespace sluice::server
