// TGI's /tokenize and /chat_tokenize: the tokens of a text or of a conversation, and where they are in it.
#include <fmt/core.h>

#include "server/engine_request.h"
#include "server/openai/requests.h"
#include "server/rows.h"
#include "server/tgi/dialect.h"
#include "server/token_spans.h"

namespace sluice::server::tgi::tokenize {
namespace {

using Type = Parameter::Type;

struct TokenizeFields {
  std::string inputs;
  bool add_special_tokens = true;
};

constexpr Parameter kParameters[] = {{.name = "inputs",
                                      .type = Type::kString,
                                      .max_bytes = kTextBytes,
                                      .required = true,
                                      .fallback = "required",
                                      .help = "the text",
                                      .set = assign<&TokenizeFields::inputs>},
                                     {.name = "add_special_tokens",
                                      .type = Type::kBoolean,
                                      .fallback = "true",
                                      .help = "add the tokens that the tokenizer puts around a text",
                                      .set = assign<&TokenizeFields::add_special_tokens>}};

// Written as text: a tree of values would take many times the memory.
std::string tokens_text(const Call& call, std::string_view text, bool add_special_tokens) {
  const auto place = [](const std::optional<size_t>& at) { return at ? std::to_string(*at) : std::string("0"); };
  std::string out = "[";
  each_token_span(call.engine(), text, add_special_tokens, [&](const TokenSpan& span) {
    if (out.size() > 1) out += ',';
    out += fmt::format(R"({{"id":{},"text":{},"start":{},"stop":{}}})", span.id, dump_json(span.text),
                       place(span.start), place(span.stop));
  });
  out += ']';
  return out;
}

void run_text(Call& call) {
  const auto& fields = call.fields.of<TokenizeFields>();
  check_text_length(fields.inputs.size(), call.info().max_model_len, "inputs", kMostSpannedBytes);
  call.send({.body = tokens_text(call, fields.inputs, fields.add_special_tokens), .headers = call.warnings()});
}

void run_chat(Call& call) {
  expect_generates(call);
  const ChatRequest request = openai_chat_request(call);
  const std::string text = call.engine().render_chat(request.chat);
  check_text_length(text.size(), call.info().max_model_len, "messages", kMostSpannedBytes);
  const std::string tokens = tokens_text(call, text, request.add_special_tokens);
  call.send({.body = fmt::format(R"({{"tokenize_response":{},"templated_text":{}}})", tokens, dump_json(text)),
             .headers = call.warnings()});
}

const EndpointInfo text_endpoint{
    .name = "tgi tokenize",
    .dialect = &kTgi,
    .help = "TGI's form of tokens: id, text, start and stop",
    .parameters = {model_parameter(), kParameters},
    .shared = {{"/tokenize",
                [](const Json& body, Task task) { return task == Task::kGenerate && body.contains("inputs"); }}},
    .run = run_text};
const EndpointInfo chat_endpoint{.name = "tgi chat_tokenize",
                                 .dialect = &kTgi,
                                 .paths = {"/chat_tokenize"},
                                 .help = "the prompt that the chat template makes of a chat request, and its tokens",
                                 .parameters = chat_parameters(),
                                 .run = run_chat};
const Registry<EndpointInfo> registered_text{text_endpoint}, registered_chat{chat_endpoint};

}  // namespace
}  // namespace sluice::server::tgi::tokenize
