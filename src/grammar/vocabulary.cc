#include "grammar/vocabulary.h"

#include <algorithm>
#include <climits>

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

TokenGroup group_of(std::span<const std::string> tokens, int least, int most, size_t words) {
  std::vector<Trie::Token> plain, others;
  std::vector<std::pair<int, TokenId>> by_characters;
  Mask all_plain(words);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto bytes = static_cast<int>(tokens[i].size());
    if (bytes == 0 || bytes < least || bytes > most) continue;
    const auto id = static_cast<TokenId>(i);
    const int characters = plain_characters(tokens[i]);
    (characters >= 0 ? plain : others).emplace_back(tokens[i], id);
    if (characters < 0) continue;
    by_characters.emplace_back(characters, id);
    allow(all_plain, id);
  }
  std::sort(by_characters.begin(), by_characters.end());
  TokenGroup group{.plain = Trie(std::move(plain)),
                   .others = Trie(std::move(others)),
                   .all_plain = std::move(all_plain),
                   .by_characters = {},
                   .ends = {}};
  group.longest = static_cast<int>(std::max(group.plain.depth(), group.others.depth()));
  for (const auto& [characters, id] : by_characters) {
    group.ends.resize(static_cast<size_t>(characters) + 1, group.by_characters.size());
    group.by_characters.push_back(id);
    group.ends.back() = group.by_characters.size();
  }
  return group;
}

}  // namespace

Vocabulary::Vocabulary(std::span<const std::string> tokens, Options options) {
  CHECK(static_cast<size_t>(options.width) >= tokens.size(), "a mask of {} tokens for a vocabulary of {}",
        options.width, tokens.size());
  const size_t words = (static_cast<size_t>(options.width) + 31) / 32;
  Impl impl{.tokens = {tokens.begin(), tokens.end()},
            .options = std::move(options),
            .groups = {group_of(tokens, 1, Impl::kShort, words), group_of(tokens, Impl::kShort + 1, INT_MAX, words)},
            .all_plain = Mask(words)};
  for (const TokenGroup& group : impl.groups) {
    for (size_t w = 0; w < words; ++w) impl.all_plain[w] |= group.all_plain[w];
  }
  impl_ = std::make_unique<const Impl>(std::move(impl));
}

Vocabulary::~Vocabulary() = default;

int Vocabulary::width() const { return impl_->options.width; }

}  // namespace sluice::grammar
