// /invocations, the route of SageMaker: the fields of a body tell which API it is for. The endpoints of these APIs list
// the path, too, and say which bodies they take; this one has the rest.
#include "server/openai/shared_fields.h"

namespace sluice::server::openai::invocations {
namespace {

void run(Call&) {
  throw ApiError{.message =
                     "The body does not tell what to do. Expected 'messages' (chat), 'prompt' (completions), "
                     "'input' (embeddings, or labels of texts), 'query' and 'documents' (rerank), 'text_1' and "
                     "'text_2' or 'queries' and 'documents' (score).",
                 .code = "missing_required_parameter"};
}

const EndpointInfo endpoint{.name = "invocations",
                            .dialect = &kOpenAi,
                            .paths = {"/invocations"},
                            .flags = Route::kGenerates,
                            .help = "chat, completions, embeddings, rerank, score or classify, by the body's fields",
                            .parameters = {model_parameter()},
                            .needs_engine = [](const Json&) { return false; },
                            .names_model_otherwise = true,
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::invocations
