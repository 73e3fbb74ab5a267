// Finds the first end in free text, byte by byte, and keeps the text valid UTF-8 (Aho and Corasick 1975, "Efficient
// string matching").
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::grammar {

class EndFinder {
 public:
  // Ends are valid UTF-8; empty ones are never found.
  explicit EndFinder(std::vector<std::string> ends);

  struct Step {
    bool valid = false;  // false: the byte makes the text invalid UTF-8
    int end = -1;        // the end that the byte completes: the longest of those that end here
    uint32_t state = 0;  // without an end: the state after the byte
  };
  static constexpr uint32_t kStart = 0;
  Step after(uint32_t state, uint8_t byte) const;
  // Whether the text consists of whole characters.
  static bool whole(uint32_t state) { return state % kPhases == 0; }

 private:
  static constexpr uint32_t kPhases = 8;  // of a character in UTF-8; 0: between characters
  struct Node {
    std::array<uint32_t, 256> next{};
    int end = -1;
  };
  std::vector<Node> nodes_;
};

}  // namespace sluice::grammar
