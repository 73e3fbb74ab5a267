// CodeGen: GPT-J with queries, values and keys fused in four parts, one per device used in training.
#include "models/gptj.h"

namespace sluice::models::codegen {
namespace {

constexpr int kParts = 4;

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = gptj_like(config, "codegen");
  AttentionSpec& a = s.attention;
  if (a.heads % kParts != 0) config.refuse("n_head", "must be a multiple of 4");
  a.qkv = {"qkv_proj"};
  const int64_t width = a.q_width() / kParts;
  for (int kind : {0, 2, 1}) {  // stored as query, value, key
    for (int part = 0; part < kParts; ++part) a.qkv_rows.push_back({(3 * part + kind) * width, width});
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{.name = "codegen", .architectures = {"CodeGenForCausalLM"}, .build = build};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::codegen
