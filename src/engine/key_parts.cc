#include "engine/key_parts.h"

#include <fmt/core.h>

#include <string>

#include "sluice/error.h"
#include "speculative/options.h"

namespace sluice {
namespace {

std::string asked_for(const EngineOptions& o) {
  return fmt::format("--decode-context-parallel-size {}", o.decode_context_parallel_size);
}

}  // namespace

void check_key_parts(const EngineOptions& o) {
  const int parts = o.decode_context_parallel_size, ranks = o.tensor_parallel_size;
  if (o.cp_kv_cache_interleave_size < 1 || o.block_size % o.cp_kv_cache_interleave_size != 0) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--cp-kv-cache-interleave-size {}: does not divide --block-size {}",
                            o.cp_kv_cache_interleave_size, o.block_size));
  }
  if (parts < 1 || ranks % parts != 0) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("{}: does not divide --tensor-parallel-size {}", asked_for(o), ranks));
  }
  if (parts == 1) return;
  const auto refuse = [&](const std::string& option, const char* why) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{} cannot be used with {}: {}", option, asked_for(o), why));
  };
  const auto drafts = parse_speculative_config(o.speculative_config);
  if (drafts && drafts->own_layers) {
    refuse("--speculative-config with the method mtp", "its hidden states are not divided (expected another method)");
  }
  if (drafts && !drafts->model.empty()) {
    refuse("--speculative-config with a draft model", "its keys are not divided (expected the method ngram)");
  }
}

void check_key_parts(const EngineOptions& o, const LoadPlan& plan) {
  const int parts = o.decode_context_parallel_size;
  if (parts == 1) return;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: {}", asked_for(o), why));
  };
  if (plan.task != Task::kGenerate) {
    refuse(fmt::format("the model was loaded with --task {} (expected generate)", to_string(plan.task)));
  }
  const int longest = o.max_model_len > 0 ? o.max_model_len : plan.shape.max_positions;
  if (const int most = plan.shape.selected; most > 0 && longest > most) {
    refuse(fmt::format("layers select {0} tokens of longer texts (expected --max-model-len of at most {0})", most));
  }
  if (plan.shape.kv.empty()) refuse(fmt::format("the family {} caches no keys", plan.shape.family));
  for (size_t i = 0; i < plan.shape.kv.size(); ++i) {
    const int copies = plan.shape.kv[i].copies;
    if (copies % parts == 0) continue;
    refuse(
        fmt::format("{} of --tensor-parallel-size {} ranks can divide the keys of attention layer {} (expected a "
                    "multiple of {}: more ranks than key heads, or latent attention, without biases by distance)",
                    copies, o.tensor_parallel_size, i, parts));
  }
}

ops::KeyShare key_share(const EngineOptions& o, const Ranks& ranks) {
  const int parts = o.decode_context_parallel_size;
  return {.run = o.cp_kv_cache_interleave_size, .parts = parts, .part = ranks.rank % parts};
}

std::shared_ptr<Communicator> join_key_ranks(const EngineOptions& o, const LoadPlan& plan) {
  const int parts = o.decode_context_parallel_size;
  if (parts == 1 || plan.group == nullptr) return nullptr;
  if (parts == plan.group->size()) return plan.group;
  return plan.group->group(plan.group->rank() / parts * parts, parts);
}

// Blocks have whole rounds of runs, so slots are dealt like positions.
void to_own_slots(const ops::KeyShare& share, std::span<int32_t> slots) {
  if (share.whole()) return;
  for (int32_t& slot : slots) slot = share.has(slot) ? static_cast<int32_t>(share.count(slot)) : -1;
}

}  // namespace sluice
