// Paths as text.
#include "server/field_path.h"

#include "server/errors.h"

namespace sluice::server {

std::string FieldPath::str() const {
  std::string text = parent_ != nullptr ? parent_->str() : std::string();
  if (index_ != kNone) return text + "[" + std::to_string(index_) + "]";
  if (parent_ != nullptr) text += '.';
  return text + quotable(key_);
}

}  // namespace sluice::server
