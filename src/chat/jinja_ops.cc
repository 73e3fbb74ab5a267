// Comparison, arithmetic, attributes, items, slices and iteration, as Python has them.
#include "chat/jinja_ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja_text.h"
#include "sluice/error.h"

namespace sluice::jinja {

// --- runtime

void Runtime::fail(const std::string& message) const {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("chat template, line {}: {}", line, message));
}
void Runtime::fail_fuel() const { fail(fmt::format("rendering takes more than {} steps", limits_.fuel)); }
void Runtime::fail_depth() const { fail(fmt::format("nested deeper than {} evaluations", limits_.depth)); }

Value Runtime::string(std::string text, bool safe) {
  spend_value();
  const size_t size = text.capacity();
  return Value(Kind::kString, heap.make<Str>(size, std::move(text), safe));
}
Value Runtime::list(std::vector<Value> items) {
  spend_value();
  const size_t size = items.capacity() * sizeof(Value);
  return Value(Kind::kList, heap.make<Seq>(size, std::move(items), false));
}
Value Runtime::tuple(std::vector<Value> items, bool group) {
  spend_value();
  const size_t size = items.capacity() * sizeof(Value);
  return Value(Kind::kTuple, heap.make<Seq>(size, std::move(items), group));
}
Value Runtime::dict(Dict dict) {
  spend_value();
  const size_t size = dict.size() * (sizeof(Dict::Item) + 4 * sizeof(uint32_t));
  return Value(Kind::kDict, heap.make<DictObject>(size, std::move(dict)));
}
Value Runtime::undefined(std::string message) {
  spend_value();
  return Value(Kind::kUndefined, heap.make<UndefinedInfo>(message.size(), std::move(message)));
}
Value Runtime::iterator(std::function<bool(Value&)> advance) {
  spend_value();
  return Value(Kind::kIterator, heap.make<Iterator>(128, std::move(advance)));
}
Value Runtime::function(const Builtin& builtin, const Value& self) {
  spend_value();
  return Value(Kind::kFunction, heap.make<Function>(0, builtin, self));
}
Value Runtime::integer(__int128 value) {
  if (value >= INT64_MIN && value <= INT64_MAX) return Value::integer(static_cast<int64_t>(value));
  if (value > 0 && value <= static_cast<__int128>(UINT64_MAX)) return Value::big(static_cast<uint64_t>(value));
  fail("an integer needs more than 64 bits");
}

// --- types

std::string type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBig:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kString:
      return value.is_safe() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kView: {
      const View::Part part = value.as<View>().part;
      return part == View::kKeys ? "dict_keys" : part == View::kValues ? "dict_values" : "dict_items";
    }
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "Macro";
  }
  return "object";
}

namespace {

[[noreturn]] void fail_undefined(const Runtime& rt, const Value& value) { rt.fail(value.as<UndefinedInfo>().message); }

void require_defined(const Runtime& rt, const Value& value) {
  if (value.is(Kind::kUndefined)) fail_undefined(rt, value);
}

std::string owner_name(const Value& object) { return object.is(Kind::kNone) ? "None" : type_name(object) + " object"; }

Value no_attribute(Runtime& rt, const Value& object, std::string_view name) {
  return rt.undefined(fmt::format("'{}' has no attribute '{}'", owner_name(object), name.substr(0, 100)));
}

Value unsafe_attribute(Runtime& rt, const Value& object, std::string_view name) {
  return rt.undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", name.substr(0, 100), type_name(object)));
}

bool equal_items(Runtime& rt, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same_object(a[i], b[i]) && !equal(rt, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Runtime& rt, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.items()) {
    require_hashable(rt, key);
    const Value* other = b.find(key);
    if (!other || (!same_object(value, *other) && !equal(rt, value, *other))) return false;
  }
  return true;
}

}  // namespace

// --- comparison

bool truthy(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return false;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kBig:
      return value.wide() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    default: {
      const auto n = length(value);
      return !n || *n != 0;
    }
  }
}

bool hashable(Runtime& rt, const Value& value) {
  rt.spend();
  switch (value.kind()) {
    case Kind::kString:
      rt.spend_copy(value.text().size());
      return true;
    case Kind::kTuple: {
      const Runtime::Depth depth(rt);
      for (const Value& item : value.items()) {
        if (!hashable(rt, item)) return false;
      }
      return true;
    }
    default:
      return !value.is(Kind::kList) && !value.is(Kind::kDict) && !value.is(Kind::kView);
  }
}

void require_hashable(Runtime& rt, const Value& value) {
  if (!hashable(rt, value)) rt.fail(fmt::format("unhashable type: '{}'", type_name(value)));
}

bool same_object(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::kUndefined)) return true;
  if (a.is_object()) return a.address() == b.address();
  return a.is(Kind::kNone) || (a.is(Kind::kFloat) ? a.as_float() == b.as_float() : a.wide() == b.wide());
}

bool equal(Runtime& rt, const Value& a, const Value& b) {
  rt.spend();
  if (a.is_number() && b.is_number()) return a.exact() == b.exact();
  if (a.kind() != b.kind()) return false;
  const Runtime::Depth depth(rt);
  switch (a.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      if (a.text().size() == b.text().size()) rt.spend_look(a.text().size());
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      return a.address() == b.address() || equal_items(rt, a.items(), b.items());
    case Kind::kDict:
      return a.address() == b.address() || equal_dicts(rt, a.dict(), b.dict());
    case Kind::kView: {
      if (a.as<View>().part != b.as<View>().part || a.as<View>().part == View::kValues)
        return a.address() == b.address();
      if (length(a) != length(b)) return false;
      for (const Value& item : to_vector(rt, a)) {
        if (!contains(rt, b, item)) return false;
      }
      return true;
    }
    case Kind::kRange: {
      const auto& x = a.as<Range>();
      const auto& y = b.as<Range>();
      return x.length == y.length && (x.length == 0 || (x.start == y.start && (x.length == 1 || x.step == y.step)));
    }
    default:
      return a.address() == b.address();
  }
}

bool less(Runtime& rt, const Value& a, const Value& b) {
  rt.spend();
  require_defined(rt, a);
  require_defined(rt, b);
  if (a.is_number() && b.is_number()) return a.exact() < b.exact();
  if (a.is(Kind::kString) && b.is(Kind::kString)) {  // the order of UTF-8 is the order of code points
    rt.spend_look(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const Runtime::Depth depth(rt);
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i) {
      const Value& x = a.items()[i];
      const Value& y = b.items()[i];
      if (!same_object(x, y) && !equal(rt, x, y)) return less(rt, x, y);
    }
    return a.items().size() < b.items().size();
  }
  rt.fail(fmt::format("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b)));
}

bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equal(rt, a, b);
    case CompareOp::kNe:
      return !equal(rt, a, b);
    case CompareOp::kIn:
      return contains(rt, b, a);
    case CompareOp::kNotIn:
      return !contains(rt, b, a);
    default:
      break;
  }
  if (a.is_number() && b.is_number()) {  // NaN: neither less nor equal
    const long double x = a.exact();
    const long double y = b.exact();
    return op == CompareOp::kLt ? x < y : op == CompareOp::kLe ? x <= y : op == CompareOp::kGt ? x > y : x >= y;
  }
  switch (op) {
    case CompareOp::kLt:
      return less(rt, a, b);
    case CompareOp::kGt:
      return less(rt, b, a);
    case CompareOp::kLe:
      return less(rt, a, b) || equal(rt, a, b);
    default:
      return less(rt, b, a) || equal(rt, a, b);
  }
}

bool contains(Runtime& rt, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      require_defined(rt, item);
      if (!item.is(Kind::kString)) {
        rt.fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
      }
      rt.spend_look(container.text().size());
      return text::find(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict:
      require_hashable(rt, item);
      return container.dict().find(item) != nullptr;
    case Kind::kView:
      if (container.as<View>().part == View::kKeys) return contains(rt, container.as<View>().of, item);
      break;
    case Kind::kRange: {
      const auto& range = container.as<Range>();
      if (!item.is_number() || item.exact() != std::floor(item.exact()) || range.length == 0) return false;
      const auto offset = item.exact() - range.start;
      const auto index = offset / range.step;
      return index >= 0 && index < range.length && index == std::floor(index);
    }
    default:
      if (!is_iterable(container)) {
        rt.fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
      }
  }
  Cursor cursor(rt, container);
  for (Value value; cursor.next(value);) {
    if (same_object(value, item) || equal(rt, value, item)) return true;
  }
  return false;
}

// --- arithmetic

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

// --- attributes and items

std::optional<Value> own_attribute(Runtime& rt, const Value& object, std::string_view name) {
  require_defined(rt, object);
  if (name.starts_with("__") && name.ends_with("__")) return unsafe_attribute(rt, object, name);
  if (const Builtin* method = find_method(object, name)) return rt.function(*method, object);
  if (is_forbidden(object, name)) return unsafe_attribute(rt, object, name);
  switch (object.kind()) {
    case Kind::kNamespace:
      if (const Value* value = object.as<Namespace>().attributes.find(name)) return *value;
      break;
    case Kind::kLoop:
      return rt.loop_attribute(object, name);
    case Kind::kCycler:
      if (name == "current") return object.as<Cycler>().items[object.as<Cycler>().position];
      break;
    case Kind::kTuple:
      if (object.as<Seq>().group && name == "grouper") return object.items()[0];
      if (object.as<Seq>().group && name == "list") return object.items()[1];
      break;
    case Kind::kRange:
      if (name == "start") return Value::integer(object.as<Range>().start);
      if (name == "stop") return Value::integer(object.as<Range>().stop);
      if (name == "step") return Value::integer(object.as<Range>().step);
      break;
    default:
      break;
  }
  return std::nullopt;
}

Value get_attribute(Runtime& rt, const Value& object, std::string_view name) {
  if (auto value = own_attribute(rt, object, name)) return *std::move(value);
  if (object.is(Kind::kDict)) {
    if (const Value* value = object.dict().find(name)) return *value;
  }
  return no_attribute(rt, object, name);
}

namespace {

// The item at an index that may be negative, for objects that have a length.
std::optional<Value> indexed(Runtime& rt, const Value& object, __int128 index) {
  const auto n = length(object);
  if (!n) return std::nullopt;
  if (index < 0) index += *n;
  if (index < 0 || index >= *n) return std::nullopt;
  const auto i = static_cast<int64_t>(index);
  switch (object.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return object.items()[static_cast<size_t>(i)];
    case Kind::kRange:
      return Value::integer(object.as<Range>().at(i));
    case Kind::kString: {
      const Str& str = object.as<Str>();
      const size_t begin = byte_offset(rt, str, i);
      const size_t end = text::skip(str.text, begin, 1);
      return rt.string(std::string_view(str.text).substr(begin, end - begin), str.safe);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

Value get_item(Runtime& rt, const Value& object, const Value& key) {
  require_defined(rt, object);
  if (object.is(Kind::kDict)) {
    if (hashable(rt, key)) {
      if (const Value* value = object.dict().find(key)) return *value;
    }
  } else if (key.is_integer()) {
    if (auto value = indexed(rt, object, key.wide())) return *std::move(value);
  }
  if (key.is(Kind::kString)) {
    if (auto value = own_attribute(rt, object, key.text())) return *std::move(value);
    return no_attribute(rt, object, key.text());
  }
  std::string name;
  if (!key.is_object() || key.is(Kind::kUndefined)) {
    append_repr(rt, name, key);
  } else {
    name = type_name(key);
  }
  return rt.undefined(fmt::format("{} has no element {}", owner_name(object), name));
}

namespace {

struct Bounds {
  int64_t start, step, count;
};

// The positions a slice selects, as slice.indices() of Python finds them.
Bounds resolve_slice(Runtime& rt, int64_t n, const Value* start, const Value* stop, const Value* step) {
  const auto number = [&](const Value* bound) -> std::optional<__int128> {
    if (!bound || bound->is(Kind::kNone)) return std::nullopt;
    require_defined(rt, *bound);
    if (!bound->is_integer()) rt.fail("slice indices must be integers or None");
    return bound->wide();
  };
  const __int128 stride = number(step).value_or(1);
  if (stride == 0) rt.fail("slice step cannot be zero");
  const __int128 low = stride < 0 ? -1 : 0;
  const __int128 high = stride < 0 ? n - 1 : n;
  const auto clamp = [&](std::optional<__int128> bound, __int128 fallback) {
    if (!bound) return fallback;
    return std::clamp(*bound < 0 ? *bound + n : *bound, low, high);
  };
  const __int128 first = clamp(number(start), stride < 0 ? high : low);
  const __int128 last = clamp(number(stop), stride < 0 ? low : high);
  const __int128 distance = stride > 0 ? last - first : first - last;
  const __int128 size = stride > 0 ? stride : -stride;
  const __int128 count = distance <= 0 ? 0 : (distance + size - 1) / size;
  return {static_cast<int64_t>(first), static_cast<int64_t>(std::clamp<__int128>(stride, INT64_MIN, INT64_MAX)),
          static_cast<int64_t>(count)};
}

Value slice_string(Runtime& rt, const Str& str, const Bounds& b) {
  if (b.count == 0) return rt.string(std::string(), str.safe);
  if (b.step == 1) {
    const size_t begin = byte_offset(rt, str, b.start);
    const size_t end = byte_offset(rt, str, b.start + b.count);
    return rt.string(std::string_view(str.text).substr(begin, end - begin), str.safe);
  }
  rt.spend_scan(str.text.size());
  std::string out;
  for (int64_t i = 0, at = b.start; i < b.count; ++i, at += i < b.count ? b.step : 0) {
    const size_t begin = byte_offset(rt, str, at);
    out.append(str.text, begin, text::skip(str.text, begin, 1) - begin);
  }
  return rt.string(std::move(out), str.safe);
}

Value slice_range(Runtime& rt, const Range& range, const Bounds& b) {
  if (b.count == 0) return Value(Kind::kRange, rt.heap.make<Range>(0, 0, 0, 1));
  const int64_t step = b.count == 1 ? 1 : b.step * range.step;
  const __int128 stop = static_cast<__int128>(range.at(b.start)) + static_cast<__int128>(b.count) * step;
  return Value(Kind::kRange,
               rt.heap.make<Range>(0, range.at(b.start),
                                   static_cast<int64_t>(std::clamp<__int128>(stop, INT64_MIN, INT64_MAX)), step));
}

}  // namespace

Value slice(Runtime& rt, const Value& object, const Value* start, const Value* stop, const Value* step) {
  require_defined(rt, object);
  const bool sliceable = object.is(Kind::kString) || object.is_sequence() || object.is(Kind::kRange);
  if (!sliceable) rt.fail(fmt::format("'{}' object cannot be sliced", type_name(object)));
  const Bounds b = resolve_slice(rt, *length(object), start, stop, step);
  if (object.is(Kind::kString)) return slice_string(rt, object.as<Str>(), b);
  if (object.is(Kind::kRange)) {
    return slice_range(rt, object.as<Range>(), b);
  }
  rt.heap.expect(static_cast<size_t>(b.count) * sizeof(Value));
  rt.spend(static_cast<uint64_t>(b.count) / 8);
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(b.count));
  for (int64_t i = 0, at = b.start; i < b.count; ++i, at += i < b.count ? b.step : 0) {
    items.push_back(object.items()[static_cast<size_t>(at)]);
  }
  return object.is(Kind::kList) ? rt.list(std::move(items)) : rt.tuple(std::move(items));
}

// --- length and iteration

std::optional<int64_t> length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return code_points(value.as<Str>());
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().size());
    case Kind::kView:
      return length(value.as<View>().of);
    case Kind::kRange:
      return value.as<Range>().length;
    default:
      return std::nullopt;
  }
}

int64_t length_or_fail(Runtime& rt, const Value& value) {
  if (value.is(Kind::kLoop)) return static_cast<int64_t>(rt.loop_attribute(value, "length")->wide());
  const auto n = length(value);
  if (!n) rt.fail(fmt::format("object of type '{}' has no len()", type_name(value)));
  if (value.is(Kind::kString)) rt.spend_look(value.text().size());
  return *n;
}

bool is_iterable(const Value& value) { return length(value).has_value() || value.is(Kind::kIterator); }

Cursor::Cursor(Runtime& rt, Value source) : rt_(&rt), source_(std::move(source)) {}

namespace {

bool advance(Runtime& rt, Iterator& iterator, Value& out) {
  if (!iterator.advance) return false;
  if (iterator.running) rt.fail("generator already executing");
  struct Running {
    explicit Running(bool& flag) : flag(flag) { flag = true; }
    ~Running() { flag = false; }
    bool& flag;
  };
  bool more = false;
  {
    const Runtime::Depth depth(rt);
    const Running running(iterator.running);
    more = iterator.advance(out);
  }
  if (!more) iterator.advance = nullptr;
  return more;
}

}  // namespace

bool Cursor::next(Value& out) {
  rt_->spend();
  switch (source_.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      if (at_ >= source_.items().size()) return false;
      out = source_.items()[at_++];
      return true;
    case Kind::kDict:
      if (at_ >= source_.dict().size()) return false;
      out = source_.dict().items()[at_++].first;
      return true;
    case Kind::kView: {
      const View& view = source_.as<View>();
      if (at_ >= view.of.dict().size()) return false;
      const auto& [key, value] = view.of.dict().items()[at_++];
      out = view.part == View::kKeys ? key : view.part == View::kValues ? value : rt_->tuple({key, value});
      return true;
    }
    case Kind::kRange:
      if (static_cast<int64_t>(at_) >= source_.as<Range>().length) return false;
      out = Value::integer(source_.as<Range>().at(static_cast<int64_t>(at_++)));
      return true;
    case Kind::kString: {
      const std::string_view text = source_.text();
      if (at_ >= text.size()) return false;
      const size_t begin = at_;
      text::next(text, at_);
      out = rt_->string(text.substr(begin, at_ - begin));
      return true;
    }
    case Kind::kIterator:
      return advance(*rt_, source_.as<Iterator>(), out);
    case Kind::kUndefined:
      return false;
    default:
      rt_->fail(fmt::format("'{}' object is not iterable", type_name(source_)));
  }
}

std::vector<Value> to_vector(Runtime& rt, const Value& iterable) {
  std::vector<Value> out;
  if (iterable.is_sequence()) {
    rt.heap.expect(iterable.items().size() * sizeof(Value));
    rt.spend(iterable.items().size() / 8);
    return iterable.items();
  }
  Cursor cursor(rt, iterable);
  for (Value value; cursor.next(value);) {
    if (out.size() == out.capacity()) rt.heap.expect(3 * out.size() * sizeof(Value));
    out.push_back(std::move(value));
  }
  return out;
}

Dict to_dict(Runtime& rt, const Value& source) {
  if (source.is(Kind::kDict)) {
    rt.heap.expect(source.dict().size() * 2 * sizeof(Value));
    rt.spend(source.dict().size() / 4);
    return source.dict();
  }
  Dict out;
  Cursor cursor(rt, source);
  for (Value pair; cursor.next(pair);) {
    const auto items = to_vector(rt, pair);
    if (items.size() != 2) rt.fail("a dictionary needs pairs of key and value");
    require_hashable(rt, items[0]);
    out.set(items[0], items[1]);
  }
  return out;
}

int64_t code_points(const Str& str) {
  if (str.length < 0) str.length = static_cast<int64_t>(text::count(str.text));
  return str.length;
}

size_t byte_offset(Runtime& rt, const Str& str, int64_t index) {
  constexpr size_t kMarkStep = 64;
  const int64_t n = code_points(str);
  if (index >= n) return str.text.size();
  if (static_cast<size_t>(n) == str.text.size()) return static_cast<size_t>(index);
  if (str.marks.empty()) {
    rt.spend_scan(str.text.size());
    rt.heap.expect(static_cast<size_t>(n) / kMarkStep * sizeof(uint32_t));
    str.marks.reserve(static_cast<size_t>(n) / kMarkStep + 1);
    for (size_t at = 0; at < str.text.size(); at = text::skip(str.text, at, kMarkStep)) {
      str.marks.push_back(static_cast<uint32_t>(at));
    }
  }
  const auto i = static_cast<size_t>(index);
  return text::skip(str.text, str.marks[i / kMarkStep], i % kMarkStep);
}

int64_t expect_int(Runtime& rt, const Value& value, std::string_view what) {
  require_defined(rt, value);
  if (!value.is_integer() || value.is(Kind::kBig)) {
    rt.fail(fmt::format("{} must be an integer, not {}", what, type_name(value)));
  }
  return static_cast<int64_t>(value.wide());
}

std::string_view expect_text(Runtime& rt, const Value& value, std::string_view what) {
  require_defined(rt, value);
  if (!value.is(Kind::kString)) rt.fail(fmt::format("{} must be str, not {}", what, type_name(value)));
  return value.text();
}

}  // namespace sluice::jinja
