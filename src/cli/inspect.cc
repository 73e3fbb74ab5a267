// sluice inspect: shows what a checkpoint is and what it needs, without reading its weights.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "cli/command.h"
#include "engine/load.h"
#include "engine/text.h"
#include "sluice/error.h"

namespace sluice::cli::inspect_command {
namespace {

void print_tensors(const Checkpoint& checkpoint) {
  for (const auto& [name, entry] : checkpoint.tensors()) {
    fmt::print("  {:<56} {:<10} {}\n", name, entry.dtype->name, entry.shape.str());
  }
}

// Prints e.g. "bfloat16 291 tensors, 14.2 GiB", largest share first.
void print_types(const Checkpoint& checkpoint) {
  struct Share {
    int tensors = 0;
    size_t bytes = 0;
  };
  std::map<std::string_view, Share> shares;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    Share& share = shares[entry.dtype->name];
    ++share.tensors;
    share.bytes += entry.bytes;
  }
  std::vector<std::pair<std::string_view, Share>> sorted(shares.begin(), shares.end());
  std::ranges::stable_sort(sorted, std::greater<>(), [](const auto& s) { return s.second.bytes; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    fmt::print("{:<14} {} {} tensors, {}\n", i == 0 ? "stored" : "", sorted[i].first, sorted[i].second.tensors,
               format_bytes(sorted[i].second.bytes));
  }
}

void print_plan(const LoadPlan& plan) {
  fmt::print("family         {}\n", plan.shape.family);
  if (plan.task != Task::kGenerate) {
    fmt::print("task           {}, {} {}\n", to_string(plan.task), plan.shape.width,
               plan.task == Task::kEmbed ? "dimensions" : "labels");
  }
  fmt::print("parameters     {}\n", plan.parameters);
  if (plan.shape.kv.empty()) {
    fmt::print("layers         without keys and values\n");
  } else {
    fmt::print("layers         {}, {} KV heads of {}\n", plan.shape.kv.size(), plan.shape.kv.front().kv_heads,
               plan.shape.kv.front().head_dim);
  }
  fmt::print("context        {} tokens (the model's own limit: {})\n", plan.max_model_len, plan.shape.max_positions);
  fmt::print("compute        {}, KV cache {}, kernels {}\n", plan.dtype->name, plan.kv_dtype->name, plan.backend->name);
}

// Each part is inspected separately, so that an unsupported one does not hide the others.
int inspect(EngineOptions options, bool tensors) {
  make_local(options);
  std::vector<std::string> problems;
  const auto attempt = [&](const auto& look) {
    try {
      look();
    } catch (const Error& e) {
      problems.emplace_back(e.what());
    }
  };
  std::shared_ptr<const Checkpoint> checkpoint = open_checkpoint(options.model, {.allow_bin = options.allow_bin});
  fmt::print("model          {}\n", checkpoint->folder);
  attempt([&] {
    std::string names;
    for (const std::string& name : checkpoint->config.get("architectures", std::vector<std::string>{})) {
      names += (names.empty() ? "" : ", ") + name;
    }
    fmt::print("architecture   {}\n", names.empty() ? "not stated" : names);
  });
  print_types(*checkpoint);
  std::optional<LoadPlan> plan;
  attempt([&] {
    ThreadPool pool(1);
    plan = plan_load(options, pool);
    print_plan(*plan);
  });
  attempt([&] {
    const auto tokenizer = load_tokenizer(options, *checkpoint);
    const int beyond = plan ? std::max(0, tokenizer->vocab_size() - plan->shape.vocab) : 0;
    fmt::print("tokenizer      {}, {} tokens{}\n", tokenizer->kind(), tokenizer->vocab_size(),
               beyond > 0 ? fmt::format(", the last {} of which are not in the model", beyond) : "");
  });
  attempt([&] {
    const auto chat_template = load_chat_template(options, *checkpoint);
    fmt::print("chat template  {}\n", chat_template ? "yes" : "none");
    const AnswerSyntax syntax = find_answer_syntax(options, chat_template);
    fmt::print("tool calls     {}\n", syntax.tools != nullptr ? syntax.tools->name : "not known");
    fmt::print("thoughts       {}\n", syntax.reasoning != nullptr ? syntax.reasoning->name : "not known");
  });
  fmt::print("end tokens    ");
  for (const int32_t id : checkpoint->generation.eos_token_ids) fmt::print(" {}", id);
  fmt::print("\n");
  if (plan) {
    fmt::print("memory\n{}", plan->memory.table());
    for (const std::string& warning : plan->warnings) fmt::print("  {}\n", warning);
  }
  if (tensors) print_tensors(*checkpoint);
  if (!problems.empty()) fmt::print("problems\n");
  for (const std::string& problem : problems) fmt::print("  {}\n", problem);
  return problems.empty() ? 0 : 1;
}

std::function<int()> declare(CLI::App& app) {
  auto options = std::make_shared<EngineOptions>();
  auto tensors = std::make_shared<bool>(false);
  add_model(app, *options);
  add_engine_options(app, *options);
  app.add_flag("--tensors", *tensors, "list every tensor");
  return [options, tensors] { return inspect(*options, *tensors); };
}

const Command command{"inspect", "show what a checkpoint is and the memory it needs", declare};
const Command other{"show", "the same as inspect", declare};
const Registry<Command> registered{command}, registered_other{other};

}  // namespace
}  // namespace sluice::cli::inspect_command
