// Python's operations on values.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/ast.h"
#include "chat/jinja/runtime.h"
#include "chat/jinja/value.h"

namespace sluice::jinja {

std::string type_name(const Value& value);  // Python's type(value).__name__

bool truthy(const Value& value);
bool equal(Runtime& rt, const Value& a, const Value& b);
bool less(Runtime& rt, const Value& a, const Value& b);  // a < b; Error for types without an order
bool compare(Runtime& rt, CompareOp op, const Value& a, const Value& b);
bool contains(Runtime& rt, const Value& container, const Value& item);
bool same_object(const Value& a, const Value& b);  // Python's `is`

// True if the value may be a key; tuples are hashable if their items are. Spends the fuel that hashing costs.
bool hashable(Runtime& rt, const Value& value);
void require_hashable(Runtime& rt, const Value& value);

Value binary(Runtime& rt, BinaryOp op, const Value& a, const Value& b);
Value negate(Runtime& rt, const Value& value);
Value plus(Runtime& rt, const Value& value);

// foo.bar and foo["bar"] with jinja2's fallbacks; undefined if there is no such name.
Value get_attribute(Runtime& rt, const Value& object, std::string_view name);
Value get_item(Runtime& rt, const Value& object, const Value& key);
// Only attributes; nullopt if there is none.
std::optional<Value> own_attribute(Runtime& rt, const Value& object, std::string_view name);
// Bounds are integers or None; null means None.
Value slice(Runtime& rt, const Value& object, const Value* start, const Value* stop, const Value* step);

std::optional<int64_t> length(const Value& value);  // nullopt: the value has no len()
int64_t length_or_fail(Runtime& rt, const Value& value);
bool is_iterable(const Value& value);

// Walks an iterable like Python's iter(). `next` throws an Error if the value is not iterable.
class Cursor {
 public:
  Cursor(Runtime& rt, Value source);
  bool next(Value& out);
  void reset() { source_ = Value(); }  // drops the iterable

 private:
  Runtime* rt_;
  Value source_;
  size_t at_ = 0;  // index; byte offset in a string
};
std::vector<Value> to_vector(Runtime& rt, const Value& iterable);
Dict to_dict(Runtime& rt, const Value& mapping_or_pairs);

// Append Python's str() and repr() to `out`.
void append_str(Runtime& rt, std::string& out, const Value& value);
void append_repr(Runtime& rt, std::string& out, const Value& value);
std::string to_str(Runtime& rt, const Value& value);
std::string float_repr(double value);
void append_quoted(Runtime& rt, std::string& out, std::string_view text);  // repr of a string

// HTML-escaped text of a value; safe strings stay as they are.
std::string escape(Runtime& rt, const Value& value);

// Number of code points in a string; computed once per value.
int64_t code_points(const Str& text);
// Byte offset of a code point. Amortized constant time for many lookups in one string.
size_t byte_offset(Runtime& rt, const Str& text, int64_t index);

// Throws the Error that an undefined value carries.
void require_defined(const Runtime& rt, const Value& value);
// Typed arguments; `what` names the argument in errors.
int64_t expect_int(Runtime& rt, const Value& value, std::string_view what);
std::string_view expect_text(Runtime& rt, const Value& value, std::string_view what);

// "%s, %d" % values
std::string format_percent(Runtime& rt, std::string_view format, const Value& values, bool safe);
// "{}, {name}".format(...)
std::string format_braces(Runtime& rt, std::string_view format, std::span<const Value> positional, const Dict& named,
                          bool safe);

std::string to_json(Runtime& rt, const Value& value, const Value* ensure_ascii, const Value* indent,
                    const Value* separators, const Value* sort_keys);
std::string strftime(Runtime& rt, std::string_view format);

}  // namespace sluice::jinja
