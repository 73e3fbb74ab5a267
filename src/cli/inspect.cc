// sluice inspect: what a checkpoint is and what it would need, without reading its weights.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/command.h"
#include "engine/load.h"
#include "engine/text.h"

namespace sluice::cli {
namespace {

void print_tensors(const Checkpoint& checkpoint) {
  for (const auto& [name, entry] : checkpoint.tensors()) {
    fmt::print("  {:<56} {:<10} {}\n", name, entry.dtype->name, entry.shape.str());
  }
}

int inspect(EngineOptions options, bool tensors) {
  if (options.model.empty()) options.model = bundled_model();
  ThreadPool pool(1);
  const LoadPlan plan = plan_load(options, pool);
  const auto tokenizer = load_tokenizer(options, *plan.checkpoint);
  const auto chat_template = load_chat_template(options, *plan.checkpoint);
  fmt::print("model          {}\n", plan.checkpoint->folder);
  fmt::print("family         {}\n", plan.shape.family);
  fmt::print("parameters     {}\n", plan.parameters);
  fmt::print("layers         {}, {} KV heads of {}\n", plan.shape.kv.size(), plan.shape.kv.front().kv_heads,
             plan.shape.kv.front().head_dim);
  fmt::print("context        {} tokens (the model's own limit: {})\n", plan.max_model_len, plan.shape.max_positions);
  fmt::print("compute        {}, KV cache {}, kernels {}\n", plan.dtype->name, plan.kv_dtype->name, plan.backend->name);
  fmt::print("tokenizer      {}, {} tokens\n", tokenizer->kind(), tokenizer->vocab_size());
  fmt::print("chat template  {}\n", chat_template ? "yes" : "none");
  fmt::print("end tokens    ");
  for (const int32_t id : plan.checkpoint->generation.eos_token_ids) fmt::print(" {}", id);
  fmt::print("\nmemory\n{}", plan.memory.table());
  if (tensors) print_tensors(*plan.checkpoint);
  return 0;
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
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli
