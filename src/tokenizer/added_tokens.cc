// Finds the added tokens of tokenizer.json in text.
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/log.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

bool ends_with_word(std::string_view text) {
  if (text.empty()) return false;
  size_t at = text.size() - 1;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return is_word(code_point_at(text, at).value);
}

bool starts_with_word(std::string_view text) { return !text.empty() && is_word(code_point_at(text, 0).value); }

// Returns the start of the white space that ends at `end`, at or after `low`.
size_t space_before(std::string_view text, size_t low, size_t end) {
  while (end > low) {
    size_t at = end - 1;
    while (at > low && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_whitespace(code_point_at(text, at).value)) break;
    end = at;
  }
  return end;
}

// Finds the ends of runs of white space. Each run is scanned once, however many tokens ask about it.
class SpaceRuns {
 public:
  explicit SpaceRuns(std::string_view text) : text_(text) {}

  size_t end(size_t begin) {
    if (begin >= begin_ && begin <= end_) return end_;
    begin_ = end_ = begin;
    while (end_ < text_.size()) {
      const CodePoint c = code_point_at(text_, end_);
      if (!is_whitespace(c.value)) break;
      end_ += c.length;
    }
    return end_;
  }

 private:
  std::string_view text_;
  size_t begin_ = 1, end_ = 0;  // empty: no run
};

}  // namespace

AddedTokens::AddedTokens(const std::optional<Field>& field, const Vocab& vocab, const Normalizer* normalizer) {
  if (!field) return;
  field->for_each([&](const Field& entry) {
    AddedToken token = load(entry, vocab, normalizer);
    if (token.content.empty()) return;
    const auto [there, fresh] = index_of_id_.try_emplace(token.id, tokens_.size());
    if (!fresh) {
      AddedToken& old = tokens_[there->second];
      if (old.content != token.content) {
        entry.corrupt(fmt::format("id {} is already assigned to \"{}\"", token.id, old.content));
      }
      old = std::move(token);  // the last definition of a token applies
      return;
    }
    id_of_content_.emplace(token.content, token.id);
    highest_id_ = std::max(highest_id_, token.id);
    tokens_.push_back(std::move(token));
  });
  for (const AddedToken& token : tokens_) matchers_[token.normalized].add(token.normalized_content, token.id);
  for (TokenMatcher& matcher : matchers_) matcher.build();
}

AddedToken AddedTokens::load(const Field& field, const Vocab& vocab, const Normalizer* normalizer) const {
  AddedToken token;
  token.id = static_cast<TokenId>(field.at("id").integer(0, kMaxTokenId));
  token.content = field.at("content").string();
  token.single_word = field.boolean_or("single_word", false);
  token.lstrip = field.boolean_or("lstrip", false);
  token.rstrip = field.boolean_or("rstrip", false);
  token.special = field.boolean_or("special", false);
  token.normalized = field.boolean_or("normalized", !token.special);
  const auto known = id_of_content_.find(token.content);
  const auto id = known != id_of_content_.end() ? std::optional(known->second) : vocab.find(token.content);
  if (id && *id != token.id) {
    log::warning("{}: added token \"{}\" has id {} in the vocabulary, not {}", field.file(), token.content, *id,
                 token.id);
    token.id = *id;
  } else if (!id && vocab.has(token.id)) {
    field.corrupt(fmt::format("id {} already stands for \"{}\" in the vocabulary", token.id, vocab.text(token.id)));
  }
  token.normalized_content = token.content;
  if (token.normalized && normalizer != nullptr) normalizer->apply(token.normalized_content);
  return token;
}

const AddedToken* AddedTokens::by_id(TokenId id) const {
  const auto found = index_of_id_.find(id);
  return found == index_of_id_.end() ? nullptr : &tokens_[found->second];
}

std::optional<TokenId> AddedTokens::find(std::string_view content) const {
  const auto found = id_of_content_.find(std::string(content));
  if (found == id_of_content_.end()) return std::nullopt;
  return found->second;
}

// Matches Hugging Face when a token absorbs white space that begins another token: the other token is still emitted,
// and text continues after it.
std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, bool normalized) const {
  std::vector<Segment> segments;
  const TokenMatcher& matcher = matchers_[normalized];
  if (text.empty()) return segments;
  if (matcher.empty()) return {{text, std::nullopt}};
  SpaceRuns spaces(text);
  size_t done = 0;
  for (const TokenMatcher::Match& match : matcher.find_all(text)) {
    const AddedToken& token = *by_id(match.value);
    size_t begin = match.begin;
    size_t end = match.end;
    if (token.single_word && (ends_with_word(text.substr(0, begin)) || starts_with_word(text.substr(end)))) continue;
    if (token.lstrip) begin = std::max(space_before(text, std::min(done, begin), begin), done);
    if (token.rstrip) end = spaces.end(end);
    if (done < begin) segments.push_back({text.substr(done, begin - done), std::nullopt});
    segments.push_back({{}, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({text.substr(done), std::nullopt});
  return segments;
}

}  // namespace sluice::tokenizer
