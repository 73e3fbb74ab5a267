// PLaMo 3 (Preferred Networks, 2025): PLaMo 2 with attention in all layers, most of them with a window and their own
// rotation.
#include "base/json.h"
#include "models/plamo.h"

namespace sluice::models::plamo3 {
namespace {

// Rotations of layers without and with a window, at the indices 0 and 1.
std::vector<RopeSpec> read_ropes(const Config& config, const DecoderSpec& s) {
  Json full{{"rope_theta", config.get("rope_theta", 1000000.0)}};
  const double factor = config.get("rope_scaling_factor", 1.0);
  if (factor != 1.0) {
    full["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", factor},
                            {"original_max_position_embeddings", config.at<int>("initial_context_length")},
                            {"truncate", false}};
  }
  const Json local{{"rope_theta", config.get("rope_local_theta", 10000.0)}};
  std::vector<RopeSpec> ropes;
  for (const Json& values : {full, local}) {
    ropes.push_back(read_rope(Config(values, config.origin()), s.attention.head_dim, s.max_positions));
  }
  return ropes;
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = plamo_like(config, "plamo3", "head_dim");
  s.attention.qk_norm = QkNorm::kHead;
  s.attention.qk_norm_spec = s.norm;
  s.ropes = read_ropes(config, s);
  const int window = read_positive(config, "window_size", config.get("window_size", 2048));
  const int pattern = read_positive(config, "sliding_window_pattern", config.get("sliding_window_pattern", 8));
  for (int i = 0; i < s.depth(); ++i) {
    if ((i + 1) % pattern == 0) continue;
    s.layers[i].window = window;
    s.layers[i].rope = 1;
  }
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "plamo3",
    .architectures = {"Plamo3ForCausalLM"},
    .build = build,
    .ignored =
        {
            // These follow from sliding_window_pattern and window_size.
            {"interleaved_sliding_window"},
            {"layer_types"},
            {"layers_block_type"},
            {"sliding_window"},
            {"hidden_activation", "\"swiglu\""},
            {"rope_local_base_freq"},  // rope_local_theta is read
            {"rope_parameters"},       // follows from the keys of rotations
            {"scale_embedding", "false"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::plamo3
