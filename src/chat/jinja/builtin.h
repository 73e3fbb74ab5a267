// Filters, tests, functions and methods: tables of name, signature and function.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace sluice::jinja {

class Runtime;

// The arguments of a call as written: f(1, x=2).
struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  const Value* find(std::string_view name) const {
    for (const auto& [key, value] : named) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

// Arguments bound to the parameters of a builtin's signature.
class Args {
 public:
  static constexpr size_t kMaxParameters = 6;

  // Null when the argument was left out.
  const Value* find(size_t i) const { return slots_[i]; }
  // Null also when it is None.
  const Value* given(size_t i) const { return slots_[i] && !slots_[i]->is(Kind::kNone) ? slots_[i] : nullptr; }
  const Value& operator[](size_t i) const { return *slots_[i]; }
  std::span<const Value> rest() const { return rest_; }                                // of "*"
  const std::vector<std::pair<std::string, Value>>& named() const { return *named_; }  // of "**"

 private:
  friend Args bind(Runtime&, const Builtin&, const CallArguments&);
  const Value* slots_[kMaxParameters] = {};
  std::span<const Value> rest_;
  const std::vector<std::pair<std::string, Value>>* named_ = nullptr;
};

struct Builtin {
  std::string_view name;
  // Parameters after the value itself, separated by spaces: "old new count=" (count is optional). "*" and "**" take
  // further positional and named arguments; a leading "/" forbids naming the parameters.
  std::string_view signature;
  // `self`: the filtered or tested value, or the one a method belongs to.
  Value (*call)(Runtime& rt, const Value& self, const Args& args);
};

// Throws Error when the arguments do not fit the signature. The result points into `arguments`.
Args bind(Runtime& rt, const Builtin& builtin, const CallArguments& arguments);

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);

// A method of the value's type; null when there is none of that name. Methods that would change the value, as Python
// has them, are found by is_forbidden.
const Builtin* find_method(const Value& value, std::string_view name);
bool is_forbidden(const Value& value, std::string_view name);

inline const Builtin* find_in(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// The parts of the tables, one per file.
std::span<const Builtin> text_filters();
std::span<const Builtin> layout_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> sequence_filters();
std::span<const Builtin> selection_filters();
std::span<const Builtin> text_methods();

}  // namespace sluice::jinja
