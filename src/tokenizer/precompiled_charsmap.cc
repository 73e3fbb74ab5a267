// See precompiled_charsmap.h. The blob: u32 size of the trie in bytes, the trie as u32 units (little-endian,
// darts-clone's layout), then the replacements, each ended by NUL; a trie value is the offset of a replacement.
#include "tokenizer/precompiled_charsmap.h"

#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

std::optional<std::string> decode_base64(std::string_view text) {
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    uint32_t value;
    if (c >= 'A' && c <= 'Z')
      value = c - 'A';
    else if (c >= 'a' && c <= 'z')
      value = c - 'a' + 26;
    else if (c >= '0' && c <= '9')
      value = c - '0' + 52;
    else if (c == '+')
      value = 62;
    else if (c == '/')
      value = 63;
    else
      return std::nullopt;
    bits = bits << 6 | value;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count));
    }
  }
  return out;
}

class PrecompiledCharsmap final : public Normalizer {
 public:
  explicit PrecompiledCharsmap(const Field& field) {
    const auto blob = decode_base64(field.string());
    uint32_t trie_bytes = 0;
    if (!blob || blob->size() < sizeof trie_bytes) field.corrupt("not a base64 charsmap");
    std::memcpy(&trie_bytes, blob->data(), sizeof trie_bytes);
    if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob->size() - sizeof trie_bytes) {
      field.corrupt("charsmap with a trie beyond its end");
    }
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), blob->data() + sizeof trie_bytes, trie_bytes);
    replacements_ = blob->substr(sizeof trie_bytes + trie_bytes);
    if (valid_utf8_prefix(replacements_) != replacements_.size()) field.corrupt("charsmap with invalid UTF-8");
  }

  // As Hugging Face does it: a grapheme cluster below six bytes is looked up whole, otherwise its characters are.
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view cluster = rest.substr(0, first_grapheme(rest));
      rest.remove_prefix(cluster.size());
      if (cluster.size() < 6) {
        if (const auto replacement = find(cluster)) {
          out += *replacement;
          continue;
        }
      }
      for (size_t at = 0; at < cluster.size();) {
        const std::string_view character = cluster.substr(at, code_point_at(cluster, at).length);
        out += find(character).value_or(character);
        at += character.size();
      }
    }
    text = std::move(out);
  }

 private:
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  // The replacement of the shortest key that is a prefix of `key`.
  std::optional<std::string_view> find(std::string_view key) const {
    size_t at = offset(units_[0]);
    for (const char c : key) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (byte == 0 || at >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[at];
      if ((unit & (1u << 31 | 0xFFu)) != byte) return std::nullopt;
      at ^= offset(unit);
      if (unit >> 8 & 1) {
        if (at >= units_.size()) return std::nullopt;
        const size_t begin = units_[at] & 0x7FFFFFFFu;
        if (begin > replacements_.size()) return std::nullopt;
        const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
        const auto found = std::string_view(replacements_).substr(begin, end - begin);
        // An offset into the middle of a character can only come from a broken table.
        if (valid_utf8_prefix(found) != found.size()) return std::nullopt;
        return found;
      }
    }
    return std::nullopt;
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace

std::unique_ptr<Normalizer> load_precompiled_charsmap(const Field& field) {
  return std::make_unique<PrecompiledCharsmap>(field.at("precompiled_charsmap"));
}

}  // namespace sluice::tokenizer
