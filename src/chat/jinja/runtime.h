// The state of one rendering that operations on values need: memory, fuel, depth, the current line.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/builtin.h"
#include "chat/jinja/jinja.h"
#include "chat/jinja/value.h"

namespace sluice::jinja {

class Runtime {
 public:
  explicit Runtime(const RenderOptions& options) : now(options.now), limits_(options.limits) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  virtual ~Runtime() = default;

  // Throws Error(kInvalidRequest) with the template line that is being rendered.
  [[noreturn]] void fail(const std::string& message) const;

  void spend(uint64_t fuel = 1) {
    if (fuel > fuel_) fail_fuel();
    fuel_ -= fuel;
  }
  void spend_look(size_t bytes) { spend(bytes / 256); }  // for searching and comparing
  void spend_copy(size_t bytes) { spend(bytes / 64); }
  void spend_scan(size_t bytes) { spend(bytes / 8); }     // for work per character
  void spend_unicode(size_t bytes) { spend(bytes / 2); }  // for a table lookup per character
  void spend_value() { spend(2); }                        // for a new object
  uint64_t fuel_left() const { return fuel_; }

  // Guards recursion; one object per nested evaluation.
  class Depth {
   public:
    explicit Depth(Runtime& rt) : rt_(rt) {
      if (++rt_.depth_ > rt_.limits_.depth) rt_.fail_depth();
    }
    ~Depth() { --rt_.depth_; }
    Depth(const Depth&) = delete;

   private:
    Runtime& rt_;
  };

  Value string(std::string text, bool safe = false);
  Value string(std::string_view text, bool safe = false) { return string(copy(text), safe); }
  Value string(const char* text) { return string(std::string(text)); }
  Value list(std::vector<Value> items);
  Value tuple(std::vector<Value> items, bool group = false);
  Value dict(Dict dict);
  Value undefined(std::string message);
  Value iterator(std::function<bool(Value&)> advance);
  Value function(const Builtin& builtin, const Value& self);
  Value integer(__int128 value);  // Error if it needs more than 64 bits

  // Appends to a text under construction, within the memory limit.
  void append(std::string& out, std::string_view text) {
    if (out.size() + text.size() > out.capacity()) heap.expect(2 * (out.size() + text.size()));
    spend_copy(text.size());
    out += text;
  }
  std::string copy(std::string_view text) {
    heap.expect(text.size());
    spend_copy(text.size());
    return std::string(text);
  }

  // Calls a function, method, macro or loop; Error for other values.
  virtual Value call(const Value& callee, CallArguments arguments) = 0;
  // Attributes of kLoop values (loop.index); nullopt if there is no such attribute.
  virtual std::optional<Value> loop_attribute(const Value& loop, std::string_view name) = 0;

  Value apply(const Builtin& builtin, const Value& self, const CallArguments& arguments) {
    spend();
    return builtin.call(*this, self, bind(*this, builtin, arguments));
  }

  Heap heap;
  const std::chrono::system_clock::time_point now;
  uint32_t line = 1;

 protected:
  const Limits& limits() const { return limits_; }
  // Starts enforcing the limits of memory and fuel. Variables are converted before this call.
  void begin() {
    heap.limit_growth(limits_.memory_bytes);
    fuel_ = limits_.fuel;
  }

 private:
  [[noreturn]] void fail_fuel() const;
  [[noreturn]] void fail_depth() const;

  const Limits limits_;
  uint64_t fuel_ = UINT64_MAX;
  int depth_ = 0;
};

}  // namespace sluice::jinja
