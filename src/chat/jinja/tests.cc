// The tests of jinja2: {% if x is ... %}.
#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

template <Kind kKind>
Value is_kind(Runtime&, const Value& value, const Args&) {
  return Value::boolean(value.is(kKind));
}

template <CompareOp kOp>
Value compares(Runtime& rt, const Value& value, const Args& args) {
  return Value::boolean(compare(rt, kOp, value, args[0]));
}

template <bool kWanted>
Value is_bool(Runtime&, const Value& value, const Args&) {
  return Value::boolean(value.is(Kind::kBool) && value.as_bool() == kWanted);
}

bool remainder_is(Runtime& rt, const Value& value, const Value& divisor, int64_t wanted) {
  return equal(rt, binary(rt, BinaryOp::kMod, value, divisor), Value::integer(wanted));
}

Value is_odd(Runtime& rt, const Value& v, const Args&) {
  return Value::boolean(remainder_is(rt, v, Value::integer(2), 1));
}
Value is_even(Runtime& rt, const Value& v, const Args&) {
  return Value::boolean(remainder_is(rt, v, Value::integer(2), 0));
}
Value is_divisible(Runtime& rt, const Value& v, const Args& args) {
  return Value::boolean(remainder_is(rt, v, args[0], 0));
}

Value is_defined(Runtime&, const Value& v, const Args&) { return Value::boolean(!v.is(Kind::kUndefined)); }
Value is_number(Runtime&, const Value& v, const Args&) { return Value::boolean(v.is_number()); }
Value is_integer(Runtime&, const Value& v, const Args&) { return Value::boolean(v.is_integer() && !v.is(Kind::kBool)); }
Value is_iterable_value(Runtime&, const Value& v, const Args&) { return Value::boolean(is_iterable(v)); }
Value is_escaped(Runtime&, const Value& v, const Args&) { return Value::boolean(v.is_safe()); }
Value is_same(Runtime&, const Value& v, const Args& args) { return Value::boolean(same_object(v, args[0])); }

// True if the value has a length and items.
Value is_sequence(Runtime&, const Value& v, const Args&) {
  return Value::boolean(length(v).has_value() && !v.is(Kind::kView));
}

Value is_callable(Runtime&, const Value& v, const Args&) {
  return Value::boolean(v.is(Kind::kFunction) || v.is(Kind::kMacro) || v.is(Kind::kJoiner) || v.is(Kind::kLoop) ||
                        v.is(Kind::kUndefined));
}

template <bool (*kMatches)(char32_t), bool (*kSpoils)(char32_t)>
Value is_case(Runtime& rt, const Value& v, const Args&) {
  const std::string text = to_str(rt, v);
  rt.spend_scan(text.size());
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = text::next(text, at);
    if (kSpoils(c) || text::is_title(c)) return Value::boolean(false);
    found |= kMatches(c);
  }
  return Value::boolean(found);
}

Value is_filter(Runtime& rt, const Value& v, const Args&) {
  return Value::boolean(find_filter(expect_text(rt, v, "the name of a filter")) != nullptr);
}
Value is_test(Runtime& rt, const Value& v, const Args&) {
  return Value::boolean(find_test(expect_text(rt, v, "the name of a test")) != nullptr);
}

constexpr Builtin kTests[] = {
    {"odd", "", is_odd},
    {"even", "", is_even},
    {"divisibleby", "num", is_divisible},
    {"defined", "", is_defined},
    {"undefined", "", is_kind<Kind::kUndefined>},
    {"filter", "", is_filter},
    {"test", "", is_test},
    {"none", "", is_kind<Kind::kNone>},
    {"boolean", "", is_kind<Kind::kBool>},
    {"false", "", is_bool<false>},
    {"true", "", is_bool<true>},
    {"integer", "", is_integer},
    {"float", "", is_kind<Kind::kFloat>},
    {"lower", "", is_case<text::is_lower, text::is_upper>},
    {"upper", "", is_case<text::is_upper, text::is_lower>},
    {"string", "", is_kind<Kind::kString>},
    {"mapping", "", is_kind<Kind::kDict>},
    {"number", "", is_number},
    {"sequence", "", is_sequence},
    {"iterable", "", is_iterable_value},
    {"callable", "", is_callable},
    {"sameas", "other", is_same},
    {"escaped", "", is_escaped},
    {"in", "seq", compares<CompareOp::kIn>},
    {"==", "other", compares<CompareOp::kEq>},
    {"eq", "other", compares<CompareOp::kEq>},
    {"equalto", "other", compares<CompareOp::kEq>},
    {"!=", "other", compares<CompareOp::kNe>},
    {"ne", "other", compares<CompareOp::kNe>},
    {">", "other", compares<CompareOp::kGt>},
    {"gt", "other", compares<CompareOp::kGt>},
    {"greaterthan", "other", compares<CompareOp::kGt>},
    {">=", "other", compares<CompareOp::kGe>},
    {"ge", "other", compares<CompareOp::kGe>},
    {"<", "other", compares<CompareOp::kLt>},
    {"lt", "other", compares<CompareOp::kLt>},
    {"lessthan", "other", compares<CompareOp::kLt>},
    {"<=", "other", compares<CompareOp::kLe>},
    {"le", "other", compares<CompareOp::kLe>},
};

}  // namespace

const Builtin* find_test(std::string_view name) { return find_in(kTests, name); }

}  // namespace sluice::jinja
