// Converts between bytes and GPT-2's byte-level alphabet.
#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  struct Character {
    char bytes[2];
    uint8_t size;
  };
  std::array<Character, 256> characters{};
  std::array<int16_t, 0x144> byte_of{};  // indexed by code point; -1: not in the alphabet

  constexpr Alphabet() {
    for (auto& byte : byte_of) byte = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const int c = stands_for_itself(byte) ? byte : next++;
      byte_of[c] = static_cast<int16_t>(byte);
      if (c < 0x80) {
        characters[byte] = {{static_cast<char>(c), 0}, 1};
      } else {
        characters[byte] = {{static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))}, 2};
      }
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

std::string_view byte_level_character(unsigned char byte) {
  const auto& c = kAlphabet.characters[byte];
  return {c.bytes, c.size};
}

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char c : bytes) out += byte_level_character(static_cast<unsigned char>(c));
}

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint c = code_point_at(spelling, at);
    if (c.value >= kAlphabet.byte_of.size() || kAlphabet.byte_of[c.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte_of[c.value]));
    at += c.length;
  }
  return bytes;
}

}  // namespace sluice::tokenizer
