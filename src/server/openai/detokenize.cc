// /detokenize, with vLLM's fields. The answer has the text under the names of vLLM, llama.cpp and SGLang.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::detokenize {
namespace {

struct DetokenizeFields {
  std::vector<TokenId> tokens;
};

constexpr Parameter kParameters[] = {{.name = "tokens",
                                      .type = Parameter::Type::kTokenIds,
                                      .max_items = 1 << 20,
                                      .required = true,
                                      .fallback = "required",
                                      .help = "token ids to turn into text",
                                      .set = assign<&DetokenizeFields::tokens>}};

void run(Call& call) {
  const auto& tokens = call.fields.of<DetokenizeFields>().tokens;
  const std::string text = call.engine().detokenize(tokens, false);
  call.send({.body = dump_json({{"prompt", text}, {"content", text}, {"text", text}}), .headers = call.warnings()});
}

const EndpointInfo endpoint{.name = "detokenize",
                            .dialect = &kOpenAi,
                            .paths = {"/detokenize", "/v1/detokenize"},
                            .help = "token ids to text",
                            .parameters = {model_parameter(), kParameters},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::detokenize
