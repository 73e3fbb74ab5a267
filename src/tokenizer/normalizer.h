// The "normalizer" of tokenizer.json: rewrites text before it is split.
#pragma once

#include <memory>
#include <string>

#include "tokenizer/files/json_field.h"

namespace sluice::tokenizer {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Rewrites `text`, which is valid UTF-8 before and after.
  virtual void apply(std::string& text) const = 0;
};

// Throws Error(kUnsupportedModel) that names an unknown type.
std::unique_ptr<Normalizer> load_normalizer(const Field& field);

}  // namespace sluice::tokenizer
