// Finds marks in a text that comes in pieces.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

class TextMarks {
 public:
  static constexpr std::string_view kSpace = " \t\r\n";
  static std::string trimmed(std::string_view text);

  // The marks, without the white space around them.
  explicit TextMarks(const std::vector<std::string>& marks);
  explicit TextMarks(const std::string& mark) : TextMarks(std::vector<std::string>{mark}) {}
  bool empty() const { return marks_.empty(); }
  bool has(std::string_view mark) const;

  // The mark that `text` begins with: its size, kNone, or kPartial if text to come decides. `last`: no text comes.
  using Match = size_t;
  static constexpr Match kNone = 0, kPartial = std::string::npos;
  Match match(std::string_view text, bool last) const;

  // The first mark at or after `from`. Its size is 0 if there is none; then `at` is where one may begin that text to
  // come completes, or the end of the text.
  struct Found {
    size_t at, size;
  };
  Found find(std::string_view text, size_t from, bool last) const;

 private:
  std::vector<std::string> marks_;  // the longest first
};

}  // namespace sluice
