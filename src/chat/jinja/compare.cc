// Python's truth, equality, order and membership.
#include "chat/jinja/ops.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/text.h"

namespace sluice::jinja {

namespace {

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
  if (a.is(Kind::kString) && b.is(Kind::kString)) {  // UTF-8 byte order equals code point order
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
  if (a.is_number() && b.is_number()) {  // NaN is neither less nor equal
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

}  // namespace sluice::jinja
