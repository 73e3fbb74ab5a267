// Filters that apply another filter or a test to every item: map, select, reject and their attribute forms.
#include <fmt/core.h>

#include "chat/jinja/attribute.h"
#include "chat/jinja/ops.h"

namespace sluice::jinja {
namespace {

// Returns the arguments after the first `skip` positional ones.
CallArguments rest_of(const Args& args, size_t skip) {
  CallArguments out;
  const auto rest = args.rest().subspan(skip);
  out.positional.assign(rest.begin(), rest.end());
  out.named = args.named();
  return out;
}

Value map_attribute(Runtime& rt, const Value& value, const Args& args) {
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [name, item] : args.named()) {
    if (name == "attribute") {
      attribute = &item;
    } else if (name == "default") {
      fallback = &item;
    } else {
      rt.fail(fmt::format("map: unexpected keyword argument '{}'", name));
    }
  }
  if (!attribute) rt.fail("map requires a filter argument");
  return rt.iterator(
      [&rt, cursor = Cursor(rt, value), path = AttributePath(rt, attribute, fallback)](Value& out) mutable {
        if (!cursor.next(out)) return false;
        out = path(rt, std::move(out));
        return true;
      });
}

Value map(Runtime& rt, const Value& value, const Args& args) {
  if (!truthy(value)) return rt.iterator([](Value&) { return false; });
  if (args.rest().empty()) return map_attribute(rt, value, args);
  const std::string_view name = expect_text(rt, args.rest()[0], "the name of a filter");
  const Builtin* filter = find_filter(name);
  if (!filter) rt.fail(fmt::format("no filter named '{}'", name));
  return rt.iterator([&rt, filter, cursor = Cursor(rt, value), arguments = rest_of(args, 1)](Value& out) mutable {
    Value item;
    if (!cursor.next(item)) return false;
    out = rt.apply(*filter, item, arguments);
    return true;
  });
}

template <bool kWanted, bool kAttribute>
Value select(Runtime& rt, const Value& value, const Args& args) {
  if (!truthy(value)) return rt.iterator([](Value&) { return false; });
  size_t used = 0;
  const Value* attribute = nullptr;
  if (kAttribute) {
    if (args.rest().empty()) rt.fail("missing parameter for attribute name");
    attribute = &args.rest()[used++];
  }
  const Builtin* test = nullptr;
  if (used < args.rest().size()) {
    const std::string_view name = expect_text(rt, args.rest()[used++], "the name of a test");
    test = find_test(name);
    if (!test) rt.fail(fmt::format("no test named '{}'", name));
  }
  return rt.iterator([&rt, test, cursor = Cursor(rt, value), path = AttributePath(rt, attribute),
                      arguments = rest_of(args, used)](Value& out) mutable {
    while (cursor.next(out)) {
      const Value subject = path(rt, out);
      if (truthy(test ? rt.apply(*test, subject, arguments) : subject) == kWanted) return true;
    }
    return false;
  });
}

constexpr Builtin kSelectFilters[] = {
    {"map", "* **", map},
    {"select", "* **", select<true, false>},
    {"reject", "* **", select<false, false>},
    {"selectattr", "* **", select<true, true>},
    {"rejectattr", "* **", select<false, true>},
};

}  // namespace

std::span<const Builtin> selection_filters() { return kSelectFilters; }

}  // namespace sluice::jinja
