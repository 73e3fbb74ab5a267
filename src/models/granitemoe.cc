// Granite 3 with experts.
#include "models/granite.h"

namespace sluice {

void read_granite_experts(const Config& config, DecoderSpec& s) {
  read_experts(config, s, "num_local_experts", "num_experts_per_tok", s.mlp.inner);
  s.moe.normalize = true;  // softmax over the chosen experts
  s.moe.layout = ExpertLayout::kStacked;
  s.moe.router = "router.layer";
  s.moe.gate = "input_linear";
  s.moe.down = "output_linear";
  s.names.mlp = "block_sparse_moe";
}

void add_granite_shared_mlp(DecoderSpec& s, int inner) {
  for (std::string* name : {&s.moe.router, &s.moe.gate, &s.moe.down}) *name = s.names.mlp + "." + *name;
  s.names.mlp = "";  // experts and shared MLP are siblings in the layer
  s.moe.shared_inner = inner;
  s.moe.shared = "shared_mlp";
  s.moe.shared_in = {"input_linear"};
  s.moe.shared_out = "output_linear";
}

}  // namespace sluice

namespace sluice::models::granitemoe {
namespace {

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = granite_like(config, "granitemoe");
  read_granite_experts(config, s);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "granitemoe", .architectures = {"GraniteMoeForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::granitemoe
