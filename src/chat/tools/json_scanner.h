// Finds the end of a JSON value in a text that comes in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice {

// Follows the grammar of JSON byte by byte, in constant time each, so that invalid JSON is detected at its first wrong
// byte. It does not look at digits, escapes, characters or equal keys.
class JsonScanner {
 public:
  enum class Result {
    kMore,    // the byte belongs to the value, which goes on
    kDone,    // the value ends with the byte
    kBefore,  // the value ended before the byte, which does not belong to it: a number
    kBad,     // no JSON
  };
  Result push(char c);

 private:
  enum class State : uint8_t { kValue, kFirst, kKey, kColon, kNext, kString, kKeyText, kNumber, kLiteral };
  Result value(char c);
  Result structure(char c);
  Result open(char c);
  Result close(char c);
  Result end();

  State state_ = State::kValue;
  bool escaped_ = false;
  std::string_view literal_{};  // the rest of true, false or null
  std::string open_{};          // brackets that are not closed yet
};

}  // namespace sluice
