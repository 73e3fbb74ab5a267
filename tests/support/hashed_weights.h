// Checkpoints of tests/goldens/arch. Weights are not stored; they follow from a hash of each tensor's name.
//
// Element i of tensor NAME is bf16(mean + std * ((s - 131070) * 2.6429e-5f)), rounded to nearest even and computed in
// fp32 as written. Here z = mix(fnv1a64(NAME) + i + 0x9E3779B97F4A7C15) modulo 2^64 (mix is the finalizer of
// splitmix64), and s is the sum of z's four 16-bit lanes. A row with "values" gives a small tensor in full, also
// rounded to bf16.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/safetensors.h"
#include "tensor/dtype.h"

namespace sluice::testing {

inline uint64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char b : bytes) hash = (hash ^ b) * 0x100000001b3;
  return hash;
}

inline uint64_t splitmix64_mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// The bf16 bits of one row of weights.json: {"name", "shape", "mean", "std"} or {"name", "shape", "values"}.
inline std::vector<uint16_t> hashed_weights(const Json& row) {
  std::vector<uint16_t> bits;
  if (row.contains("values")) {
    for (const Json& v : row["values"]) bits.push_back(float_to_bf16(static_cast<float>(v.get<double>())));
    return bits;
  }
  const auto mean = static_cast<float>(row.at("mean").get<double>());
  const auto std = static_cast<float>(row.at("std").get<double>());
  const uint64_t base = fnv1a64(row.at("name").get_ref<const std::string&>()) + 0x9E3779B97F4A7C15;
  size_t count = 1;
  for (const Json& dim : row.at("shape")) count *= dim.get<size_t>();
  bits.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t z = splitmix64_mix(base + i);
    const auto sum = static_cast<int64_t>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    const float unit = static_cast<float>(sum - 131070) * 2.6429e-5f;
    bits[i] = float_to_bf16(mean + std * unit);
  }
  return bits;
}

// Writes `folder`/config.json and model.safetensors from a golden's config.json and weights.json.
inline void write_hashed_checkpoint(const std::string& golden, const std::string& folder) {
  namespace fs = std::filesystem;
  fs::create_directories(folder);
  fs::copy_file(fs::path(golden) / "config.json", fs::path(folder) / "config.json",
                fs::copy_options::overwrite_existing);
  const Json rows = read_json_file((fs::path(golden) / "weights.json").string());
  std::vector<std::vector<uint16_t>> data;
  std::vector<NamedTensor> tensors;
  for (const Json& row : rows) {
    data.push_back(hashed_weights(row));
    Shape shape;
    for (const Json& dim : row.at("shape")) shape.append(dim.get<int64_t>());
    tensors.push_back({row.at("name").get<std::string>(), Tensor(data.back().data(), &kBFloat16, shape)});
  }
  write_safetensors((fs::path(folder) / "model.safetensors").string(), tensors);
}

}  // namespace sluice::testing
