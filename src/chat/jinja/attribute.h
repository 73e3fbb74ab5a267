// The `attribute` argument of filters: "address.city" or "items.0".
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "chat/jinja/runtime.h"
#include "chat/jinja/value.h"

namespace sluice::jinja {

class AttributePath {
 public:
  // `attribute` is a path, an index, or null for the item itself. `fallback` replaces undefined values on the path.
  AttributePath(Runtime& rt, const Value* attribute, const Value* fallback = nullptr);
  Value operator()(Runtime& rt, Value item) const;

 private:
  std::vector<Value> parts_;
  std::optional<Value> fallback_;
};

// The key that sort and similar filters compare: strings are lowercased unless `case_sensitive`.
Value fold_case(Runtime& rt, Value value, bool case_sensitive);

}  // namespace sluice::jinja
