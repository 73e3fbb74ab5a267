// Sets of characters.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::grammar {

class CharSet {
 public:
  static constexpr char32_t kLast = 0x10ffff;
  using Range = std::pair<char32_t, char32_t>;  // both ends included

  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges) : ranges_(ranges) { normalize(); }

  void add(char32_t first, char32_t last) {
    ranges_.emplace_back(first, last);
    normalized_ = false;
  }
  void add(const CharSet& other);
  CharSet complement() const;
  bool contains(char32_t c) const;
  // With the upper- and lower-case forms of its characters (the simple mappings of Unicode).
  CharSet with_cases() const;

  const std::vector<Range>& ranges() const;  // sorted, apart from each other

 private:
  void normalize() const;

  mutable std::vector<Range> ranges_;
  mutable bool normalized_ = true;
};

// The characters of a general category by its short or long name ("Lu", "Uppercase_Letter", "L"), or of "Any", "ASCII",
// "Alphabetic" and "White_Space". None if the property is not known.
std::optional<CharSet> unicode_property(std::string_view name);

}  // namespace sluice::grammar
