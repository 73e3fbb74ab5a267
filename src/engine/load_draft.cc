// The draft model has the queue and the blocks of the model.
#include "engine/load_draft.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "engine/load_parts.h"
#include "nn/hidden_input.h"
#include "nn/loading/size_limits.h"

namespace sluice {
namespace {

[[noreturn]] void refuse_drafts(const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, "--speculative-config cannot be used: " + why);
}

// Ranks divide the draft model as they divide the model. In a pipeline rank 0 has all of it, since a step's drafts are
// made before the other stages know of the step.
bool has_draft(const LoadPlan& plan) { return !plan.stage.many() || (plan.stage.rank == 0 && plan.ranks.rank == 0); }

// Memory of the draft model's steps.
struct DraftSizes {
  size_t step = 0, workspace = 0;
};

DraftSizes sizes_of_draft(const Model& model, const LoadContext& context, const LoadPlan& draft, int longest) {
  return {.step = step_bytes(model, context, draft.step_tokens, draft.logit_rows),
          .workspace = workspace_bytes(draft, context, longest)};
}

// Layers that continue the model have its types.
void take_model_types(const LoadPlan& plan, LoadPlan& draft) {
  draft.checkpoint = plan.checkpoint;
  draft.dtype = plan.dtype;
  draft.quantization = plan.quantization;
  draft.fp8_activations = plan.fp8_activations;
  draft.keep_types = plan.keep_types;
}

void take_own_types(const EngineOptions& options, const LoadPlan& plan, LoadPlan& draft) {
  draft.checkpoint = open_checkpoint(plan.drafts->model, {.allow_bin = options.allow_bin});
  check_sizes(*draft.checkpoint);
  draft.dtype = parse_dtype("dtype", options.dtype, checkpoint_dtype(*draft.checkpoint));
  draft.fp8_activations = draft.checkpoint->fp8_activations;
  draft.keep_types = options.dtype == "auto" && draft.checkpoint->keep_types;
}

std::unique_ptr<Model> build_draft(const LoadPlan& draft, bool own_layers, LoadContext& context, const Model& model,
                                   int max_len) {
  return own_layers ? build_predictor(draft, context, model, max_len) : build_model(draft, context, max_len);
}

// The plan of the model that drafts, without blocks. It computes what `plan` computes, and a token more of a sequence
// that it has not seen.
LoadPlan plan_draft_model(const EngineOptions& options, const LoadPlan& plan, const Model& model, DraftSizes& sizes) {
  LoadPlan draft;
  const bool own_layers = plan.drafts->own_layers;
  own_layers ? take_model_types(plan, draft) : take_own_types(options, plan, draft);
  draft.backend = plan.backend;
  draft.device = plan.device;
  draft.queue = plan.queue;
  if (!plan.stage.many()) {
    draft.ranks = plan.ranks;
    draft.communicator = plan.communicator;
    draft.group = plan.group;
  }
  draft.kv_dtype = plan.kv_dtype;
  draft.block_size = plan.block_size;
  draft.max_num_seqs = draft.logit_rows = plan.max_num_seqs;
  draft.step_tokens = plan.step_tokens + plan.max_num_seqs;
  LoadContext context = context_for(options, draft, nullptr, /*dry=*/true);
  const std::unique_ptr<Model> built = build_draft(draft, own_layers, context, model, options.max_model_len);
  note_model(draft, *built, context);
  if (const int kept = draft.shape.kept_hidden; kept >= 0) {
    KvShape& shape = draft.shape.kv[static_cast<size_t>(kept)];
    shape = kept_in(draft.kv_dtype, shape);
  }
  const auto refuse = [](const std::string& why) { throw Error(ErrorCode::kUnsupportedModel, why); };
  if (!draft.shape.state.empty()) refuse("its layers are recurrent, and their state cannot go back");
  if (draft.shape.vocab != plan.shape.vocab) {
    refuse(
        fmt::format("its vocabulary has {} tokens (expected {}, as the model's)", draft.shape.vocab, plan.shape.vocab));
  }
  // The blocks of all ranks have the same groups, but only those that draft have memory for the draft model's keys.
  for (KvShape& shape : draft.shape.kv) shape.held = has_draft(plan);
  sizes = sizes_of_draft(*built, context, draft, draft.shape.max_positions);
  return draft;
}

// Prompts that either model distinguishes have no blocks in common.
void join_rope_classes(ModelShape& shape, const ModelShape& draft) {
  constexpr int kMostClasses = 1 << 8;
  shape.rope_class = [own = shape.rope_class, other = draft.rope_class](int prompt_len) {
    return own(prompt_len) + kMostClasses * other(prompt_len);
  };
}

Error own_layers_error(const Error& cause) {
  return {cause.code, fmt::format("--speculative-config: {}", cause.what()), "speculative-config", ""};
}

}  // namespace

Error draft_model_error(const Error& cause) {
  return {cause.code, fmt::format("--speculative-config: the draft model: {}", cause.what()), "speculative-config", ""};
}

void plan_drafts(const std::string& model, LoadPlan& plan) {
  if (!plan.drafts) return;
  const int ranks = plan.stage.many() ? 1 : plan.ranks.size;  // that divide the draft model
  if (const int given = plan.drafts->ranks.value_or(ranks); given != ranks) {
    refuse_speculative_config(
        fmt::format("draft_tensor_parallel_size {} (expected {}, as many as the draft model's ranks)", given, ranks));
  }
  if (plan.task != Task::kGenerate) refuse_drafts("the model does not generate text");
  if (!plan.shape.state.empty()) refuse_drafts(model + " has recurrent layers, whose state cannot go back");
  constexpr int kDrafting = 16;  // sequences that may have a whole draft in the same step
  plan.logit_rows = std::max(plan.logit_rows, std::min(plan.max_num_seqs, kDrafting) * (plan.drafts->tokens + 1));
}

size_t plan_draft(const EngineOptions& options, LoadPlan& plan, const Model& model) {
  if (!plan.drafts || (plan.drafts->model.empty() && !plan.drafts->own_layers)) return 0;
  DraftSizes sizes;
  try {
    plan.draft = std::make_shared<const LoadPlan>(plan_draft_model(options, plan, model, sizes));
  } catch (const Error& e) {
    throw plan.drafts->own_layers ? own_layers_error(e) : draft_model_error(e);
  }
  join_rope_classes(plan.shape, plan.draft->shape);
  if (!has_draft(plan)) return 0;
  plan.memory.rows.push_back(
      {"draft weights", plan.draft->weight_bytes,
       fmt::format("{} parameters as {}", plan.draft->parameters, plan.draft->weight_type()->name)});
  plan.memory.rows.push_back(
      {"draft step", sizes.step,
       fmt::format("activations of {} tokens, logits of {} rows", plan.draft->step_tokens, plan.draft->logit_rows)});
  return sizes.workspace;
}

void share_blocks(LoadPlan& plan) {
  if (plan.draft == nullptr) return;
  if (plan.draft->shape.max_positions < plan.max_model_len) {
    refuse_drafts(fmt::format(
        "the draft model {} has {} positions, and a sequence has up to {} tokens (expected "
        "--max-model-len {} or less)",
        plan.drafts->model, plan.draft->shape.max_positions, plan.max_model_len, plan.draft->shape.max_positions));
  }
  auto draft = std::make_shared<LoadPlan>(*plan.draft);
  draft->max_model_len = plan.max_model_len;
  draft->kv = plan.kv;
  draft->blocks = plan.blocks;
  plan.draft = std::move(draft);
}

std::unique_ptr<LoadedModel> load_draft(const EngineOptions& options, const LoadPlan& plan, const Model& model,
                                        const KvCache& whole) {
  if (plan.draft == nullptr || !has_draft(plan)) return nullptr;
  auto loaded = std::make_unique<LoadedModel>(LoadedModel{.plan = *plan.draft,
                                                          .packed = nullptr,
                                                          .adapters = nullptr,
                                                          .model = nullptr,
                                                          .kv = nullptr,
                                                          .states = nullptr,
                                                          .arena = nullptr});
  const LoadPlan& draft = loaded->plan;
  LoadContext context = context_for(options, draft, nullptr, /*dry=*/false);
  loaded->model = build_draft(draft, plan.drafts->own_layers, context, model, draft.max_model_len);
  draft.checkpoint->check_files();
  const DraftSizes sizes = sizes_of_draft(*loaded->model, context, draft, draft.max_model_len);
  loaded->kv = std::make_unique<KvCache>(whole, plan.shape.kv.size());
  loaded->states = std::make_unique<StateCache>(draft.shape.state, 0, draft.device->memory());
  loaded->arena = std::make_unique<Arena>(sizes.step, draft.device->memory());
  draft.queue->reserve_workspace(sizes.workspace);
  return loaded;
}

}  // namespace sluice
