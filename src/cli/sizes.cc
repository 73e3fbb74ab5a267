// Whole numbers with units; see sizes.h.
#include "cli/sizes.h"

#include <charconv>
#include <cmath>

namespace sluice::cli {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> decimal(std::string_view text, double unit) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const double product = value * unit, nearest = std::round(product);
  if (!(std::abs(nearest) < 9.2e18) || std::abs(product - nearest) > 1e-6) return std::nullopt;
  return static_cast<int64_t>(nearest);
}

}  // namespace

std::optional<int64_t> parse_size(std::string_view text) {
  if (text.empty()) return std::nullopt;
  if (text.ends_with("iB")) {
    text.remove_suffix(2);
    if (text.find_last_of("KMGT") != text.size() - 1) return std::nullopt;
  }
  constexpr std::string_view kDecimal = "kmgt", kBinary = "KMGT";
  if (const size_t power = kDecimal.find(text.back()); power != std::string_view::npos) {
    return decimal(text.substr(0, text.size() - 1), std::pow(1000.0, static_cast<double>(power + 1)));
  }
  const size_t power = kBinary.find(text.back());
  if (power == std::string_view::npos) return whole_number(text);
  const std::optional<int64_t> count = whole_number(text.substr(0, text.size() - 1));
  const int64_t unit = int64_t{1} << (10 * (power + 1));
  if (!count || *count > INT64_MAX / unit || *count < INT64_MIN / unit) return std::nullopt;
  return *count * unit;
}

}  // namespace sluice::cli
