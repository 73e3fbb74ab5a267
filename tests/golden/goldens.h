// Shared by tests against folders of goldens: the goldens' names and the error bound.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/registry.h"
#include "ops/ops.h"

namespace sluice {

inline constexpr double kTolerance = 2e-4;  // bound on relative_error

inline std::vector<std::string> golden_names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The scalar reference, this machine's best kernels, and a GPU's batch-invariant kernels if there is a GPU.
inline std::vector<std::string> golden_backends() {
  std::vector<std::string> names{"reference", ""};
  const ops::Backend* exact = Registry<ops::Backend>::find("cuda-exact");
  if (exact != nullptr && exact->usable()) names.emplace_back(exact->name);
  return names;
}

// Makes a valid test name.
inline std::string test_name(const std::string& golden, const std::string& backend) {
  std::string name = golden + "_" + (backend.empty() ? "best" : backend);
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

// Largest |a - b| relative to the largest |b|; infinite if there is a NaN.
inline double relative_error(const float* a, const float* b, int64_t n) {
  double worst = 0, scale = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - b[i]);
    if (!std::isfinite(error)) return INFINITY;
    worst = std::max(worst, error);
    scale = std::max(scale, std::abs(static_cast<double>(b[i])));
  }
  return worst / scale;
}

}  // namespace sluice
