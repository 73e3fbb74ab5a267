// Filters over sequences and mappings: sort, group, sum, first and last.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "chat/jinja/attribute.h"
#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {

AttributePath::AttributePath(Runtime& rt, const Value* attribute, const Value* fallback) {
  if (fallback && !fallback->is(Kind::kNone)) fallback_ = *fallback;
  if (!attribute || attribute->is(Kind::kNone)) return;
  if (!attribute->is(Kind::kString)) {
    parts_.push_back(*attribute);
    return;
  }
  std::string_view path = attribute->text();
  while (true) {
    const size_t end = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, end);
    int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number =
        !part.empty() && part[0] != '-' && read.ec == std::errc() && read.ptr == part.data() + part.size();
    parts_.push_back(number ? Value::integer(index) : rt.string(part));
    if (end == path.size()) break;
    path.remove_prefix(end + 1);
  }
}

Value AttributePath::operator()(Runtime& rt, Value item) const {
  for (const Value& part : parts_) {
    item = get_item(rt, item, part);
    if (fallback_ && item.is(Kind::kUndefined)) item = *fallback_;
  }
  return item;
}

Value fold_case(Runtime& rt, Value value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kString)) return value;
  rt.spend_unicode(value.text().size());
  return rt.string(text::lower(value.text()));
}

namespace {

bool flag(const Args& args, size_t i) { return args.find(i) && truthy(args[i]); }

// Returns the stable order of `items` by their keys, like Python's sorted().
std::vector<size_t> sorted_order(Runtime& rt, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return reverse ? less(rt, keys[b], keys[a]) : less(rt, keys[a], keys[b]);
  });
  return order;
}

std::vector<Value> pick(const std::vector<Value>& items, const std::vector<size_t>& order) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (const size_t i : order) out.push_back(items[i]);
  return out;
}

Value sort(Runtime& rt, const Value& value, const Args& args) {
  std::vector<AttributePath> paths;  // "a,b" sorts by two attributes
  if (args.given(2) && args[2].is(Kind::kString)) {
    for (const auto name : text::split(args[2].text(), ",", -1, Args::kMaxParameters * 16)) {
      const Value attribute = rt.string(name);
      paths.emplace_back(rt, &attribute);
    }
  } else {
    paths.emplace_back(rt, args.given(2));
  }
  const std::vector<Value> items = to_vector(rt, value);
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) key.push_back(fold_case(rt, path(rt, item), flag(args, 1)));
    keys.push_back(rt.list(std::move(key)));
  }
  return rt.list(pick(items, sorted_order(rt, keys, flag(args, 0))));
}

Value dict_sort(Runtime& rt, const Value& value, const Args& args) {
  if (!value.is(Kind::kDict)) rt.fail(fmt::format("dictsort needs a mapping, not {}", type_name(value)));
  const std::string_view by = args.find(1) ? expect_text(rt, args[1], "by") : std::string_view("key");
  if (by != "key" && by != "value") rt.fail("you can only sort by either \"key\" or \"value\"");
  std::vector<Value> items, keys;
  for (const auto& [key, item] : value.dict().items()) {
    items.push_back(rt.tuple({key, item}));
    keys.push_back(fold_case(rt, by == "key" ? key : item, flag(args, 0)));
  }
  return rt.list(pick(items, sorted_order(rt, keys, flag(args, 2))));
}

Value group_by(Runtime& rt, const Value& value, const Args& args) {
  const AttributePath path(rt, args.find(0), args.find(1));
  const bool case_sensitive = flag(args, 2);
  const std::vector<Value> items = to_vector(rt, value);
  std::vector<Value> names, keys;
  for (const Value& item : items) {
    names.push_back(path(rt, item));
    keys.push_back(fold_case(rt, names.back(), case_sensitive));
  }
  const auto order = sorted_order(rt, keys, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<Value> members;
    size_t end = begin;
    while (end < order.size() && equal(rt, keys[order[begin]], keys[order[end]]))
      members.push_back(items[order[end++]]);
    if (end == begin) members.push_back(items[order[end++]]);  // a key that is unequal to itself (NaN)
    groups.push_back(rt.tuple({names[order[begin]], rt.list(std::move(members))}, /*group=*/true));
    begin = end;
  }
  return rt.list(std::move(groups));
}

template <bool kLargest>
Value extreme(Runtime& rt, const Value& value, const Args& args) {
  const AttributePath path(rt, args.find(1));
  Cursor cursor(rt, value);
  Value best;
  if (!cursor.next(best)) return rt.undefined("no aggregated item, sequence was empty");
  Value best_key = fold_case(rt, path(rt, best), flag(args, 0));
  for (Value item; cursor.next(item);) {
    Value key = fold_case(rt, path(rt, item), flag(args, 0));
    if (kLargest ? less(rt, best_key, key) : less(rt, key, best_key)) {
      best = std::move(item);
      best_key = std::move(key);
    }
  }
  return best;
}

Value sum(Runtime& rt, const Value& value, const Args& args) {
  const AttributePath path(rt, args.find(0));
  Value total = args.find(1) ? args[1] : Value::integer(0);
  if (total.is(Kind::kString)) rt.fail("sum() can't sum strings");
  Cursor cursor(rt, value);
  for (Value item; cursor.next(item);) total = binary(rt, BinaryOp::kAdd, total, path(rt, item));
  return total;
}

Value join(Runtime& rt, const Value& value, const Args& args) {
  const AttributePath path(rt, args.find(1));
  const std::string separator = args.find(0) ? to_str(rt, args[0]) : "";
  std::string out;
  Cursor cursor(rt, value);
  bool first = true;
  for (Value item; cursor.next(item);) {
    if (!first) rt.append(out, separator);
    first = false;
    append_str(rt, out, path(rt, item));
  }
  return rt.string(std::move(out));
}

Value first(Runtime& rt, const Value& value, const Args&) {
  Cursor cursor(rt, value);
  Value item;
  return cursor.next(item) ? item : rt.undefined("no first item, sequence was empty");
}

void require_reversible(Runtime& rt, const Value& value) {
  if (!length(value)) rt.fail(fmt::format("'{}' object is not reversible", type_name(value)));
}

Value last(Runtime& rt, const Value& value, const Args&) {
  require_reversible(rt, value);
  if (*length(value) == 0) return rt.undefined("no last item, sequence was empty");
  if (value.is(Kind::kDict) || value.is(Kind::kView)) return to_vector(rt, value).back();
  return get_item(rt, value, Value::integer(-1));
}

// Yields the items of a vector one by one.
Value yield_items(Runtime& rt, std::vector<Value> items) {
  const Value list = rt.list(std::move(items));
  return rt.iterator([list, at = size_t{0}](Value& out) mutable {
    if (at >= list.items().size()) return false;
    out = list.items()[at++];
    return true;
  });
}

Value reverse(Runtime& rt, const Value& value, const Args&) {
  if (value.is(Kind::kString)) {
    const std::string_view s = value.text();
    rt.heap.expect(s.size());
    rt.spend_scan(s.size());
    std::string out;
    out.reserve(s.size());
    for (size_t end = s.size(); end > 0;) {
      const size_t stop = end;
      text::previous(s, end);
      out += s.substr(end, stop - end);
    }
    return rt.string(std::move(out), value.is_safe());
  }
  std::vector<Value> items = to_vector(rt, value);
  std::reverse(items.begin(), items.end());
  if (value.is(Kind::kIterator)) return rt.list(std::move(items));
  return yield_items(rt, std::move(items));
}

Value to_list(Runtime& rt, const Value& value, const Args&) { return rt.list(to_vector(rt, value)); }

Value items_of(Runtime& rt, const Value& value, const Args&) {
  if (value.is(Kind::kUndefined)) return yield_items(rt, {});
  if (!value.is(Kind::kDict)) {
    return rt.iterator([&rt](Value&) -> bool { rt.fail("can only get item pairs from a mapping"); });
  }
  return yield_items(rt, to_vector(rt, Value(Kind::kView, rt.heap.make<View>(0, value, View::kItems))));
}

Value count_items(Runtime& rt, const Value& value, const Args&) { return Value::integer(length_or_fail(rt, value)); }

Value fallback(Runtime& rt, const Value& value, const Args& args) {
  const bool wanted = value.is(Kind::kUndefined) || (flag(args, 1) && !truthy(value));
  if (!wanted) return value;
  return args.find(0) ? args[0] : rt.string("");
}

Value attribute(Runtime& rt, const Value& value, const Args& args) {
  const std::string_view name = expect_text(rt, args[0], "the name of an attribute");
  if (auto found = own_attribute(rt, value, name)) return *std::move(found);
  return rt.undefined(fmt::format("'{} object' has no attribute '{}'", type_name(value), text::clip(name)));
}

Value unique(Runtime& rt, const Value& value, const Args& args) {
  return rt.iterator([&rt, cursor = Cursor(rt, value), path = AttributePath(rt, args.find(1)), seen = Dict(),
                      case_sensitive = flag(args, 0)](Value& out) mutable {
    while (cursor.next(out)) {
      const Value key = fold_case(rt, path(rt, out), case_sensitive);
      require_hashable(rt, key);
      if (seen.find(key)) continue;
      rt.heap.expect(seen.size() * 2 * sizeof(Dict::Item));
      seen.set(key, Value());
      return true;
    }
    return false;
  });
}

Value batch(Runtime& rt, const Value& value, const Args& args) {
  const int64_t size = expect_int(rt, args[0], "linecount");
  return rt.iterator(
      [&rt, size, cursor = Cursor(rt, value), fill = args.given(1) ? args[1] : Value()](Value& out) mutable {
        std::vector<Value> row;
        Value item;
        // A size below one never fills a row, so everything goes into one row.
        while ((size < 1 || static_cast<int64_t>(row.size()) < size) && cursor.next(item))
          row.push_back(std::move(item));
        if (row.empty()) return false;
        if (!fill.is(Kind::kNone) && static_cast<int64_t>(row.size()) < size) {
          rt.heap.expect(static_cast<size_t>(std::min<int64_t>(size, INT64_MAX / 64)) * sizeof(Value));
          rt.spend(static_cast<uint64_t>(size) / 8);
          row.resize(static_cast<size_t>(size), fill);
        }
        out = rt.list(std::move(row));
        return true;
      });
}

Value slice_columns(Runtime& rt, const Value& value, const Args& args) {
  const int64_t slices = expect_int(rt, args[0], "slices");
  const Value fill = args.given(1) ? args[1] : Value();
  return rt.iterator([&rt, slices, list = value, fill, column = int64_t{0}, at = size_t{0}](Value& out) mutable {
    if (column == 0) list = rt.list(to_vector(rt, list));
    if (slices == 0) rt.fail("integer division or modulo by zero");
    if (column >= slices) return false;
    const auto n = static_cast<int64_t>(list.items().size());
    const bool extra = column < n % slices;
    const auto size = static_cast<size_t>(n / slices + (extra ? 1 : 0));
    rt.spend(size / 8);
    const auto begin = list.items().begin() + static_cast<ptrdiff_t>(at);
    std::vector<Value> items(begin, begin + static_cast<ptrdiff_t>(size));
    if (!fill.is(Kind::kNone) && !extra) items.push_back(fill);
    at += size;
    ++column;
    out = rt.list(std::move(items));
    return true;
  });
}

constexpr Builtin kSequenceFilters[] = {
    {"attr", "name", attribute},
    {"batch", "linecount fill_with=", batch},
    {"count", "", count_items},
    {"length", "", count_items},
    {"d", "default_value= boolean=", fallback},
    {"default", "default_value= boolean=", fallback},
    {"dictsort", "case_sensitive= by= reverse=", dict_sort},
    {"first", "", first},
    {"last", "", last},
    {"groupby", "attribute default= case_sensitive=", group_by},
    {"items", "", items_of},
    {"join", "d= attribute=", join},
    {"list", "", to_list},
    {"max", "case_sensitive= attribute=", extreme<true>},
    {"min", "case_sensitive= attribute=", extreme<false>},
    {"reverse", "", reverse},
    {"slice", "slices fill_with=", slice_columns},
    {"sort", "reverse= case_sensitive= attribute=", sort},
    {"sum", "attribute= start=", sum},
    {"unique", "case_sensitive= attribute=", unique},
};

}  // namespace

std::span<const Builtin> sequence_filters() { return kSequenceFilters; }

}  // namespace sluice::jinja
