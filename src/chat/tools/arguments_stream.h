// Gives the arguments of a call as they come.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

// Finds the last bracket of a JSON object that comes in pieces, whatever is between the brackets. An object that is not
// closed ends before a mark of its call: "</", "<|" or "<｜" outside of strings.
class ArgumentsStream {
 public:
  // How much of `text` belongs to the object, whose first bracket the first text begins with. A "<" at the end of
  // `text` may be left: it must be given again, with what follows.
  size_t push(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      if (in_string_) {
        in_string_ = escaped_ || c != '"';
        escaped_ = !escaped_ && c == '\\';
      } else if (c == '"') {
        in_string_ = true;
      } else if (c == '{' || c == '[') {
        ++open_;
      } else if (c == '<' && (i + 1 == text.size() || continues_mark(text[i + 1]))) {
        ended_ = i + 1 < text.size();
        return i;
      } else if ((c == '}' || c == ']') && --open_ == 0) {
        ended_ = true;
        return i + 1;
      }
    }
    return text.size();
  }
  bool ended() const { return ended_; }

 private:
  static bool continues_mark(char c) { return c == '/' || c == '|' || c == "｜"[0]; }

  int64_t open_ = 0;  // brackets
  bool in_string_ = false, escaped_ = false, ended_ = false;
};

}  // namespace sluice
