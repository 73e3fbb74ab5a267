#include "engine/prompt_modules.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "engine/load.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr const char* kModulesField = "prompt_modules";

[[noreturn]] void refuse_modules(const std::string& path, const std::string& why,
                                 const char* reason = "invalid_value") {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid '{}': {}", path, why), path, reason);
}

void check_fields(const Request& request) {
  const auto excluded = [](const char* name, bool given) {
    if (given) refuse_modules(name, "it does not work with 'prompt_modules'.", "unsupported_parameter");
  };
  excluded("prompt_embeds", request.prompt_vectors != nullptr);
  excluded("prompt_logprobs", request.sampling.prompt_logprobs.has_value());
  excluded("truncate_prompt_tokens", request.truncate_prompt.has_value());
  excluded("context_shift", request.context_shift.value_or(false));
  excluded("session_id", !request.session.empty());
  excluded("kv_transfer_params", request.kv_transfer.has_value());
  excluded("pooling", request.pooling.has_value());
}

struct Placed {
  PromptModule module;
  size_t index = 0;  // as the request counts them
  int first = 0;     // token of the prompt
};

// The modules with their positions, in the order of these.
std::vector<Placed> placed(const Request& request) {
  std::vector<Placed> all;
  int64_t next = 0, tokens = 0;
  const auto length = static_cast<int64_t>(request.prompt.size());
  for (const PromptModule& module : request.modules) {
    const std::string path = fmt::format("{}[{}]", kModulesField, all.size());
    if (module.tokens < 1) refuse_modules(path + ".prompt", "it has no tokens.");
    if (tokens + module.tokens >= length)
      refuse_modules(request.prompt_param, "it has no tokens behind 'prompt_modules'.");
    const int64_t position = module.position < 0 ? next : module.position;
    next = position + module.tokens;
    if (module.position < -1 || next > std::numeric_limits<int>::max()) {
      refuse_modules(path + ".position", fmt::format("{} is no position (expected 0 or more).", position));
    }
    all.push_back({.module = {.tokens = module.tokens, .position = static_cast<int>(position)},
                   .index = all.size(),
                   .first = static_cast<int>(tokens)});
    tokens += module.tokens;
  }
  std::ranges::stable_sort(all, {}, [](const Placed& one) { return one.module.position; });
  return all;
}

}  // namespace

std::string why_no_modules(const LoadPlan& plan, bool draft_model) {
  const std::string& why = plan.shape.no_modules;
  if (!why.empty()) return fmt::format("the model's family, {}, cannot compute them: {}.", plan.shape.family, why);
  if (plan.kv.groups.size() > 1) return "the model's layers have different block tables.";
  if (!plan.kv.share.whole()) return "they do not work with --decode-context-parallel-size.";
  if (draft_model) return "they do not work with a draft model (--speculative-config); its method 'ngram' is accepted.";
  return {};
}

void settle_modules(Request& request, const std::string& why_not) {
  if (request.modules.empty()) return;
  if (!why_not.empty()) refuse_modules(kModulesField, why_not, "unsupported_parameter");
  check_fields(request);
  if (request.modules.size() > static_cast<size_t>(kMostPromptModules)) {
    refuse_modules(kModulesField,
                   fmt::format("{} modules (expected at most {}).", request.modules.size(), kMostPromptModules),
                   "array_above_max_length");
  }
  const std::vector<Placed> modules = placed(request);
  std::vector<TokenId> prompt;
  prompt.reserve(request.prompt.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    const Placed& one = modules[i];
    const auto end = [](const Placed& of) { return of.module.position + of.module.tokens; };
    if (i > 0 && one.module.position < end(modules[i - 1])) {
      const Placed& before = modules[i - 1];
      refuse_modules(fmt::format("{}[{}].position", kModulesField, one.index),
                     fmt::format("positions {} to {} overlap those of {}[{}], {} to {}.", one.module.position,
                                 end(one) - 1, kModulesField, before.index, before.module.position, end(before) - 1));
    }
    const auto first = request.prompt.begin() + one.first;
    prompt.insert(prompt.end(), first, first + one.module.tokens);
    request.modules[i] = one.module;
  }
  prompt.insert(prompt.end(), request.prompt.begin() + static_cast<int64_t>(prompt.size()), request.prompt.end());
  request.prompt = std::move(prompt);
}

void check_module_adapter(const Request& request, const RequestAdapter& adapter) {
  int tokens = 0;
  for (const PromptModule& module : request.modules) tokens += module.tokens;
  if (adapter.key.empty() || adapter.from >= tokens) return;
  refuse_modules(
      kModulesField,
      fmt::format("the adapter {} is turned on inside a module (expected in the prompt's own text).", request.adapter));
}

}  // namespace sluice
