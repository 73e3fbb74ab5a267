// See postprocessor.h. Templates for pairs of texts are not read: Sluice encodes single texts.
#include "tokenizer/postprocessor.h"

#include "tokenizer/vocab.h"

namespace sluice::tokenizer {
namespace {

TokenId load_id(const Field& field, const std::function<bool(TokenId)>& known) {
  const auto id = static_cast<TokenId>(field.integer(0, kMaxTokenId));
  if (!known(id)) field.corrupt(fmt::format("id {} is not in the vocabulary", id));
  return id;
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
    templates_.push_back(load_template(field, known));
  } else if (type.string() == "BertProcessing" || type.string() == "RobertaProcessing") {
    templates_.push_back(load_around(field, known));
  } else if (type.string() != "ByteLevel") {  // ByteLevel adjusts offsets only
    type.unsupported(fmt::format("unknown post-processor \"{}\"", type.string()));
  }
}

PostProcessor::Template PostProcessor::load_template(const Field& field, const std::function<bool(TokenId)>& known) {
  Template loaded;
  field.at("single").for_each([&](const Field& part) {
    if (const auto text = part.find("Sequence")) {
      if (text->at("id").string() != "A") text->at("id").corrupt("a template for one text has the sequence A only");
      loaded.push_back({.is_text = true, .special = {}});
      return;
    }
    const Field name = part.at("SpecialToken").at("id");
    Part special;
    const Field token = field.at("special_tokens").at(name.string());
    token.at("ids").for_each([&](const Field& id) { special.special.push_back(load_id(id, known)); });
    loaded.push_back(std::move(special));
  });
  return loaded;
}

// {"cls": ["<s>", 0], "sep": ["</s>", 2]}
PostProcessor::Template PostProcessor::load_around(const Field& field, const std::function<bool(TokenId)>& known) {
  const auto token = [&](std::string_view key) {
    const Field pair = field.at(key);
    pair.expect(pair.json().is_array() && pair.json().size() == 2, "a token and its id");
    return Part{.is_text = false, .special = {load_id(pair.element(1), known)}};
  };
  return {token("cls"), Part{.is_text = true, .special = {}}, token("sep")};
}

std::vector<TokenId> PostProcessor::apply(std::vector<TokenId> tokens, bool add_special_tokens) const {
  for (const Template& parts : templates_) {
    std::vector<TokenId> out;
    out.reserve(tokens.size() + parts.size());
    for (const Part& part : parts) {
      if (part.is_text) {
        out.insert(out.end(), tokens.begin(), tokens.end());
      } else if (add_special_tokens) {
        out.insert(out.end(), part.special.begin(), part.special.end());
      }
    }
    tokens = std::move(out);
  }
  return tokens;
}

}  // namespace sluice::tokenizer
