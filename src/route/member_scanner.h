// Steps over the members of a JSON object without building values. Strings, which are most of a large body, are
// searched for their end only.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace sluice::route {

class MemberScanner {
 public:
  explicit MemberScanner(std::string_view json);

  // The next member, name without quotes and value as written. nullopt at the end and where the text is malformed.
  std::optional<std::pair<std::string_view, std::string_view>> next();
  // After the last member: nothing but the end of the object follows.
  bool at_end();

 private:
  bool take(char c);
  void skip_space();
  bool skip_string();
  bool skip_value();

  const std::string_view text_;
  size_t at_ = 0;
  bool open_ = false;
};

}  // namespace sluice::route
