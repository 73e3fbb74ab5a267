// Filters that create or change numbers.
#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

// Returns a number's text with the digits of all scripts as ASCII, and without underscores between digits. Returns
// nullopt where Python's int() and float() fail.
std::optional<std::string> plain_digits(std::string_view s) {
  std::string ascii;
  for (size_t at = 0; at < s.size();) {
    const char32_t c = text::next(s, at);
    if (c >= 0x80 && !text::is_decimal(c)) return std::nullopt;
    ascii += static_cast<char>(c < 0x80 ? c : static_cast<char32_t>('0' + text::digit_value(c)));
  }
  const auto alnum = [&](size_t i) { return i < ascii.size() && std::isalnum(static_cast<unsigned char>(ascii[i])); };
  std::string out;
  for (size_t i = 0; i < ascii.size(); ++i) {
    if (ascii[i] != '_') {
      out += ascii[i];
    } else if (i == 0 || !alnum(i - 1) || !alnum(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

// Python's int(text, base); nullopt if the text is not an integer.
std::optional<Value> parse_int(Runtime& rt, std::string_view text, int64_t base) {
  text = text::strip(text);
  if (text.size() > 4096) return std::nullopt;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char letter = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : '\0';
  const int64_t prefix_base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (prefix_base != 0 && (base == prefix_base || base == 0)) {
    text.remove_prefix(2);
    if (text.starts_with('_')) text.remove_prefix(1);
    base = prefix_base;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) return std::nullopt;
  const auto digits = plain_digits(text);
  if (!digits || digits->empty()) return std::nullopt;
  uint64_t value = 0;
  const auto read = std::from_chars(digits->data(), digits->data() + digits->size(), value, static_cast<int>(base));
  if (read.ptr != digits->data() + digits->size() || read.ec == std::errc::invalid_argument) return std::nullopt;
  if (read.ec != std::errc()) rt.fail("an integer needs more than 64 bits");
  return rt.integer(negative ? -static_cast<__int128>(value) : static_cast<__int128>(value));
}

std::optional<double> parse_float(std::string_view text) {
  text = text::strip(text);
  auto digits = plain_digits(text);
  if (!digits || digits->empty()) return std::nullopt;
  std::string_view s = *digits;
  const bool negative = s.starts_with('-');
  if (negative || s.starts_with('+')) s.remove_prefix(1);
  if (s.empty() || s[0] == '-' || s[0] == '+') return std::nullopt;
  double value = 0;
  const auto read = std::from_chars(s.data(), s.data() + s.size(), value);
  if (read.ptr != s.data() + s.size() || read.ec == std::errc::invalid_argument) return std::nullopt;
  if (s.find('(') != std::string_view::npos) return std::nullopt;  // nan(...)
  if (read.ec == std::errc::result_out_of_range) value = std::strtod(std::string(s).c_str(), nullptr);
  return negative ? -value : value;
}

Value truncated(Runtime& rt, double d) {
  if (std::abs(d) >= 0x1p65) rt.fail("an integer needs more than 64 bits");
  return rt.integer(static_cast<__int128>(d));
}

Value to_int(Runtime& rt, const Value& value, const Args& args) {
  const Value fallback = args.find(0) ? args[0] : Value::integer(0);
  require_defined(rt, value);
  if (value.is_integer()) return rt.integer(value.wide());
  if (value.is(Kind::kString)) {
    const int64_t base = args.find(1) ? expect_int(rt, args[1], "base") : 10;
    rt.spend_copy(value.text().size());
    if (const auto parsed = parse_int(rt, value.text(), base)) return *parsed;
    const auto number = parse_float(value.text());
    return number && std::isfinite(*number) ? truncated(rt, *number) : fallback;
  }
  if (!value.is(Kind::kFloat) || std::isnan(value.as_float())) return fallback;
  if (std::isinf(value.as_float())) rt.fail("cannot convert float infinity to integer");
  return truncated(rt, value.as_float());
}

Value to_float(Runtime& rt, const Value& value, const Args& args) {
  require_defined(rt, value);
  if (value.is_number()) return Value::real(value.as_float());
  if (value.is(Kind::kString)) {
    rt.spend_copy(value.text().size());
    if (const auto number = parse_float(value.text())) return Value::real(*number);
  }
  return args.find(0) ? args[0] : Value::real(0);
}

Value absolute(Runtime& rt, const Value& value, const Args&) {
  require_defined(rt, value);
  if (value.is_integer()) return rt.integer(value.wide() < 0 ? -value.wide() : value.wide());
  if (value.is(Kind::kFloat)) return Value::real(std::abs(value.as_float()));
  rt.fail(fmt::format("bad operand type for abs(): '{}'", type_name(value)));
}

// Python's round(): half to even, on the exact value.
Value round_common(Runtime& rt, const Value& value, int64_t precision) {
  if (value.is_integer()) {
    if (precision >= 0) return rt.integer(value.wide());
    if (precision < -19) return Value::integer(0);
    __int128 unit = 1;
    for (int64_t i = precision; i < 0; ++i) unit *= 10;
    const __int128 rest = ((value.wide() % unit) + unit) % unit;
    const __int128 low = value.wide() - rest;
    const bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
    return rt.integer(up ? low + unit : low);
  }
  const double d = value.as_float();
  if (!std::isfinite(d) || precision > 300) return value;
  if (precision < -308) return Value::real(std::copysign(0.0, d));
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return Value::real(std::nearbyint(d / unit) * unit);
  }
  return Value::real(std::strtod(fmt::format("{:.{}f}", d, precision).c_str(), nullptr));
}

Value round(Runtime& rt, const Value& value, const Args& args) {
  require_defined(rt, value);
  if (!value.is_number()) rt.fail(fmt::format("type {} cannot be rounded", type_name(value)));
  const int64_t precision = args.find(0) ? expect_int(rt, args[0], "precision") : 0;
  const std::string_view method = args.find(1) ? expect_text(rt, args[1], "method") : std::string_view("common");
  if (method == "common") return round_common(rt, value, precision);
  if (method != "ceil" && method != "floor") rt.fail("method must be common, ceil or floor");
  const Value unit = binary(rt, BinaryOp::kPow, Value::integer(10), Value::integer(precision));
  const double scaled = binary(rt, BinaryOp::kMul, value, unit).as_float();
  if (!std::isfinite(scaled)) rt.fail("cannot convert float infinity to integer");
  const Value whole = truncated(rt, method == "ceil" ? std::ceil(scaled) : std::floor(scaled));
  return binary(rt, BinaryOp::kDiv, whole, unit);
}

Value file_size(Runtime& rt, const Value& value, const Args& args) {
  const bool binary_units = args.find(0) && truthy(args[0]);
  std::optional<double> bytes;
  if (value.is(Kind::kString)) bytes = parse_float(value.text());
  if (value.is_number()) bytes = value.as_float();
  if (!bytes) rt.fail(fmt::format("filesizeformat: {} is not a number", type_name(value)));
  const double base = binary_units ? 1024 : 1000;
  if (*bytes == 1) return rt.string("1 Byte");
  if (*bytes < base) return rt.string(fmt::format("{:.0f} Bytes", std::trunc(*bytes)));
  double unit = base;
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  size_t i = 0;
  for (; i < kPrefixes.size(); ++i) {
    unit *= base;
    if (*bytes < unit) break;
  }
  i = std::min(i, kPrefixes.size() - 1);
  const char prefix = binary_units && i == 0 ? 'K' : kPrefixes[i];
  return rt.string(fmt::format("{:.1f} {}{}B", base * *bytes / unit, prefix, binary_units ? "i" : ""));
}

constexpr Builtin kNumberFilters[] = {
    {"abs", "", absolute},
    {"float", "default=", to_float},
    {"int", "default= base=", to_int},
    {"round", "precision= method=", round},
    {"filesizeformat", "binary=", file_size},
};

}  // namespace

std::span<const Builtin> number_filters() { return kNumberFilters; }

}  // namespace sluice::jinja
