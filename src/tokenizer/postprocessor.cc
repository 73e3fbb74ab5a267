// Loads and applies the post-processors of tokenizer.json.
#include "tokenizer/postprocessor.h"

#include "tokenizer/models/vocab.h"

namespace sluice::tokenizer {
namespace {

constexpr int kMaxType = 255;

TokenId load_id(const Field& field, const std::function<bool(TokenId)>& known) {
  const auto id = static_cast<TokenId>(field.integer(0, kMaxTokenId));
  if (!known(id)) field.corrupt(fmt::format("id {} is not in the vocabulary", id));
  return id;
}

int32_t load_type(const Field& part) {
  const auto type = part.find("type_id");
  return type ? static_cast<int32_t>(type->integer(0, kMaxType)) : 0;
}

}  // namespace

PostProcessor::PostProcessor(const std::optional<Field>& field, const std::function<bool(TokenId)>& known) {
  if (field) load(*field, known);
}

void PostProcessor::load(const Field& field, const std::function<bool(TokenId)>& known) {
  const Field type = field.at("type");
  if (type.string() == "Sequence") {
    field.at("processors").for_each([&](const Field& step) { load(step, known); });
  } else if (type.string() == "TemplateProcessing") {
    Templates both{.single = load_template(field, "single", known), .pair = {}};
    if (field.find("pair")) both.pair = load_template(field, "pair", known);
    templates_.push_back(std::move(both));
  } else if (type.string() == "BertProcessing" || type.string() == "RobertaProcessing") {
    templates_.push_back(load_around(field, type.string() == "BertProcessing", known));
  } else if (type.string() != "ByteLevel") {  // ByteLevel only adjusts offsets
    type.unsupported(fmt::format("unknown post-processor \"{}\"", type.string()));
  }
}

PostProcessor::Template PostProcessor::load_template(const Field& field, std::string_view key,
                                                     const std::function<bool(TokenId)>& known) {
  Template loaded;
  field.at(key).for_each([&](const Field& part) {
    if (const auto text = part.find("Sequence")) {
      const Field id = text->at("id");
      const bool second = id.string() == "B";
      if (id.string() != "A" && !second) id.corrupt("unknown sequence (expected A or B)");
      if (second && key == "single") id.corrupt("a template for one text may contain sequence A only");
      loaded.push_back({.kind = second ? Part::Kind::kSecond : Part::Kind::kFirst, .type = load_type(*text)});
      return;
    }
    const Field token = part.at("SpecialToken");
    Part special{.type = load_type(token)};
    field.at("special_tokens").at(token.at("id").string()).at("ids").for_each([&](const Field& id) {
      special.special.push_back(load_id(id, known));
    });
    loaded.push_back(std::move(special));
  });
  return loaded;
}

// Reads {"cls": ["<s>", 0], "sep": ["</s>", 2]}: [CLS] A [SEP] B [SEP] with types 0 and 1, or <s> A </s> </s> B </s>
// with type 0.
PostProcessor::Templates PostProcessor::load_around(const Field& field, bool bert,
                                                    const std::function<bool(TokenId)>& known) {
  const auto token = [&](std::string_view key) {
    const Field pair = field.at(key);
    pair.expect(pair.json().is_array() && pair.json().size() == 2, "a token and its id");
    return Part{.special = {load_id(pair.element(1), known)}};
  };
  const Part cls = token("cls"), sep = token("sep"), first{.kind = Part::Kind::kFirst};
  Part second{.kind = Part::Kind::kSecond, .type = bert ? 1 : 0}, end = sep;
  end.type = second.type;
  if (bert) return {.single = {cls, first, sep}, .pair = {cls, first, sep, second, end}};
  return {.single = {cls, first, sep}, .pair = {cls, first, sep, sep, second, end}};
}

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> tokens, bool add_special_tokens) const {
  for (const Templates& both : templates_) {
    std::vector<TokenId> out;
    out.reserve(tokens.size() + both.single.size());
    for (const Part& part : both.single) {
      if (part.kind == Part::Kind::kFirst) {
        out.insert(out.end(), tokens.begin(), tokens.end());
      } else if (add_special_tokens) {
        out.insert(out.end(), part.special.begin(), part.special.end());
      }
    }
    tokens = std::move(out);
  }
  return tokens;
}

Tokenizer::Pair PostProcessor::join(std::span<const TokenId> first, std::span<const TokenId> second) const {
  Tokenizer::Pair pair;
  const auto add = [&](std::span<const TokenId> tokens, int32_t type) {
    pair.tokens.insert(pair.tokens.end(), tokens.begin(), tokens.end());
    pair.types.insert(pair.types.end(), tokens.size(), type);
  };
  if (templates_.empty() || templates_.back().pair.empty()) {
    add(first, 0);
    add(second, 1);
    return pair;
  }
  for (const Part& part : templates_.back().pair) {
    if (part.kind == Part::Kind::kSpecial) add(part.special, part.type);
    if (part.kind == Part::Kind::kFirst) add(first, part.type);
    if (part.kind == Part::Kind::kSecond) add(second, part.type);
  }
  return pair;
}

}  // namespace sluice::tokenizer
