// Which tokens last. A tokenizer that merges or that finds the best path has this property: where the tokens of a long
// text have a boundary, those before it are the tokens of the text up to there. What follows a text can put a token
// across its end only if the rest from some place q is a proper prefix of a token. The tokens before q are then those
// of the text up to q. So those that come out the same for every such q, and for the end, stay whatever follows.
#include "engine/forced_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace sluice {
namespace {

constexpr size_t kContextTokens = 8, kContextBytes = 64;
constexpr size_t kMostEncodings = 16;  // of one text; few texts need more than four

bool is_utf8(std::string_view text) { return tokenizer::valid_utf8_prefix(text) == text.size(); }

}  // namespace

ForcedTokens::ForcedTokens(const Tokenizer& tokenizer, std::vector<std::string> tokens)
    : tokenizer_(tokenizer), tokens_(std::move(tokens)) {
  for (const std::string& token : tokens_) {
    if (token.empty()) continue;
    sorted_.push_back(token);
    longest_ = std::max(longest_, token.size());
  }
  std::ranges::sort(sorted_);
}

int ForcedTokens::append(std::span<const TokenId> before, std::string_view text, bool ends, int most,
                         std::vector<TokenId>& out) const {
  const size_t whole = tokenizer::valid_utf8_prefix(text);
  ends &= whole == text.size();
  text = text.substr(0, whole);
  if (text.empty() || most <= 0) return 0;
  const std::string context = context_of(before);
  std::vector<TokenId> found = lasting_tokens(context, text, ends);
  // The last token before the text may be one that the tokenizer would not have written here.
  if (found.empty() && !context.empty()) found = lasting_tokens("", text, ends);
  const auto count = std::min(static_cast<int>(found.size()), most);
  out.insert(out.end(), found.begin(), found.begin() + count);
  return count;
}

// The text of the last few tokens, from the start of a character.
std::string ForcedTokens::context_of(std::span<const TokenId> before) const {
  const auto bytes_of = [&](TokenId id) {
    const bool known = id >= 0 && static_cast<size_t>(id) < tokens_.size();
    return known ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
  };
  std::string context;
  std::string best;
  for (size_t i = 0; i < std::min(before.size(), kContextTokens); ++i) {
    const std::string_view bytes = bytes_of(before[before.size() - 1 - i]);
    if (bytes.empty() || context.size() + bytes.size() > kContextBytes) break;
    context.insert(0, bytes);
    if (is_utf8(context)) best = context;
  }
  return best;
}

// The tokens of a text behind a place in it; none if a token lies across it. They end before a special token, and where
// the tokens do not spell the text.
std::vector<TokenId> ForcedTokens::tokens_after(size_t boundary, std::string_view text) const {
  if (!is_utf8(text)) return {};
  const std::vector<TokenId> ids = tokenizer_.encode(text, false, {.most = 1});
  size_t total = 0;
  for (const TokenId id : ids) total += tokenizer_.token_bytes(id).size();
  if (total < text.size()) return {};
  const size_t added = total - text.size();  // a space before the text, as some tokenizers add it
  std::vector<TokenId> after;
  size_t at = 0;
  for (const TokenId id : ids) {
    const size_t begin = at;
    at += tokenizer_.token_bytes(id).size();
    if (begin < boundary + added && at > boundary + added) return {};
    if (begin < boundary + added || at == begin) continue;
    const std::string& bytes = tokens_[static_cast<size_t>(id)];
    if (bytes.empty() || text.substr(begin - added, bytes.size()) != bytes) break;
    after.push_back(id);
  }
  return after;
}

std::vector<TokenId> ForcedTokens::lasting_tokens(const std::string& context, std::string_view text, bool ends) const {
  std::string all = context;
  all += text;
  std::vector<TokenId> lasting = tokens_after(context.size(), all);
  if (ends) return lasting;
  const size_t first = all.size() - std::min(longest_, text.size());
  for (size_t q = first, encodings = 0; q < all.size() && !lasting.empty(); ++q) {
    if (!begins_a_token(std::string_view(all).substr(q))) continue;
    if (++encodings > kMostEncodings) return {};
    size_t whole = q;  // a token may begin within a character
    while ((static_cast<uint8_t>(all[whole]) & 0xc0) == 0x80) --whole;
    const std::vector<TokenId> kept = tokens_after(context.size(), std::string_view(all).substr(0, whole));
    lasting.erase(std::ranges::mismatch(lasting, kept).in1, lasting.end());
  }
  return lasting;
}

// Whether some token is the text and more.
bool ForcedTokens::begins_a_token(std::string_view text) const {
  const auto next = std::ranges::upper_bound(sorted_, text);
  return next != sorted_.end() && next->starts_with(text);
}

}  // namespace sluice
