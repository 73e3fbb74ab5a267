// Reads Python pickles as data. A pickle is a program for a small stack machine. This reader runs only the opcodes that
// build values, and never calls anything: a call in the pickle becomes a value that describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,        // integer
    kInt,         // integer
    kReal,        // real
    kText,        // text, UTF-8 as Python wrote it
    kTuple,       // items
    kList,        // items
    kDict,        // items: key, value, key, value, ... in insertion order; keys may repeat
    kGlobal,      // text: "module.name"
    kCall,        // items: the global, and the tuple of its arguments
    kPersistent,  // items: the ID of an object outside the pickle
  };
  Kind kind = Kind::kNone;
  bool ordered = false;  // whether a kDict was a collections.OrderedDict
  int64_t integer = 0;
  double real = 0;
  std::string_view text;
  std::vector<const PickleValue*> items;

  bool is(Kind k) const { return kind == k; }
  std::string_view kind_name() const;  // "a tuple"
};

// A pickle of protocol 2 to 5. Values may be shared and may contain themselves.
class Pickle {
 public:
  // `bytes` and `globals` must outlive the object; `name` is the file name in error messages. A pickle may name only
  // the listed globals and collections.OrderedDict, whose call creates a dictionary. At most 32 MiB and 2 million
  // values. Throws Error(kCorruptFile) that names the opcode and its byte; opcodes that are not allowed throw it, too.
  Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> globals, const std::string& name);

  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace sluice
