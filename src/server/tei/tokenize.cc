// TEI's /tokenize and /decode.
#include <fmt/core.h>

#include <array>

#include "server/tei/fields.h"
#include "server/token_spans.h"

namespace sluice::server::tei::tokenize {
namespace {

using Type = Parameter::Type;

struct TokenizeFields {
  Json inputs;  // a string or strings
  bool add_special_tokens = true;
};
struct DecodeFields {
  Json ids;
  bool skip_special_tokens = true;
};

constexpr auto kTokenize = std::to_array<Parameter>({
    {.name = "inputs",
     .type = Type::kStrings,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextBytes,
     .required = true,
     .fallback = "required",
     .help = "a text or a list of texts",
     .set = assign<&TokenizeFields::inputs>},
    {.name = "add_special_tokens",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "add the tokens that the tokenizer puts around a text",
     .set = assign<&TokenizeFields::add_special_tokens>},
});

constexpr auto kDecode = std::to_array<Parameter>({
    {.name = "ids",
     .type = Type::kArray,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "token ids, or a list of such lists",
     .set = assign<&DecodeFields::ids>},
    {.name = "skip_special_tokens",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "leave special tokens out of the text",
     .set = assign<&DecodeFields::skip_special_tokens>},
});

// Written as text: a tree of values would take many times the memory.
void write_spans(std::string& out, const Call& call, std::string_view text, bool add_special_tokens) {
  const auto place = [](const std::optional<size_t>& at) { return at ? std::to_string(*at) : std::string("null"); };
  out += '[';
  each_token_span(call.engine(), text, add_special_tokens, [&](const TokenSpan& span) {
    if (out.back() != '[') out += ',';
    out += fmt::format(R"({{"id":{},"text":{},"special":{},"start":{},"stop":{}}})", span.id, dump_json(span.text),
                       span.special, place(span.start), place(span.stop));
  });
  out += ']';
}

void run_tokenize(Call& call) {
  const auto& fields = call.fields.of<TokenizeFields>();
  const std::string before = prompt_text(call, call.fields.of<TeiFields>().prompt_name);
  std::vector<std::string> texts;
  if (fields.inputs.is_string()) texts.push_back(fields.inputs.get<std::string>());
  if (fields.inputs.is_array()) texts = fields.inputs.get<std::vector<std::string>>();
  std::string out = "[";
  size_t bytes = 0;
  for (const std::string& text : texts) {
    check_text_length(bytes += text.size(), call.info().max_model_len, "inputs", kMostSpannedBytes);
    if (out.size() > 1) out += ',';
    write_spans(out, call, before + text, fields.add_special_tokens);
  }
  out += ']';
  call.send({.body = std::move(out), .headers = call.warnings()});
}

void run_decode(Call& call) {
  const auto& fields = call.fields.of<DecodeFields>();
  const FieldPath path = "ids";
  const int vocab = call.info().vocab_size;
  Json out = Json::array();
  const auto add = [&](const Json& ids, const FieldPath& where) {
    out.push_back(call.engine().detokenize(expect_token_ids(ids, where, vocab), fields.skip_special_tokens));
  };
  if (fields.ids.empty() || !fields.ids[0].is_array()) {
    add(fields.ids, path);
  } else {
    expect_array(fields.ids, path, 1, kMostTexts);
    for (size_t i = 0; i < fields.ids.size(); ++i) add(fields.ids[i], path[i]);
  }
  call.send({.body = dump_json(out), .headers = call.warnings()});
}

const EndpointInfo tokenize_endpoint{
    .name = "tei tokenize",
    .dialect = &kTei,
    .help = "TEI's form of tokens: id, text, special, start and stop",
    .parameters = {model_parameter(), kTokenize, tei_prompt_parameter()},
    .shared = {{"/tokenize",
                [](const Json& body, Task task) { return task != Task::kGenerate && body.contains("inputs"); }}},
    .run = run_tokenize};
const EndpointInfo decode_endpoint{.name = "tei decode",
                                   .dialect = &kTei,
                                   .paths = {"/decode"},
                                   .help = "token ids to texts, for TEI's clients",
                                   .parameters = {model_parameter(), kDecode},
                                   .run = run_decode};
const Registry<EndpointInfo> registered_tokenize{tokenize_endpoint}, registered_decode{decode_endpoint};

}  // namespace
}  // namespace sluice::server::tei::tokenize
