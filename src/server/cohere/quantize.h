// Vectors in fewer bits, as Cohere's API gives them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::server {

// Values times 127 divided by the largest magnitude, rounded: cosines of such vectors are close to those of the values.
std::vector<int> int8_of(std::span<const float> values);
// The same plus 128.
std::vector<int> uint8_of(std::span<const float> values);
// A bit per value, which is set unless the value is negative; the first one is a byte's highest. The number of values
// must be a multiple of 8. binary_of is ubinary_of minus 128.
std::vector<int> ubinary_of(std::span<const float> values);
std::vector<int> binary_of(std::span<const float> values);

}  // namespace sluice::server
