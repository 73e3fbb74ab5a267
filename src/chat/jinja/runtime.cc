// Limits, errors and new values of a rendering; type checks.
#include "chat/jinja/runtime.h"

#include <fmt/core.h>

#include "chat/jinja/ops.h"
#include "sluice/error.h"

namespace sluice::jinja {

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

void require_defined(const Runtime& rt, const Value& value) {
  if (value.is(Kind::kUndefined)) rt.fail(value.as<UndefinedInfo>().message);
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
