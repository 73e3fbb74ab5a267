// sluice logits: writes the raw logits of a token sequence, or its vector or scores, for comparison with other
// implementations.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/command.h"
#include "engine/ranks.h"
#include "engine/runner.h"
#include "formats/safetensors.h"
#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice::cli::logits_command {
namespace {

struct Arguments {
  EngineOptions engine;
  std::string ids;
  std::string output;
  std::string adapter;
  int chunk = 0;
};

std::vector<int32_t> parse_ids(const std::string& text) {
  std::istringstream in(text);
  std::vector<int32_t> ids;
  for (std::string word; in >> word;) {
    size_t used = 0;
    long long id = -1;
    try {
      id = std::stoll(word, &used);
    } catch (const std::exception&) {
      used = 0;
    }
    if (used != word.size() || id < 0 || id > INT32_MAX) {
      throw Error(ErrorCode::kInvalidRequest, fmt::format("--ids: '{}' is not a token id", word));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) throw Error(ErrorCode::kInvalidRequest, "--ids: needs at least one token id");
  return ids;
}

int logits(Arguments a) {
  make_local(a.engine);
  const std::vector<int32_t> ids = parse_ids(a.ids);
  const int length = static_cast<int>(ids.size());
  a.chunk = std::clamp(a.chunk > 0 ? a.chunk : length, 1, 512);
  a.engine.max_model_len = length;
  a.engine.max_num_batched_tokens = a.chunk;
  a.engine.max_num_seqs = a.chunk;  // every position's logits are needed
  if (!a.engine.lora_modules.empty()) {
    throw Error(ErrorCode::kInvalidRequest, "--lora-modules: this command takes one adapter, by --lora");
  }
  ThreadPool pool(threads_of_rank(a.engine, 0));
  std::shared_ptr<Adapter> adapter;
  if (!a.adapter.empty()) {
    adapter = read_adapter(a.adapter);
    a.engine.enable_lora = true;
    a.engine.max_loras = 1;
    a.engine.max_lora_rank = std::max(adapter->rank, 1);
  }
  LoadedModel loaded = load_model(a.engine, pool);
  const int vocab = loaded.plan.shape.vocab;
  for (const int32_t id : ids) {
    if (id >= vocab)
      throw Error(ErrorCode::kInvalidRequest, fmt::format("--ids: {} must be below the vocabulary size {}", id, vocab));
  }
  Runner runner(loaded);
  int adapter_begin = -1;
  if (adapter != nullptr) {
    adapter_begin = adapter_from(*adapter, ids);
    name_modules(*adapter, *loaded.plan.checkpoint);
    check_adapter(*adapter, *loaded.adapters, *loaded.plan.checkpoint);
    runner.add_adapter(adapter);
    prepare_adapter(*adapter, *loaded.adapters, *loaded.plan.checkpoint, *loaded.plan.queue);
    runner.place_adapter(*adapter, 0);
  }
  const bool pooled = loaded.plan.task != Task::kGenerate;
  if (pooled && a.chunk < length)
    throw Error(ErrorCode::kInvalidRequest,
                "--chunk: must be at least the number of ids for this model, which takes texts in one step");
  const int rows = pooled ? 1 : length, width = pooled ? loaded.plan.shape.width : vocab;
  std::vector<float> all(static_cast<size_t>(rows) * static_cast<size_t>(width));
  for_each_logits(
      runner, loaded.plan, loaded.plan.block_size, ids, a.chunk,
      [&](int position, std::span<const float> row) {
        std::copy(row.begin(), row.end(), all.begin() + static_cast<ptrdiff_t>(position) * width);
      },
      adapter_begin < 0 ? -1 : 0, adapter_begin);
  const NamedTensor out{pooled ? "vector" : "logits", Tensor(all.data(), &kFloat32, {rows, width})};
  write_safetensors(a.output, {&out, 1});
  fmt::print("{}: {} fp32 [{}, {}]\n", a.output, out.name, rows, width);
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  add_engine_options(app, a->engine);
  app.add_option("--ids", a->ids, "token ids, separated by spaces")->required();
  app.add_option("--lora", a->adapter, "folder or GGUF file of an adapter (LoRA) that changes the model");
  app.add_option("--chunk", a->chunk, "tokens per step (0: all in one step, at most 512)");
  app.add_option("-o,--output", a->output, "safetensors file to write to")->required();
  return [a] { return logits(*a); };
}

const Command command{"logits", "write the logits of a token sequence, or its vector, to a safetensors file", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::logits_command
