// Sizes, and what they refuse.
#include "scheduler/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "scheduler/prompt_modules.h"
#include "sluice/context.h"
#include "sluice/error.h"

namespace sluice {

namespace {

[[noreturn]] void refuse(const std::string& message, std::string param, std::string reason) {
  throw Error(ErrorCode::kInvalidRequest, message, std::move(param), std::move(reason));
}

// Contrastive search keeps the hidden states of a text.
void check_hidden_rows(const Request& request, const SchedulerOptions& options) {
  const int candidates = request.sampling.top_k;
  if (options.hidden_rows == 0) {
    refuse(
        "Invalid 'penalty_alpha': contrastive search needs --contrastive-search-tokens, and the engine was started "
        "without it.",
        "penalty_alpha", "unsupported_parameter");
  }
  if (candidates > options.max_num_seqs) {
    refuse(fmt::format("Invalid 'top_k': contrastive search takes at most {}, the sequences of one step.",
                       options.max_num_seqs),
           "top_k", "integer_above_max_value");
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const int completion = request.max_tokens_is_default ? 1 : request.sampling.max_tokens.value_or(1);
  const int64_t wanted = prompt + completion + candidates;
  if (wanted <= options.hidden_rows) return;
  refuse(
      fmt::format("Contrastive search has room for {} tokens (--contrastive-search-tokens). However, you requested {} "
                  "tokens ({} in the prompt, {} in the completion, {} candidates).",
                  options.hidden_rows, wanted, prompt, completion, candidates),
      prompt + candidates >= options.hidden_rows ? request.prompt_param : request.max_tokens_param,
      "context_length_exceeded");
}

}  // namespace

void check_fits(const Request& request, const SchedulerOptions& options) {
  const int64_t prompt = prompt_positions(request);
  const std::optional<int>& max_tokens = request.sampling.max_tokens;
  if (request.prompt.empty()) refuse("the prompt is empty", request.prompt_param, "invalid_value");
  if (max_tokens && *max_tokens < 1) refuse("max_tokens must be at least 1", "max_tokens", "integer_below_min_value");
  if (request.n < 1) refuse("n must be at least 1", "n", "integer_below_min_value");
  if (request.beams && request.beams->width > options.max_num_seqs) {
    refuse(fmt::format("num_beams must be at most {}, the sequences of one step", options.max_num_seqs), "num_beams",
           "integer_above_max_value");
  }
  if (request.best_of > options.max_num_seqs) {
    refuse(fmt::format("best_of must be at most {}, the sequences of one step", options.max_num_seqs), "best_of",
           "integer_above_max_value");
  }
  if (request.n > options.max_num_seqs) {
    refuse(fmt::format("n must be at most {}, the sequences of one step", options.max_num_seqs), "n",
           "integer_above_max_value");
  }
  const bool shifts = request.context_shift.value_or(false);
  if (shifts && !options.context_shift) {
    refuse("Invalid 'context_shift': true needs --context-shift, and the engine was started without it.",
           "context_shift", "unsupported_parameter");
  }
  if (request.context_keep.value_or(0) > 0 && !shifts) {
    refuse("Invalid 'n_keep': it needs 'context_shift', and an engine with --context-shift.", "n_keep",
           "unsupported_parameter");
  }
  if (request.context_keep.value_or(0) > most_kept(options)) {
    refuse(fmt::format("Invalid 'n_keep': expected at most {}, as some of the context's {} tokens must go.",
                       most_kept(options), options.max_model_len),
           "n_keep", "integer_above_max_value");
  }
  const int64_t wanted = prompt + (request.pooling ? 0 : shifts ? 1 : max_tokens.value_or(1));
  if (wanted > options.max_model_len) {
    refuse(fmt::format("This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
                       "prompt, {} in the completion). Please reduce the length of either one.",
                       options.max_model_len, wanted, prompt, wanted - prompt),
           prompt >= options.max_model_len ? request.prompt_param : request.max_tokens_param,
           "context_length_exceeded");
  }
  if (searches_contrastively(request.sampling)) check_hidden_rows(request, options);
  if (request.modules.empty()) return;
  const auto left_out = prompt - static_cast<int64_t>(request.prompt.size());  // positions
  const int64_t end =
      max_tokens ? std::min<int64_t>(prompt + *max_tokens, options.max_model_len) : options.max_model_len;
  const int64_t blocks = blocks_with_modules(request, end - left_out, options.block_size);
  if (blocks <= options.blocks) return;
  refuse(
      fmt::format("Invalid 'prompt_modules': with them the request may need {} blocks of the KV cache, which has {}.",
                  blocks, options.blocks),
      "prompt_modules", "invalid_value");
}

int most_kept(const SchedulerOptions& options) { return std::max(0, options.max_model_len - 4); }

int peak_blocks(int64_t tokens, int block_size, const BlockGroup& group, int max_num_batched_tokens) {
  const auto blocks_for = [=](int64_t count) { return static_cast<int>((count + block_size - 1) / block_size); };
  if (group.window == 0) return blocks_for(tokens);
  // A step's tokens and what the first of them sees, which may begin and end inside of blocks, and the block before.
  return std::min(blocks_for(tokens), blocks_for(int64_t{group.window} + max_num_batched_tokens) + 2);
}

int peak_blocks(int64_t tokens, int block_size, std::span<const BlockGroup> groups, int max_num_batched_tokens) {
  int blocks = 0;
  for (const BlockGroup& group : groups) blocks += peak_blocks(tokens, block_size, group, max_num_batched_tokens);
  return blocks;
}

}  // namespace sluice
