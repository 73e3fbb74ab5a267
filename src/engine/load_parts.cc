// Building a model, dry or for real, and the sizes of its steps.
#include "engine/load_parts.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "nn/loading/ignored_config_keys.h"
#include "nn/loading/stage.h"
#include "sluice/error.h"

namespace sluice {
namespace {

bool plain_weight(const std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".masked_bias") || name.ends_with(".attn.bias") ||
         name.ends_with(".attention.bias");
}

// Throws one Error that lists all tensors and settings that the model family did not use.
void check_all_used(const Config& config, const LoadContext& context) {
  std::string problems;
  try {
    context.finish(plain_weight);
  } catch (const Error& e) {
    problems = e.what();
  }
  std::string names;
  for (const std::string& key : unknown_config_keys(config, find_family(config).ignored)) {
    names += (names.empty() ? "" : ", ") + key;
  }
  if (!names.empty()) {
    problems += fmt::format("{}{}: {} not understood for this architecture", problems.empty() ? "" : "\n",
                            config.origin(), names);
  }
  if (!problems.empty()) throw Error(ErrorCode::kUnsupportedModel, problems);
}

}  // namespace

DType parse_dtype(std::string_view option, const std::string& name, DType automatic, std::string_view others) {
  if (name == "auto") return automatic;
  for (DType type : {&kFloat32, &kBFloat16, &kFloat16}) {
    if (type->name == name) return type;
  }
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("--{}: unknown value '{}' (expected one of: auto, float32, bfloat16, float16{})", option,
                          name, others));
}

DType checkpoint_dtype(const Checkpoint& checkpoint) {
  const std::string modern = checkpoint.config.get("dtype", std::string());
  const std::string old = checkpoint.config.get("torch_dtype", std::string());
  if (!modern.empty() && !old.empty() && modern != old) {
    checkpoint.config.refuse("torch_dtype", fmt::format("'{}' contradicts dtype '{}'", old, modern));
  }
  const std::string& said = modern.empty() ? old : modern;
  if (!said.empty() && said != "auto") return parse_dtype("dtype", said, nullptr);
  for (const auto& [name, entry] : checkpoint.tensors()) {
    if (entry.shape.rank() == 2) return entry.dtype;
  }
  return &kFloat32;
}

std::unique_ptr<Model> build_model(const LoadPlan& plan, LoadContext& context, int max_len) {
  const Config& config = plan.checkpoint->config;
  const ModelFamily& family = find_family(config);
  context.task = plan.task;
  std::unique_ptr<Model> model = family.build(config, context, max_len);
  if (plan.task == Task::kEmbed) {
    const OtherStage of_last(context, !context.stage.last());
    Pooler pooler{
        .pooling = plan.embedding.pooling.value_or(family.encoder ? ops::Pooling::kMean : ops::Pooling::kLast),
        .dense = load_dense(plan.embedding, context, model->shape().width)};
    model = pooled_model(std::move(model), std::move(pooler));
  }
  check_all_used(config, context);
  return model;
}

// The other tensors of the checkpoint are the model's, which checks them.
std::unique_ptr<Model> build_predictor(const LoadPlan& plan, LoadContext& context, const Model& model, int max_len) {
  const Config& config = plan.checkpoint->config;
  const ModelFamily& family = find_family(config);
  if (family.build_predictor == nullptr) {
    std::vector<std::string_view> known;
    for (const ModelFamily* other : Registry<ModelFamily>::all()) {
      if (other->build_predictor != nullptr) known.push_back(other->name);
    }
    std::ranges::sort(known);
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("the family {} has no layers that can draft (expected one of: {})", family.name,
                            fmt::join(known, ", ")));
  }
  std::unique_ptr<Model> predictor = family.build_predictor(config, context, model, max_len);
  context.finish([](std::string_view) { return true; });
  return predictor;
}

size_t workspace_bytes(const LoadPlan& plan, const LoadContext& context, int longest) {
  return plan.device->workspace_bytes({.tokens = plan.step_tokens,
                                       .sequences = plan.max_num_seqs,
                                       .length = longest,
                                       .widest_matmul = context.widest_matmul,
                                       .attention_heads = context.attention_heads,
                                       .attention_value_dim = context.attention_value_dim});
}

size_t step_bytes(const Model& model, const LoadContext& context, int tokens, int rows) {
  const auto floats = [](int64_t count) { return count > 0 ? static_cast<size_t>(count) * sizeof(float) + 64 : 0; };
  const int64_t results = context.stage.many() ? int64_t{rows} * model.shape().width : 0;
  return model.activation_bytes(tokens, rows) + floats(context.widest_exchange * tokens) + floats(results);
}

LoadContext context_for(const EngineOptions& options, const LoadPlan& plan, LoraSites* sites, bool dry,
                        Memory* memory) {
  return {.checkpoint = *plan.checkpoint,
          .queue = *plan.queue,
          .dtype = plan.dtype,
          .quantization = plan.quantization,
          .quantize_head = options.quantize_head,
          .fp8_activations = plan.fp8_activations,
          .dry = dry,
          .keep_types = plan.keep_types,
          .ranks = plan.ranks,
          .key_parts = options.decode_context_parallel_size,
          .expert_parallel = options.enable_expert_parallel,
          .stage = plan.stage,
          .memory = memory != nullptr ? *memory : plan.device->memory(),
          .lora = sites};
}

void note_model(LoadPlan& plan, const Model& model, LoadContext& context) {
  plan.shape = model.shape();
  plan.parameters = context.parameters;
  plan.weight_bytes = context.weight_bytes;
  plan.packed_sizes = std::move(context.packed_sizes);
  plan.packed_layout = std::move(context.packed_layout);
}

}  // namespace sluice
