// Python pickles read as data. A pickle is a program for a small stack machine; this reader runs the part of it that
// builds values, and never calls anything: a call that a pickle asks for becomes a value that names it.
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
    kDict,        // items: key, value, key, value, ... in the order they were set; a key may come twice
    kGlobal,      // text: "module.name"
    kCall,        // items: the global, the tuple of its arguments
    kPersistent,  // items: the id of an object that lies outside of the pickle
  };
  Kind kind = Kind::kNone;
  bool ordered = false;  // a kDict that was a collections.OrderedDict
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
  // `bytes` and `globals` must outlive it; `name` stands for the file in messages. Only the globals listed (and
  // collections.OrderedDict, whose call makes a dictionary) may be named at all. At most 32 MiB, 2 million values.
  // Throws Error(kCorruptFile) that names the opcode and its byte, for whatever is not on the list of opcodes too.
  Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> globals, const std::string& name);

  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace sluice
