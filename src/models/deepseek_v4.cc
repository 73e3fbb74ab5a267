// DeepSeek-V4: attention over a window of keys and over compressed keys (nn/attention/compressed_attention.h),
// hyper-connections in place of the residual stream, and DeepSeek's experts, which the first layers choose by token id.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/json.h"
#include "models/deepseek.h"
#include "nn/attention/compressed_attention.h"
#include "nn/hyper_connections.h"

namespace sluice::models::deepseek_v4 {
namespace {

constexpr const char* kSliding = "sliding_attention";
constexpr const char* kSparse = "compressed_sparse_attention";
constexpr const char* kHeavy = "heavily_compressed_attention";

// Experts that are chosen by token id: columns [first, first + top_k) of the rows that HyperConnections hands on.
class HashedExperts final : public FeedForward {
 public:
  HashedExperts(const Weights& w, const MoeSpec& spec, int hidden, int64_t first)
      : moe_(w, spec, hidden), floats_(Moe::floats_per_token(spec, hidden)), first_(first), top_k_(spec.top_k) {}
  void operator()(ops::Ctx& c, std::span<const Tensor> auxiliary, const Tensor& out, const Tensor& x,
                  bool accumulate) const override {
    const Tensor& table = auxiliary[HyperConnections::kTable];
    moe_.with_given(c, out, x, table.slice_columns(first_, top_k_), accumulate);
  }
  int64_t floats_per_token() const override { return floats_; }

 private:
  Moe moe_;
  int64_t floats_, first_;
  int top_k_;
};

// The tensor as numbers, whatever its type. Empty in a dry run or if the tensor is missing.
std::vector<float> read_numbers(const Weights& w, std::string_view name, const Shape& shape) {
  const TensorEntry* entry = w.tensor(name, shape);
  if (entry == nullptr || w.context().dry) return {};
  std::vector<float> out(static_cast<size_t>(shape.elements()));
  if (entry->dtype != &kInt64) {
    entry->read(out.data());
    return out;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t value = 0;
    std::memcpy(&value, entry->data + i * sizeof(value), sizeof(value));
    out[i] = static_cast<float>(value);
  }
  return out;
}

// The layers of the published model. Each one is two layers of the decoder: attention, then experts.
struct Layers {
  std::vector<std::string> attention;  // kinds of attention
  std::vector<bool> hashed;            // experts are chosen by token id
};

// One table [vocab, hashed layers * top_k] of the experts that all hashed layers choose.
Embedding load_tables(const Weights& body, const std::vector<int>& layers, int vocab, int top_k) {
  LoadContext& context = body.context();
  const int64_t columns = static_cast<int64_t>(layers.size()) * top_k;
  const size_t bytes = static_cast<size_t>(vocab * columns) * sizeof(float);
  context.weight_bytes += bytes;
  Buffer memory(context.dry ? 0 : bytes);
  const Tensor table(memory.data(), &kFloat32, {vocab, columns});
  for (size_t i = 0; i < layers.size(); ++i) {
    const Weights gate = body / "layers" / std::to_string(layers[i]) / "ffn" / "gate";
    const std::vector<float> numbers = read_numbers(gate, "tid2eid", {vocab, top_k});
    for (size_t at = 0; at < numbers.size(); ++at) {
      const auto row = static_cast<int64_t>(at) / top_k, column = static_cast<int64_t>(at) % top_k;
      table.f32()[row * columns + static_cast<int64_t>(i) * top_k + column] = numbers[at];
    }
  }
  if (context.dry) return {};
  memory = moved_to(std::move(memory), context.memory);
  const Tensor moved(memory.data(), &kFloat32, table.shape);
  return Embedding(moved, std::move(memory));
}

std::vector<std::string> read_attention_kinds(const Config& config, int layers) {
  auto kinds = config.get("layer_types", std::vector<std::string>{});
  const auto ratios = config.get("compress_ratios", std::vector<int>{});
  if (kinds.empty()) {
    for (const int ratio : ratios) {
      if (ratio != 0 && ratio != 4 && ratio != 128)
        config.refuse("compress_ratios", fmt::format("unknown ratio {} (expected 0, 4 or 128)", ratio));
      kinds.emplace_back(ratio == 0 ? kSliding : ratio == 4 ? kSparse : kHeavy);
    }
  }
  const char* key = config.has("layer_types") ? "layer_types" : "compress_ratios";
  if (kinds.empty()) {
    for (int i = 0; i < layers; ++i) kinds.emplace_back(i >= 2 && i % 2 == 1 ? kSparse : kHeavy);
  }
  // Published lists go on with the prediction layers.
  if (kinds.size() < static_cast<size_t>(layers))
    config.refuse(key, fmt::format("has {} entries for {} layers", kinds.size(), layers));
  kinds.resize(static_cast<size_t>(layers));
  for (const std::string& kind : kinds) {
    if (kind == kSliding || kind == kSparse || kind == kHeavy) continue;
    config.refuse(key, fmt::format("unknown type '{}' (expected {}, {} or {})", kind, kSliding, kSparse, kHeavy));
  }
  return kinds;
}

std::vector<bool> read_hashed_layers(const Config& config, int layers) {
  const auto kinds = config.get("mlp_layer_types", std::vector<std::string>{});
  const int first = config.get("num_hash_layers", 3);
  std::vector<bool> hashed;
  if (!kinds.empty() && kinds.size() < static_cast<size_t>(layers))
    config.refuse("mlp_layer_types", fmt::format("has {} entries for {} layers", kinds.size(), layers));
  for (int i = 0; i < layers; ++i) {
    if (!kinds.empty() && kinds[i] != "hash_moe" && kinds[i] != "moe")
      config.refuse("mlp_layer_types", fmt::format("unknown type '{}' (expected hash_moe or moe)", kinds[i]));
    hashed.push_back(kinds.empty() ? i < first : kinds[i] == "hash_moe");
  }
  return hashed;
}

// Tokens per entry of a kind of layers.
int read_rate(const Config& config, const char* kind, const char* old_key, int fallback) {
  const Config rates = config.object("compress_rates");
  for (const char* other : {kSparse, kHeavy}) rates.ignore(other);
  refuse_unread(rates);
  return read_positive(config, old_key, config.get(old_key, rates.get(kind, fallback)));
}

// Rotation 0 is that of layers without entries, 1 that of layers with them.
std::vector<RopeSpec> read_ropes(const Config& config, int head_dim, int max_positions) {
  const double partial =
      config.has("qk_rope_head_dim") ? static_cast<double>(config.at<int>("qk_rope_head_dim")) / head_dim : 64.0 / 512;
  const double compress_theta = config.get("compress_rope_theta", 160000.0);
  const Config given = config.object("rope_parameters");
  std::vector<RopeSpec> ropes;
  if (given.has("main") && given.has("compress")) {
    for (const char* kind : {"main", "compress"}) {
      ropes.push_back(
          read_rope(config, head_dim, max_positions, {.partial = partial, .stray_theta = true, .layer_type = kind}));
    }
  } else {
    Json plain{{"rope_theta", config.get("rope_theta", 10000.0)},
               {"partial_rotary_factor", config.get("partial_rotary_factor", partial)}};
    Json scaled{{"partial_rotary_factor", plain["partial_rotary_factor"]}};
    const Config scaling = config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
    for (const auto& [key, value] : scaling.values().items()) scaled[key] = value;
    scaled["rope_theta"] = compress_theta;
    const bool yarn = scaling.get("rope_type", scaling.get("type", std::string())) == "yarn";
    // The published model does not scale cosines and sines.
    if (yarn && !scaled.contains("attention_factor")) scaled["attention_factor"] = 1.0;
    for (const Json& values : {plain, scaled}) {
      const Config one(Json{{"rope_parameters", values}}, config.origin());
      ropes.push_back(read_rope(one, head_dim, max_positions));
    }
  }
  for (const RopeSpec& rope : ropes) {
    if (depends_on_length(rope)) config.refuse("rope_parameters", rope.type + " is not supported for this family");
  }
  if (ropes[0].rotary_dim != ropes[1].rotary_dim)
    config.refuse("rope_parameters", "must rotate equally many dimensions");
  if (config.has("qk_rope_head_dim") && config.at<int>("qk_rope_head_dim") != ropes[0].rotary_dim) {
    config.refuse("qk_rope_head_dim", fmt::format("must be {} like partial_rotary_factor", ropes[0].rotary_dim));
  }
  return ropes;
}

CompressedAttentionSpec read_attention(const Config& config, const DecoderSpec& s) {
  const auto positive = [&](const char* key, int fallback) {
    return read_positive(config, key, config.get(key, fallback));
  };
  CompressedAttentionSpec a;
  a.heads = s.attention.heads;
  if (s.attention.kv_heads != 1) config.refuse("num_key_value_heads", "must be 1");
  a.head_dim = positive("head_dim", 512);
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  a.q_rank = positive("q_lora_rank", 1024);
  a.groups = positive("o_groups", 8);
  a.out_rank = positive("o_lora_rank", 1024);
  if (a.heads % a.groups != 0)
    config.refuse("o_groups", fmt::format("{} does not divide num_attention_heads {}", a.groups, a.heads));
  a.window = positive("sliding_window", 128);
  a.norm = s.norm;
  a.compressor.index_heads = positive("index_n_heads", 64);
  a.compressor.index_dim = positive("index_head_dim", 128);
  a.compressor.index_top_k = positive("index_topk", 512);
  return a;
}

MoeSpec read_moe(const Config& config) {
  MoeSpec m;
  m.experts = read_positive(config, "n_routed_experts", config.at<int>("n_routed_experts"));
  m.top_k = read_positive(config, "num_experts_per_tok", config.at<int>("num_experts_per_tok"));
  if (m.top_k > m.experts)
    config.refuse("num_experts_per_tok", fmt::format("{} is more than the {} experts", m.top_k, m.experts));
  m.inner = read_positive(config, "moe_intermediate_size", config.at<int>("moe_intermediate_size"));
  const auto score = config.get("scoring_func", std::string("sqrtsoftplus"));
  if (score != "sqrtsoftplus" && score != "sigmoid")
    config.refuse("scoring_func", fmt::format("unknown '{}' (expected sqrtsoftplus or sigmoid)", score));
  m.score = score == "sigmoid" ? ops::Routing::Score::kSigmoid : ops::Routing::Score::kSqrtSoftplus;
  if (config.get("topk_method", std::string("noaux_tc")) != "noaux_tc")
    config.refuse("topk_method", "must be noaux_tc");
  if (!config.get("norm_topk_prob", true)) config.refuse("norm_topk_prob", "false is not supported");
  m.normalize = true;
  m.smallest_sum = 1e-20f;
  m.scale = config.get("routed_scaling_factor", 1.5f);
  if (config.get("n_shared_experts", 1) != 1) config.refuse("n_shared_experts", "must be 1");
  m.shared_inner = m.inner;
  m.clamp = m.shared_clamp = config.get("swiglu_limit", 10.0f);
  if (!(m.clamp > 1)) config.refuse("swiglu_limit", "must be above 1");
  m.clamp_first = true;
  m.activation = read_activation(config, "hidden_act", "silu");
  if (m.activation != ops::Activation::kSilu) config.refuse("hidden_act", "must be silu");
  m.gate = "w1", m.up = "w3", m.down = "w2";
  m.shared_in = {"w1", "w3"};
  m.shared_out = "w2";
  return m;
}

StreamWeights::Spec read_streams(const Config& config, const NormSpec& norm) {
  StreamWeights::Spec s;
  s.streams = read_positive(config, "hc_mult", config.get("hc_mult", 4));
  s.iterations = read_positive(config, "hc_sinkhorn_iters", config.get("hc_sinkhorn_iters", 20));
  if (s.streams > 64) config.refuse("hc_mult", "must be at most 64");
  if (s.iterations > 1000) config.refuse("hc_sinkhorn_iters", "must be at most 1000");
  s.eps = static_cast<float>(config.get("hc_eps", 1e-6));
  if (!(s.eps > 0)) config.refuse("hc_eps", "must be positive");
  s.norm_eps = norm.eps;
  return s;
}

std::unique_ptr<AuxiliaryStream> make_streams(const Weights& body, const StreamWeights::Spec& spec, int layers,
                                              int64_t hidden, Embedding tables, int64_t columns) {
  std::vector<StreamWeights> sublayers;
  for (int i = 0; i < 2 * layers; ++i) {
    const std::string name = i % 2 == 0 ? "hc_attn_" : "hc_ffn_";
    sublayers.emplace_back(body / "layers" / std::to_string(i / 2),
                           StreamWeights::Names{name + "fn", name + "base", name + "scale"}, spec, hidden, false);
  }
  const std::string name = body.has("hc_head_fn") ? "hc_head_" : "hc_head.hc_";
  StreamWeights head(body, {name + "fn", name + "base", name + "scale"}, spec, hidden, true);
  return std::make_unique<HyperConnections>(std::move(sublayers), std::move(head), spec, hidden, std::move(tables),
                                            columns);
}

// Replaces each layer by one of attention and one of experts.
void add_layers(DecoderSpec& s, const Layers& layers, const std::array<CompressedAttentionSpec, 3>& attention) {
  s.layers.clear();
  int64_t table_column = 0;
  for (size_t i = 0; i < layers.attention.size(); ++i) {
    const bool slides = layers.attention[i] == kSliding;
    LayerSpec mixer{.rope = slides ? 0 : 1, .sublayers = Sublayers::kTokenMixer};
    mixer.mixer_blend = {.kept = 0.0f, .added = 1.0f};
    mixer.path = fmt::format("layers.{}", i);
    const CompressedAttentionSpec own = attention[slides ? 0 : layers.attention[i] == kSparse ? 1 : 2];
    mixer.mixer = [own](const Weights& w, int hidden) {
      return std::make_unique<CompressedAttention>(w / "attn", own, hidden);
    };
    s.layers.push_back(mixer);
    LayerSpec experts{.moe = true, .sublayers = Sublayers::kMlp};
    experts.mlp_blend = {.kept = 0.0f, .added = 1.0f};
    experts.path = mixer.path;
    if (layers.hashed[i]) {
      experts.feed_forward = [moe = s.moe, first = table_column](const Weights& w, int hidden) {
        return std::make_unique<HashedExperts>(w / "ffn", moe, hidden, first);
      };
      table_column += s.moe.top_k;
    } else {
      experts.feed_forward = [moe = s.moe](const Weights& w, int hidden) {
        MoeSpec corrected = moe;
        corrected.correction = "gate.bias";
        corrected.correction_shape = {moe.experts};
        return experts_of("ffn", corrected)(w, hidden);
      };
    }
    s.layers.push_back(experts);
  }
}

void name_tensors(const LoadContext& context, DecoderSpec& s) {
  // Published checkpoints have no prefix; transformers writes one, and its own name of the embedding.
  s.names.body = context.checkpoint.find("embed.weight") != nullptr ? "" : "model";
  s.names.embedding = s.names.body.empty() ? "embed" : "embed_tokens";
  s.names.head = "head";
  s.names.attention_norm = "attn_norm";
  s.names.mlp_norm = "ffn_norm";
}

std::unique_ptr<Model> build(const Config& config, LoadContext& context, int max_len) {
  DecoderSpec s = read_sizes(config, "deepseek_v4",
                             {.inner = nullptr, .default_max_positions = 1048576, .heads_divide_hidden = false});
  s.norm.eps = static_cast<float>(config.get("rms_norm_eps", 1e-6));
  s.tied_head = config.get("tie_word_embeddings", false);
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (config.get(key, false)) config.refuse(key, "true is not supported");
  }
  const int depth = s.depth();
  const Layers layers{read_attention_kinds(config, depth), read_hashed_layers(config, depth)};
  std::array<CompressedAttentionSpec, 3> attention;
  attention.fill(read_attention(config, s));
  attention[1].compressor.rate = read_rate(config, kSparse, "compress_rate_csa", 4);
  attention[1].compressor.series = 2;
  // No text has more entries.
  int& top_k = attention[1].compressor.index_top_k;
  top_k = std::min(top_k, 1 + s.max_positions / attention[1].compressor.rate);
  attention[2].compressor.rate = read_rate(config, kHeavy, "compress_rate_hca", 128);
  s.ropes = read_ropes(config, attention[0].head_dim, s.max_positions);
  if (s.ropes[0].rotary_dim > attention[0].compressor.index_dim)
    config.refuse("index_head_dim", fmt::format("is below the {} rotated dimensions", s.ropes[0].rotary_dim));
  s.moe = read_moe(config);
  const StreamWeights::Spec streams = read_streams(config, s.norm);
  name_tensors(context, s);
  add_layers(s, layers, attention);
  std::vector<int> hashed;
  for (int i = 0; i < depth; ++i) {
    if (layers.hashed[i]) hashed.push_back(i);
  }
  s.auxiliary_stream = [=, vocab = s.vocab, top_k = s.moe.top_k](const Weights& body, const DecoderSpec& spec) {
    const int64_t columns = static_cast<int64_t>(hashed.size()) * top_k;
    Embedding tables = hashed.empty() ? Embedding() : load_tables(body, hashed, vocab, top_k);
    return make_streams(body, streams, depth, spec.hidden, std::move(tables), columns);
  };
  ignore_tensors(context, "mtp.");
  ignore_tensors(context, "model.mtp.");
  for (const char* key : {"num_nextn_predict_layers", "router_jitter_noise"}) config.ignore(key);
  return decoder_lm(std::move(s), context, max_len);
}

const ModelFamily family{
    .name = "deepseek_v4",
    .architectures = {"DeepseekV4ForCausalLM"},
    .build = build,
    .ignored =
        {
            {"expert_dtype"},  // the tensors show it
            // for the layers that predict further tokens
            {"dspark_block_size"},
            {"dspark_markov_rank"},
            {"dspark_noise_token_id"},
            {"dspark_target_layer_ids"},
        },
};
const Registry<ModelFamily> registered{family};

}  // namespace
}  // namespace sluice::models::deepseek_v4
