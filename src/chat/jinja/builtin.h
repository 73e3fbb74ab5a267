// Filters, tests, functions and methods. Each table lists name, signature and function.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace sluice::jinja {

class Runtime;

// The arguments of a call as written, e.g. f(1, x=2).
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

  // Null if the argument was left out.
  const Value* find(size_t i) const { return slots_[i]; }
  // Null if the argument was left out or is None.
  const Value* given(size_t i) const { return slots_[i] && !slots_[i]->is(Kind::kNone) ? slots_[i] : nullptr; }
  const Value& operator[](size_t i) const { return *slots_[i]; }
  std::span<const Value> rest() const { return rest_; }                                // collected by "*"
  const std::vector<std::pair<std::string, Value>>& named() const { return *named_; }  // collected by "**"

 private:
  friend Args bind(Runtime&, const Builtin&, const CallArguments&);
  const Value* slots_[kMaxParameters] = {};
  std::span<const Value> rest_;
  const std::vector<std::pair<std::string, Value>>* named_ = nullptr;
};

struct Builtin {
  std::string_view name;
  // Parameters after the value itself, separated by spaces: "old new count=" ("=" marks an optional one). "*" and "**"
  // take further positional and named arguments. A leading "/" forbids naming the parameters.
  std::string_view signature;
  // `self` is the filtered or tested value, or the value that a method belongs to.
  Value (*call)(Runtime& rt, const Value& self, const Args& args);
};

// Throws Error if the arguments do not fit the signature. The result points into `arguments`.
Args bind(Runtime& rt, const Builtin& builtin, const CallArguments& arguments);

const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);

// Returns the method of the value's type; null if it has no such method. is_forbidden finds methods that Python
// has but that would change the value.
const Builtin* find_method(const Value& value, std::string_view name);
bool is_forbidden(const Value& value, std::string_view name);

inline const Builtin* find_in(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// The parts of the tables; each file defines one.
std::span<const Builtin> text_filters();
std::span<const Builtin> layout_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> sequence_filters();
std::span<const Builtin> selection_filters();
std::span<const Builtin> text_methods();

}  // namespace sluice::jinja
