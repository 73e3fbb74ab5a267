#include "grammar/vocabulary.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/end_finder.h"

namespace sluice::grammar {
namespace {

// The number of characters of a plain token; -1: not plain.
int plain_characters(std::string_view bytes) {
  static const EndFinder utf8({});
  uint32_t state = EndFinder::kStart;
  int characters = 0;
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte < 0x20 || byte == '"' || byte == '\\') return -1;
    if (EndFinder::whole(state)) ++characters;
    const EndFinder::Step step = utf8.after(state, byte);
    if (!step.valid) return -1;
    state = step.state;
  }
  return EndFinder::whole(state) ? characters : -1;
}

std::vector<Trie::Token> select(std::span<const std::string> tokens, bool with_plain, bool with_others) {
  std::vector<Trie::Token> out;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || !(plain_characters(tokens[id]) >= 0 ? with_plain : with_others)) continue;
    out.emplace_back(tokens[id], static_cast<TokenId>(id));
  }
  return out;
}

std::vector<Mask> plain_masks(std::span<const std::string> tokens, size_t words) {
  std::vector<Mask> masks(Vocabulary::Impl::kMostCounted + 2, Mask(words));
  for (size_t id = 0; id < tokens.size(); ++id) {
    const int characters = tokens[id].empty() ? -1 : plain_characters(tokens[id]);
    if (characters < 0) continue;
    for (size_t i = std::min<size_t>(characters, masks.size() - 1); i < masks.size(); ++i) {
      allow(masks[i], static_cast<TokenId>(id));
    }
  }
  return masks;
}

std::array<Mask, 256> masks_by_first(std::span<const std::string> tokens, size_t words) {
  std::array<Mask, 256> masks;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty() || plain_characters(tokens[id]) < 0) continue;
    Mask& mask = masks[static_cast<uint8_t>(tokens[id][0])];
    mask.resize(words);
    allow(mask, static_cast<TokenId>(id));
  }
  return masks;
}

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> tokens, Options options) {
  CHECK(static_cast<size_t>(options.width) >= tokens.size(), "a mask of {} tokens for a vocabulary of {}",
        options.width, tokens.size());
  const size_t words = (static_cast<size_t>(options.width) + 31) / 32;
  impl_ = std::make_unique<const Impl>(Impl{.tokens = {tokens.begin(), tokens.end()},
                                            .options = std::move(options),
                                            .all = Trie(select(tokens, true, true)),
                                            .others = Trie(select(tokens, false, true)),
                                            .letters = Trie(select(tokens, true, false)),
                                            .by_first = masks_by_first(tokens, words),
                                            .plain = plain_masks(tokens, words)});
}

Vocabulary::~Vocabulary() = default;

int Vocabulary::width() const { return impl_->options.width; }

}  // namespace sluice::grammar
