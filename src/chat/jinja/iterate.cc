// Lengths, iteration and conversion to vectors and dictionaries.
#include "chat/jinja/ops.h"

#include <fmt/core.h>

#include "chat/jinja/text.h"

namespace sluice::jinja {

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
    if (items.size() != 2) rt.fail("a dictionary needs (key, value) pairs");
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

}  // namespace sluice::jinja
