// Methods of lists, dictionaries, ranges, loops and cyclers.
#include <fmt/core.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/ops.h"

namespace sluice::jinja {
namespace {

template <View::Part kPart>
Value view(Runtime& rt, const Value& self, const Args&) {
  return Value(Kind::kView, rt.heap.make<View>(0, self, kPart));
}

Value dict_get(Runtime& rt, const Value& self, const Args& args) {
  require_hashable(rt, args[0]);
  if (const Value* value = self.dict().find(args[0])) return *value;
  return args.find(1) ? args[1] : Value();
}

// lists and dictionaries are immutable, so no copy is needed
Value copy(Runtime&, const Value& self, const Args&) { return self; }

Value index_of(Runtime& rt, const Value& self, const Args& args) {
  const std::vector<Value> items = to_vector(rt, self);
  const auto n = static_cast<int64_t>(items.size());
  const auto bound = [&](size_t i, int64_t fallback) {
    const int64_t at = args.find(i) ? expect_int(rt, args[i], "the bound of index()") : fallback;
    return std::clamp<int64_t>(at < 0 ? at + n : at, 0, n);
  };
  for (int64_t i = bound(1, 0), end = bound(2, n); i < end; ++i) {
    if (equal(rt, items[static_cast<size_t>(i)], args[0])) return Value::integer(i);
  }
  rt.fail(fmt::format("the value is not in the {}", type_name(self)));
}

Value count_of(Runtime& rt, const Value& self, const Args& args) {
  int64_t n = 0;
  Cursor cursor(rt, self);
  for (Value item; cursor.next(item);) n += equal(rt, item, args[0]);
  return Value::integer(n);
}

Value cycler_next(Runtime&, const Value& self, const Args&) {
  auto& cycler = self.as<Cycler>();
  const size_t at = cycler.position;
  cycler.position = (at + 1) % cycler.items.size();
  return cycler.items[at];
}

Value cycler_reset(Runtime&, const Value& self, const Args&) {
  self.as<Cycler>().position = 0;
  return Value();
}

Value loop_cycle(Runtime& rt, const Value& self, const Args& args) {
  if (args.rest().empty()) rt.fail("no items for cycling given");
  return args.rest()[static_cast<size_t>(self.as<Loop>().index0) % args.rest().size()];
}

Value loop_changed(Runtime& rt, const Value& self, const Args& args) {
  auto& loop = self.as<Loop>();
  const Value now = rt.tuple({args.rest().begin(), args.rest().end()});
  const bool changed = !loop.changed || !equal(rt, *loop.changed, now);
  if (changed) loop.changed = now;
  return Value::boolean(changed);
}

constexpr Builtin kDictMethods[] = {
    {"get", "/ key default=", dict_get},
    {"items", "", view<View::kItems>},
    {"keys", "", view<View::kKeys>},
    {"values", "", view<View::kValues>},
    {"copy", "", copy},
};
constexpr Builtin kListMethods[] = {
    {"index", "/ value start= stop=", index_of}, {"count", "/ value", count_of}, {"copy", "", copy}};
constexpr Builtin kTupleMethods[] = {{"index", "/ value start= stop=", index_of}, {"count", "/ value", count_of}};
constexpr Builtin kCyclerMethods[] = {{"next", "", cycler_next}, {"reset", "", cycler_reset}};
constexpr Builtin kLoopMethods[] = {{"cycle", "*", loop_cycle}, {"changed", "*", loop_changed}};

// Methods that jinja2's sandbox forbids because they would change the value.
constexpr std::string_view kListMutators[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

}  // namespace

const Builtin* find_method(const Value& value, std::string_view name) {
  switch (value.kind()) {
    case Kind::kString:
      return find_in(text_methods(), name);
    case Kind::kDict:
      return find_in(kDictMethods, name);
    case Kind::kList:
      return find_in(kListMethods, name);
    case Kind::kTuple:
    case Kind::kRange:
      return find_in(kTupleMethods, name);
    case Kind::kCycler:
      return find_in(kCyclerMethods, name);
    case Kind::kLoop:
      return find_in(kLoopMethods, name);
    default:
      return nullptr;
  }
}

bool is_forbidden(const Value& value, std::string_view name) {
  const auto listed = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (value.is(Kind::kList) && listed(kListMutators)) || (value.is(Kind::kDict) && listed(kDictMutators));
}

}  // namespace sluice::jinja
