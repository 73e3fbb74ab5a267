// Reads SentencePiece's character maps. The blob has a u32 with the size of the trie in bytes, and the trie as u32
// units (little-endian, darts-clone's layout). Then come the replacements, each terminated by NUL. A trie value is the
// offset of a replacement.
#include "tokenizer/precompiled_charsmap.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/base64.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

class PrecompiledCharsmap final : public Normalizer {
 public:
  explicit PrecompiledCharsmap(const Field& field) {
    const auto blob = decode_base64(field.string());
    if (!blob) field.corrupt("expected a charsmap in base64");
    try {
      table_.emplace(*blob);
    } catch (const std::invalid_argument& e) {
      field.corrupt(e.what());
    }
  }

  // As in Hugging Face's library, a grapheme cluster below six bytes is looked up as a whole; otherwise its characters
  // are.
  void apply(std::string& text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view cluster = rest.substr(0, first_grapheme(rest));
      rest.remove_prefix(cluster.size());
      if (cluster.size() < 6) {
        if (const auto match = table_->shortest(cluster)) {
          out += match->replacement;
          continue;
        }
      }
      for (size_t at = 0; at < cluster.size();) {
        const std::string_view character = cluster.substr(at, code_point_at(cluster, at).length);
        const auto match = table_->shortest(character);
        out += match ? match->replacement : character;
        at += character.size();
      }
    }
    text = std::move(out);
  }

 private:
  std::optional<Charsmap> table_;
};

uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

}  // namespace

Charsmap::Charsmap(std::string_view blob) {
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof trie_bytes) throw std::invalid_argument("charsmap has no trie");
  std::memcpy(&trie_bytes, blob.data(), sizeof trie_bytes);
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob.size() - sizeof trie_bytes) {
    throw std::invalid_argument("charsmap has a trie beyond its end");
  }
  units_.resize(trie_bytes / 4);
  std::memcpy(units_.data(), blob.data() + sizeof trie_bytes, trie_bytes);
  replacements_ = blob.substr(sizeof trie_bytes + trie_bytes);
  if (valid_utf8_prefix(replacements_) != replacements_.size()) {
    throw std::invalid_argument("charsmap has invalid UTF-8");
  }
}

std::optional<Charsmap::Match> Charsmap::find(std::string_view text, bool longest) const {
  std::optional<Match> found;
  size_t at = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size()) break;
    const uint32_t unit = units_[at];
    if ((unit & (1u << 31 | 0xFFu)) != byte) break;
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) break;
    const size_t begin = units_[at] & 0x7FFFFFFFu;
    if (begin > replacements_.size()) break;
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    const auto replacement = std::string_view(replacements_).substr(begin, end - begin);
    // An offset into the middle of a character can only come from a corrupt table.
    if (valid_utf8_prefix(replacement) != replacement.size()) break;
    found = {i + 1, replacement};
    if (!longest) break;
  }
  return found;
}

std::unique_ptr<Normalizer> load_precompiled_charsmap(const Field& field) {
  return std::make_unique<PrecompiledCharsmap>(field.at("precompiled_charsmap"));
}

}  // namespace sluice::tokenizer
