// WordPiece: takes the longest token that fits, from left to right. A word that cannot be spelled this way is unknown.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/models/model.h"
#include "tokenizer/unicode.h"

namespace sluice::tokenizer {
namespace {

class WordPiece final : public Model {
 public:
  explicit WordPiece(const Field& field)
      : vocab_(load_vocab(field.at("vocab"))),
        unknown_text_(field.at("unk_token").string()),
        unknown_(vocab_.find(unknown_text_)),
        longest_word_(field.at("max_input_chars_per_word").integer(0, INT64_MAX)) {
    for (TokenId id = 0; id < vocab_.size(); ++id) {
      if (vocab_.has(id)) trie_.insert(vocab_.text(id), id);
    }
    continuing_ = trie_.find(field.at("continuing_subword_prefix").string());
  }

  void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const override {
    for (const Span span : spans) {
      const std::string_view word = pieces.view(span);
      const size_t before = out.size();
      int64_t characters = 0;
      for_each_code_point(word, [&](char32_t) { ++characters; });
      if (characters <= longest_word_ && spell(word, out)) continue;
      out.resize(before);
      if (!unknown_) {
        throw Error(ErrorCode::kInvalidRequest,
                    fmt::format("the vocabulary cannot spell a word of the text and has no \"{}\"", unknown_text_));
      }
      out.push_back(*unknown_);
    }
  }

  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "WordPiece"; }

 private:
  bool spell(std::string_view word, std::vector<TokenId>& out) const {
    for (size_t begin = 0; begin < word.size();) {
      ByteTrie::Node node = begin == 0 ? ByteTrie::kRoot : continuing_;
      TokenId longest = -1;
      size_t next = begin;
      for (size_t at = begin; at < word.size() && node != ByteTrie::kNone;) {
        node = trie_.child(node, static_cast<unsigned char>(word[at++]));
        if (node == ByteTrie::kNone || trie_.value(node) < 0) continue;
        longest = trie_.value(node);
        next = at;
      }
      if (longest < 0) return false;
      out.push_back(longest);
      begin = next;
    }
    return true;
  }

  Vocab vocab_;
  std::string unknown_text_;
  std::optional<TokenId> unknown_;
  int64_t longest_word_;  // in characters; longer words are unknown
  ByteTrie trie_;
  ByteTrie::Node continuing_;  // node of the prefix that marks a word's continuation
};

}  // namespace

std::unique_ptr<Model> load_word_piece(const Field& field) { return std::make_unique<WordPiece>(field); }

}  // namespace sluice::tokenizer
