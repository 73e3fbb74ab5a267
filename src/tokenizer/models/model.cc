// Selects the model by its type and reads vocabularies.
#include "tokenizer/models/model.h"

#include <algorithm>

#include "tokenizer/byte_level.h"

namespace sluice::tokenizer {
namespace {

// Wraps a model that does not know the byte-level alphabet, when the pre-tokenizer left the spelling to the model.
class SpelledOut final : public Model {
 public:
  explicit SpelledOut(std::unique_ptr<Model> inner) : inner_(std::move(inner)) {}

  const Vocab& vocab() const override { return inner_->vocab(); }
  std::string_view kind() const override { return inner_->kind(); }

 protected:
  void append_tokens(const Pieces& pieces, std::span<const Span> spans, std::vector<TokenId>& out) const override {
    Pieces spelled;
    spelled.threads.most = 1;
    for (const Span span : spans) {
      const size_t begin = spelled.text.size();
      append_byte_level(spelled.text, pieces.view(span));
      spelled.spans.push_back({begin, spelled.text.size()});
    }
    inner_->tokenize(spelled, out);
  }

 private:
  std::unique_ptr<Model> inner_;
};

// Files older than the "type" member are recognized by their other members.
std::string_view type_of(const Field& field) {
  if (const auto type = field.find("type")) return type->string();
  if (field.find("merges")) return "BPE";
  if (field.find("max_input_chars_per_word")) return "WordPiece";
  if (const auto vocab = field.find("vocab"); vocab && vocab->json().is_array()) return "Unigram";
  return "WordLevel";
}

}  // namespace

void Model::tokenize(const Pieces& pieces, std::vector<TokenId>& out) const {
  const auto count = static_cast<size_t>(pieces.threads.for_text(pieces.text.size()));
  if (count == 1) return append_tokens(pieces, pieces.spans, out);
  std::vector<std::vector<TokenId>> tokens(count);
  const auto first_of = [&](size_t part) {  // index of the first piece at or after the part's start
    const size_t at = pieces.text.size() / count * part;
    return part == count ? pieces.spans.end() : std::ranges::lower_bound(pieces.spans, at, {}, &Span::begin);
  };
  run_parts(static_cast<int>(count), [&](int i) {
    const auto part = static_cast<size_t>(i);
    append_tokens(pieces, {first_of(part), first_of(part + 1)}, tokens[part]);
  });
  for (const std::vector<TokenId>& part : tokens) out.insert(out.end(), part.begin(), part.end());
}

std::unique_ptr<Model> load_model(const Field& field, bool byte_level) {
  const std::string_view type = type_of(field);
  if (type == "BPE") return load_bpe(field, byte_level);
  std::unique_ptr<Model> model;
  if (type == "Unigram") model = load_unigram(field);
  if (type == "WordPiece") model = load_word_piece(field);
  if (type == "WordLevel") model = load_word_level(field);
  if (!model) field.unsupported(fmt::format("unknown model type \"{}\"", type));
  return byte_level ? std::make_unique<SpelledOut>(std::move(model)) : std::move(model);
}

Vocab load_vocab(const Field& field) {
  field.expect(field.json().is_object(), "an object");
  const auto& members = field.json().get_ref<const Json::object_t&>();
  size_t bytes = 0;
  for (const auto& [text, id] : members) bytes += text.size();
  Vocab vocab;
  vocab.reserve(members.size(), bytes);
  for (const auto& [text, id] : members) {
    const bool fits = id.is_number_integer() && id >= 0 && id <= kMaxTokenId;
    if (!fits) {
      field.corrupt(fmt::format("\"{}\": {} is not a valid ID (expected 0 to {})", text, id.dump(), kMaxTokenId));
    }
    const auto value = id.template get<TokenId>();
    if (vocab.has(value)) {
      field.corrupt(fmt::format("\"{}\" and \"{}\" share the id {}", vocab.text(value), text, value));
    }
    vocab.add(text, value);
  }
  return vocab;
}

}  // namespace sluice::tokenizer
