// The tokenizer pipeline: added tokens, normalizer, pre-tokenizers, model, post-processor, and the decoder.
#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/json.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sluice {

using namespace tokenizer;

namespace {

constexpr size_t kLongestText = size_t{256} << 20;

std::unique_ptr<Normalizer> load_optional_normalizer(const Field& top) {
  const auto field = top.find("normalizer");
  return field ? load_normalizer(*field) : nullptr;
}

PreTokenizers load_optional_pretokenizers(const Field& top) {
  const auto field = top.find("pre_tokenizer");
  return field ? load_pretokenizers(*field) : PreTokenizers{};
}

// Encodes a segment of text between added tokens.
void encode_segment(const Tokenizer::Parts& parts, std::string_view text, bool from_the_start, const Threads& threads,
                    std::vector<TokenId>& out) {
  Pieces pieces{
      .text = std::string(text), .spans = {{0, text.size()}}, .from_the_start = from_the_start, .threads = threads};
  for (const auto& step : parts.pretokenizers.steps) step->apply(pieces);
  parts.model->cut(pieces);
  parts.model->tokenize(pieces, out);
}

}  // namespace

Encoder tokenizer::load_encoder(const Field& top) {
  Encoder encoder{
      .normalizer = load_optional_normalizer(top), .pretokenizers = load_optional_pretokenizers(top), .model = {}};
  encoder.model = load_model(top.at("model"), encoder.pretokenizers.byte_level);
  return encoder;
}

Tokenizer::Parts::Parts(const Field& top, Encoder encoder)
    : normalizer(std::move(encoder.normalizer)),
      pretokenizers(std::move(encoder.pretokenizers)),
      model(std::move(encoder.model)),
      added(top.find("added_tokens"), model->vocab(), normalizer.get()),
      postprocessor(top.find("post_processor"),
                    [&](TokenId id) { return model->vocab().has(id) || added.by_id(id) != nullptr; }),
      decoder(top.find("decoder")) {
  if (const auto version = top.find("version"); version && version->string() != "1.0") {
    version->unsupported(fmt::format("unknown version \"{}\"", version->string()));
  }
}

// Returns an added token in normalized form, so that the decoder can undo the normalization.
std::optional<std::string_view> Tokenizer::Parts::decoder_input(TokenId id) const {
  if (const AddedToken* token = added.by_id(id)) return token->normalized_content;
  if (model->vocab().has(id)) return model->vocab().text(id);
  return std::nullopt;
}

bool Tokenizer::Parts::is_special(TokenId id) const {
  const AddedToken* token = added.by_id(id);
  return token != nullptr && token->special;
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::from_file(const std::string& path) {
  const Json json = read_json_file(path);
  const Field top(json, path);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const Parts>(top, load_encoder(top))));
}

std::unique_ptr<Tokenizer> Tokenizer::from_json(std::string_view text, const std::string& name) {
  Json json;
  try {
    json = parse_json(text);
  } catch (const Error& e) {
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", name, e.what()));
  }
  const Field top(json, name);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const Parts>(top, load_encoder(top))));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens, const Threads& threads) const {
  if (text.size() > kLongestText) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("the text is too long: {} (at most {})",
                                                        format_bytes(text.size()), format_bytes(kLongestText)));
  }
  if (const size_t valid = valid_utf8_prefix(text); valid != text.size()) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("the text has invalid UTF-8 at byte {}", valid));
  }
  std::vector<TokenId> ids;
  for (const AddedTokens::Segment& raw : parts_->added.split(text, /*normalized=*/false)) {
    if (raw.token) {
      ids.push_back(*raw.token);
      continue;
    }
    const bool first = raw.text.data() == text.data();
    std::string normalized(raw.text);
    if (parts_->normalizer) parts_->normalizer->apply(normalized);
    for (const AddedTokens::Segment& segment : parts_->added.split(normalized, /*normalized=*/true)) {
      if (segment.token) {
        ids.push_back(*segment.token);
      } else {
        encode_segment(*parts_, segment.text, first && segment.text.data() == normalized.data(), threads, ids);
      }
    }
  }
  return parts_->postprocessor.apply(std::move(ids), add_special_tokens);
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool skip_special_tokens) const {
  Decoding decoding = parts_->decoder.start();
  for (const TokenId id : tokens) {
    if (skip_special_tokens && parts_->is_special(id)) continue;
    if (const auto token = parts_->decoder_input(id)) decoding.push(*token);
  }
  decoding.finish();
  return decoding.take();
}

std::vector<TokenId> Tokenizer::surround(std::vector<TokenId> own) const {
  return parts_->postprocessor.apply(std::move(own), true);
}

Tokenizer::Pair Tokenizer::join(std::span<const TokenId> first, std::span<const TokenId> second) const {
  return parts_->postprocessor.join(first, second);
}

std::string_view Tokenizer::token_text(TokenId id) const {
  if (const AddedToken* token = parts_->added.by_id(id)) return token->content;
  return parts_->model->vocab().text(id);
}

std::string Tokenizer::token_bytes(TokenId id) const {
  const auto token = parts_->decoder_input(id);
  return token ? parts_->decoder.bytes_of(*token) : std::string();
}

std::optional<TokenId> Tokenizer::token_id(std::string_view text) const {
  if (const auto id = parts_->added.find(text)) return id;
  return parts_->model->vocab().find(text);
}

bool Tokenizer::is_special(TokenId id) const { return parts_->is_special(id); }

int Tokenizer::vocab_size() const { return std::max(parts_->model->vocab().size(), parts_->added.highest_id() + 1); }

std::string_view Tokenizer::kind() const { return parts_->model->kind(); }

}  // namespace sluice
