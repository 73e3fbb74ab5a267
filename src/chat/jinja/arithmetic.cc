// Python's operators on numbers and sequences.
#include "chat/jinja/ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace sluice::jinja {

namespace {

constexpr std::string_view kOpNames[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

[[noreturn]] void fail_operands(Runtime& rt, BinaryOp op, const Value& a, const Value& b) {
  require_defined(rt, a);
  require_defined(rt, b);
  if (op == BinaryOp::kAdd && (a.is(Kind::kString) || a.is_sequence())) {
    const std::string type = type_name(a);
    rt.fail(fmt::format("can only concatenate {0} (not \"{1}\") to {0}", type, type_name(b)));
  }
  rt.fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", kOpNames[static_cast<int>(op)], type_name(a),
                      type_name(b)));
}

Value concatenate(Runtime& rt, const Value& a, const Value& b) {
  if (a.is(Kind::kString)) {
    const bool safe = a.is_safe() || b.is_safe();
    std::string escaped_a, escaped_b;
    if (safe && !a.is_safe()) escaped_a = escape(rt, a);
    if (safe && !b.is_safe()) escaped_b = escape(rt, b);
    const std::string_view left = safe && !a.is_safe() ? std::string_view(escaped_a) : a.text();
    const std::string_view right = safe && !b.is_safe() ? std::string_view(escaped_b) : b.text();
    rt.heap.expect(left.size() + right.size());
    rt.spend_copy(left.size() + right.size());
    std::string out;
    out.reserve(left.size() + right.size());
    out += left;
    out += right;
    return rt.string(std::move(out), safe);
  }
  const size_t n = a.items().size() + b.items().size();
  rt.heap.expect(n * sizeof(Value));
  rt.spend(n / 8);
  std::vector<Value> items;
  items.reserve(n);
  items.insert(items.end(), a.items().begin(), a.items().end());
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is(Kind::kList) ? rt.list(std::move(items)) : rt.tuple(std::move(items));
}

Value repeat(Runtime& rt, const Value& sequence, const Value& count) {
  const auto n = static_cast<size_t>(std::clamp<__int128>(count.wide(), 0, INT64_MAX));
  const auto guard = [&](size_t unit) {
    if (unit != 0 && n > SIZE_MAX / 2 / unit) rt.heap.expect(SIZE_MAX);
    rt.heap.expect(unit * n);
  };
  if (sequence.is(Kind::kString)) {
    const std::string_view text = sequence.text();
    guard(text.size());
    std::string out;
    if (!text.empty()) {
      rt.spend_copy(text.size() * n);
      rt.spend(n / 8);
      out.reserve(text.size() * n);
      for (size_t i = 0; i < n; ++i) out += text;
    }
    return rt.string(std::move(out), sequence.is_safe());
  }
  const auto& items = sequence.items();
  guard(items.size() * sizeof(Value));
  std::vector<Value> out;
  if (!items.empty()) {
    rt.spend(items.size() * n / 8);
    out.reserve(items.size() * n);
    for (size_t i = 0; i < n; ++i) out.insert(out.end(), items.begin(), items.end());
  }
  return sequence.is(Kind::kList) ? rt.list(std::move(out)) : rt.tuple(std::move(out));
}

__int128 floor_divide(__int128 a, __int128 b) {
  const __int128 quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) rest += b;
  } else {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double float_floor_divide(double a, double b) {
  const double rest = float_modulo(a, b);
  const double quotient = (a - rest) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

Value integer_power(Runtime& rt, __int128 base, __int128 exponent) {
  if (base == 0 || base == 1) return rt.integer(exponent == 0 ? 1 : base);
  if (base == -1) return rt.integer(exponent % 2 == 0 ? 1 : -1);
  if (exponent > 64) rt.fail("an integer needs more than 64 bits");
  __int128 result = 1;
  for (__int128 i = 0; i < exponent; ++i) {
    result *= base;
    if (result > static_cast<__int128>(UINT64_MAX) || result < INT64_MIN) rt.fail("an integer needs more than 64 bits");
  }
  return rt.integer(result);
}

Value power(Runtime& rt, const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer() && b.wide() >= 0) return integer_power(rt, a.wide(), b.wide());
  const double base = a.as_float();
  const double exponent = b.as_float();
  if (base == 0 && exponent < 0) rt.fail("0.0 cannot be raised to a negative power");
  if (base < 0 && exponent != std::floor(exponent) && std::isfinite(exponent)) {
    rt.fail("complex numbers are not supported");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) rt.fail("numerical result out of range");
  return Value::real(result);
}

Value integer_binary(Runtime& rt, BinaryOp op, __int128 a, __int128 b) {
  if (b == 0 && (op == BinaryOp::kFloorDiv || op == BinaryOp::kMod)) rt.fail("integer division or modulo by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return rt.integer(a + b);
    case BinaryOp::kSub:
      return rt.integer(a - b);
    case BinaryOp::kMul: {
      __int128 product;
      if (__builtin_mul_overflow(a, b, &product)) rt.fail("an integer needs more than 64 bits");
      return rt.integer(product);
    }
    case BinaryOp::kFloorDiv:
      return rt.integer(floor_divide(a, b));
    default:
      return rt.integer(a - floor_divide(a, b) * b);
  }
}

Value number_binary(Runtime& rt, BinaryOp op, const Value& a, const Value& b) {
  if (op == BinaryOp::kPow) return power(rt, a, b);
  if (a.is_integer() && b.is_integer() && op != BinaryOp::kDiv) return integer_binary(rt, op, a.wide(), b.wide());
  const double x = a.as_float();
  const double y = b.as_float();
  switch (op) {
    case BinaryOp::kAdd:
      return Value::real(x + y);
    case BinaryOp::kSub:
      return Value::real(x - y);
    case BinaryOp::kMul:
      return Value::real(x * y);
    default:
      break;
  }
  if (y == 0) rt.fail(op == BinaryOp::kDiv ? "division by zero" : "float floor division or modulo by zero");
  switch (op) {
    case BinaryOp::kDiv:
      return Value::real(x / y);
    case BinaryOp::kFloorDiv:
      return Value::real(float_floor_divide(x, y));
    default:
      return Value::real(float_modulo(x, y));
  }
}

}  // namespace

Value binary(Runtime& rt, BinaryOp op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return number_binary(rt, op, a, b);
  const bool textual = a.is(Kind::kString) || a.is_sequence();
  if (op == BinaryOp::kAdd && textual && a.kind() == b.kind()) return concatenate(rt, a, b);
  if (op == BinaryOp::kMul && textual && b.is_integer()) return repeat(rt, a, b);
  if (op == BinaryOp::kMul && a.is_integer() && (b.is(Kind::kString) || b.is_sequence())) return repeat(rt, b, a);
  if (op == BinaryOp::kMod && a.is(Kind::kString)) {
    return rt.string(format_percent(rt, a.text(), b, a.is_safe()), a.is_safe());
  }
  fail_operands(rt, op, a, b);
}

Value negate(Runtime& rt, const Value& value) {
  require_defined(rt, value);
  if (value.is_integer()) return rt.integer(-value.wide());
  if (value.is(Kind::kFloat)) return Value::real(-value.as_float());
  rt.fail(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

Value plus(Runtime& rt, const Value& value) {
  require_defined(rt, value);
  if (value.is_integer()) return rt.integer(value.wide());
  if (value.is(Kind::kFloat)) return value;
  rt.fail(fmt::format("bad operand type for unary +: '{}'", type_name(value)));
}

}  // namespace sluice::jinja
