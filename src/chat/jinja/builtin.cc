// Binds arguments, looks up filters and defines the global functions.
#include "chat/jinja/builtin.h"

#include <fmt/core.h>

#include <algorithm>

#include "chat/jinja/ops.h"
#include "sluice/error.h"

namespace sluice::jinja {
namespace {

// MAX_RANGE of jinja2's sandbox.
constexpr int64_t kMaxRange = 100'000;

Value make_range(Runtime& rt, const Value&, const Args& args) {
  const int64_t first = expect_int(rt, args[0], "the argument of range");
  const int64_t start = args.find(1) ? first : 0;
  const int64_t stop = args.find(1) ? expect_int(rt, args[1], "the argument of range") : first;
  const int64_t step = args.find(2) ? expect_int(rt, args[2], "the argument of range") : 1;
  if (step == 0) rt.fail("range() arg 3 must not be zero");
  const auto range = rt.heap.make<Range>(0, start, stop, step);
  if (range->length > kMaxRange) rt.fail(fmt::format("a range is longer than {} items", kMaxRange));
  return Value(Kind::kRange, range);
}

Dict dict_of(Runtime& rt, const Args& args) {
  Dict out;
  if (const Value* source = args.find(0)) out = to_dict(rt, *source);
  for (const auto& [name, value] : args.named()) out.set(rt.string(name), value);
  return out;
}

Value make_dict(Runtime& rt, const Value&, const Args& args) { return rt.dict(dict_of(rt, args)); }

Value make_namespace(Runtime& rt, const Value&, const Args& args) {
  Dict attributes = dict_of(rt, args);
  const size_t bytes = attributes.size() * sizeof(Dict::Item);
  return Value(Kind::kNamespace, rt.heap.make<Namespace>(bytes, std::move(attributes)));
}

Value make_cycler(Runtime& rt, const Value&, const Args& args) {
  if (args.rest().empty()) rt.fail("cycler: at least one item has to be provided");
  std::vector<Value> items(args.rest().begin(), args.rest().end());
  const size_t bytes = items.size() * sizeof(Value);
  return Value(Kind::kCycler, rt.heap.make<Cycler>(bytes, std::move(items)));
}

Value make_joiner(Runtime& rt, const Value&, const Args& args) {
  return Value(Kind::kJoiner, rt.heap.make<Joiner>(0, args.find(0) ? args[0] : rt.string(", ")));
}

Value refuse_lipsum(Runtime& rt, const Value&, const Args&) { rt.fail("lipsum is not supported"); }

Value raise_exception(Runtime& rt, const Value&, const Args& args) {
  throw Error(ErrorCode::kInvalidRequest, to_str(rt, args[0]), "messages", "");
}

Value strftime_now(Runtime& rt, const Value&, const Args& args) {
  return rt.string(strftime(rt, expect_text(rt, args[0], "the format of strftime_now")));
}

constexpr Builtin kGlobals[] = {
    {"range", "/ start stop= step=", make_range},
    {"dict", "/ mapping= **", make_dict},
    {"namespace", "/ mapping= **", make_namespace},
    {"cycler", "*", make_cycler},
    {"joiner", "sep=", make_joiner},
    {"lipsum", "* **", refuse_lipsum},
    {"raise_exception", "message", raise_exception},
    {"strftime_now", "format", strftime_now},
};

}  // namespace

const Builtin* find_global(std::string_view name) { return find_in(kGlobals, name); }

const Builtin* find_filter(std::string_view name) {
  for (const auto table :
       {text_filters(), layout_filters(), number_filters(), sequence_filters(), selection_filters()}) {
    if (const Builtin* filter = find_in(table, name)) return filter;
  }
  return nullptr;
}

Args bind(Runtime& rt, const Builtin& builtin, const CallArguments& arguments) {
  Args out;
  out.named_ = &arguments.named;
  size_t parameters = 0;
  size_t named_used = 0;
  bool takes_rest = false, takes_named = false, positional_only = false;
  for (std::string_view signature = builtin.signature; !signature.empty();) {
    const size_t end = std::min(signature.find(' '), signature.size());
    std::string_view name = signature.substr(0, end);
    signature.remove_prefix(std::min(end + 1, signature.size()));
    if (name == "/") {
      positional_only = true;
    } else if (name == "*") {
      takes_rest = true;
    } else if (name == "**") {
      takes_named = true;
    } else {
      const bool optional = name.ends_with('=');
      if (optional) name.remove_suffix(1);
      const Value*& slot = out.slots_[parameters];
      if (parameters < arguments.positional.size()) {
        slot = &arguments.positional[parameters];
      } else if (!positional_only && (slot = arguments.find(name))) {
        ++named_used;
      } else if (!optional) {
        rt.fail(fmt::format("{}() is missing its argument '{}'", builtin.name, name));
      }
      ++parameters;
    }
  }
  if (arguments.positional.size() > parameters) {
    if (!takes_rest) {
      rt.fail(fmt::format("{}() takes at most {} arguments, {} given", builtin.name, parameters,
                          arguments.positional.size()));
    }
    out.rest_ = std::span(arguments.positional).subspan(parameters);
  }
  if (!takes_named && named_used < arguments.named.size()) {
    rt.fail(fmt::format("{}() got an unexpected keyword argument", builtin.name));
  }
  return out;
}

}  // namespace sluice::jinja
