// Attributes, items and slices, in jinja2's order and within its sandbox.
#include "chat/jinja/ops.h"

#include <fmt/core.h>

#include <algorithm>

#include "chat/jinja/text.h"

namespace sluice::jinja {

namespace {

std::string owner_name(const Value& object) { return object.is(Kind::kNone) ? "None" : type_name(object) + " object"; }

Value no_attribute(Runtime& rt, const Value& object, std::string_view name) {
  return rt.undefined(fmt::format("'{}' has no attribute '{}'", owner_name(object), text::clip(name)));
}

Value unsafe_attribute(Runtime& rt, const Value& object, std::string_view name) {
  return rt.undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe", text::clip(name), type_name(object)));
}

}  // namespace

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

// Returns the item at an index that may be negative, for objects that have a length.
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

// The positions that a slice selects, as computed by Python's slice.indices().
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

}  // namespace sluice::jinja
