// Follows the tokens through the text.
#include "server/token_spans.h"

#include <algorithm>

#include "server/http/http.h"

namespace sluice::server {
namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

bool matches(std::string_view text, size_t at, std::string_view piece) {
  return !piece.empty() && equals_ignoring_case(text.substr(at, piece.size()), piece);
}

class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  // Sets the span of the token if its text comes next, perhaps after spaces.
  void place(const std::string& bytes, TokenSpan& span) {
    std::string_view piece = bytes;
    if (piece.starts_with("##")) piece.remove_prefix(2);  // WordPiece's mark of a part of a word
    if (take(at_, piece, span)) return;
    // A tokenizer may put a space before the text, and drop spaces of it.
    while (!piece.empty() && is_space(piece.front())) piece.remove_prefix(1);
    size_t next = at_;
    while (next < text_.size() && is_space(text_[next])) ++next;
    take(next, piece, span);
  }

 private:
  bool take(size_t at, std::string_view piece, TokenSpan& span) {
    if (!matches(text_, at, piece)) return false;
    span.start = advance(at);
    span.stop = advance(at + piece.size());
    span.text = text_.substr(at, piece.size());
    return true;
  }
  // Goes on to a byte; returns the characters before it.
  size_t advance(size_t to) {
    for (; at_ < to; ++at_) characters_ += continues_character(text_[at_]) ? 0 : 1;
    return characters_;
  }

  const std::string_view text_;
  size_t at_ = 0, characters_ = 0;
};

}  // namespace

void each_token_span(const Engine& engine, std::string_view text, bool add_special_tokens,
                     const std::function<void(const TokenSpan& span)>& visit) {
  const std::vector<TokenId> own = engine.tokenize(text, false);
  const std::vector<TokenId> all = add_special_tokens ? engine.tokenize(text, true) : own;
  const size_t before = static_cast<size_t>(std::search(all.begin(), all.end(), own.begin(), own.end()) - all.begin());
  Cursor cursor(text);
  for (size_t i = 0; i < all.size(); ++i) {
    TokenSpan span{.id = all[i], .special = i < before || i >= before + own.size()};
    if (!span.special) cursor.place(engine.token_bytes(all[i]), span);
    if (!span.start) span.text = engine.token_text(all[i]);
    visit(span);
  }
}

}  // namespace sluice::server
