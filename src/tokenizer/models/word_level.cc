// WordLevel: every piece is one token, or unknown.
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/models/model.h"

namespace sluice::tokenizer {
namespace {

class WordLevel final : public Model {
 public:
  explicit WordLevel(const Field& field)
      : vocab_(load_vocab(field.at("vocab"))),
        unknown_text_(field.at("unk_token").string()),
        unknown_(vocab_.find(unknown_text_)) {}

  void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const override {
    for (const Span span : spans) {
      auto id = vocab_.find(pieces.view(span));
      if (!id) id = unknown_;
      if (!id) {
        throw Error(ErrorCode::kInvalidRequest,
                    fmt::format("the vocabulary contains neither a word of the text nor \"{}\"", unknown_text_));
      }
      out.push_back(*id);
    }
  }

  const Vocab& vocab() const override { return vocab_; }
  std::string_view kind() const override { return "WordLevel"; }

 private:
  Vocab vocab_;
  std::string unknown_text_;
  std::optional<TokenId> unknown_;
};

}  // namespace

std::unique_ptr<Model> load_word_level(const Field& field) { return std::make_unique<WordLevel>(field); }

}  // namespace sluice::tokenizer
