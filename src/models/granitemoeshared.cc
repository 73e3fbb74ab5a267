// Granite with experts and a shared MLP for all rows.
#include "models/granite.h"

namespace sluice::models::granitemoeshared {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_like(config, "granitemoeshared");
  read_granite_experts(config, s);
  const int shared = config.get("shared_intermediate_size", 0);
  if (shared < 0) config.refuse("shared_intermediate_size", "must not be negative");
  if (shared > 0) add_granite_shared_mlp(s, shared);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "granitemoeshared", .architectures = {"GraniteMoeSharedForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::granitemoeshared
