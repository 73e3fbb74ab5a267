// /tokenizer_info, as vLLM has it: the settings of the tokenizer and the chat template.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::tokenizer_info {
namespace {

void run(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  call.send({.body = call.engine().tokenizer_config()});
}

const EndpointInfo endpoint{.name = "tokenizer_info",
                            .dialect = &kOpenAi,
                            .method = "GET",
                            .paths = {"/tokenizer_info"},
                            .help = "the content of tokenizer_config.json and the chat template (?model=NAME)",
                            .needs_engine = [](const Json&) { return true; },
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::tokenizer_info
