// Reads literals of Python, or of Gemma's notation, piece by piece, and writes them as JSON.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice {

// The notation.
struct LiteralNotation {
  std::string_view quote{};  // stands around strings, which have no escapes; empty: Python's strings
  char assign = '=';         // between the keys and values of the outermost members; within others it is ':'
  char close = ')';          // ends the outermost members
};

// Unknown syntax becomes a string, so that nothing is lost. A quote within a string that no comma or bracket
// follows belongs to the string: models forget to escape.
class LiteralReader {
 public:
  // Members behind their opening bracket; JSON begins with '{'.
  static LiteralReader members(LiteralNotation notation);
  // One value.
  explicit LiteralReader(LiteralNotation notation) : notation_(notation) {}

  // Reads on. Appends JSON and returns how much of `text` was used: all of it unless done.
  size_t read(std::string_view text, std::string& json);
  // The text has ended: appends what a cut-off word or quote has become.
  void finish(std::string& json);
  bool done() const { return phase_ == Phase::kDone; }
  // Whether something unknown was read.
  bool guessed() const { return guessed_; }

 private:
  enum class Phase { kKey, kValue, kAfterValue, kWord, kString, kEscape, kQuote, kMark, kDone };
  struct Frame {
    char close;   // ends it
    char assign;  // between key and value; 0: a list
    bool empty = true;
  };

  bool step(char c, std::string& json);  // false: c was not used and must be given again
  void begin_item(std::string& json);
  bool begin_value(char c, std::string& json);
  void end_value(std::string& json);
  void close_frame(std::string& json);
  void open(char close, char assign, std::string& json);
  void begin_string(char quote, std::string& json);
  void end_string(std::string& json);
  void add(std::string_view text, std::string& json);
  bool word(char c, std::string& json);
  void end_word(std::string& json);
  bool escape(char c, std::string& json);
  void end_escape(std::string& json);
  void add_unit(char32_t unit, std::string& json);
  bool quote(char c, std::string& json);
  bool mark(char c, std::string& json);
  bool ends_string(char c) const;

  LiteralNotation notation_;
  std::vector<Frame> frames_;
  Phase phase_ = Phase::kValue;
  bool in_key_ = false, guessed_ = false;
  std::string held_{};    // a word, an escape, or white space behind a quote
  std::string nested_{};  // closing brackets that a word needs before it may end
  char quote_ = 0;
  bool raw_ = false;        // backslashes are ordinary characters
  char32_t surrogate_ = 0;  // the first of a pair
};

}  // namespace sluice
