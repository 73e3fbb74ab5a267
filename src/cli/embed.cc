// sluice embed: computes vectors or scores for lines of JSON.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <future>
#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/load_engine.h"
#include "sluice/engine.h"

namespace sluice::cli::embed_command {
namespace {

struct Arguments {
  EngineOptions engine;
  std::string prompt_name;
  int dimensions = 0;
  int truncate = 0;
};

std::string text_of(const Json& row, const char* name) {
  if (!row.contains(name) || !row[name].is_string()) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("'{}' must be a string", name));
  }
  return row[name].get<std::string>();
}

// A line is "text", {"text": ...}, or {"query": ..., "document": ...}.
PooledText read_line(const Engine& engine, const Arguments& a, const std::string& line) {
  const Json row = parse_json(line);
  if (row.is_object() && row.contains("query")) {
    return engine.encode(text_of(row, "query"), text_of(row, "document"), {.tokens = a.truncate});
  }
  if (!row.is_string() && !row.is_object()) throw Error(ErrorCode::kInvalidRequest, "expected a string or an object");
  const ModelInfo& model = engine.model();
  const std::string name = a.prompt_name.empty() ? model.default_prompt : a.prompt_name;
  const auto prompt = model.prompts.find(name);
  if (!name.empty() && prompt == model.prompts.end()) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("the model has no prompt '{}'", name));
  }
  const std::string text = row.is_string() ? row.get<std::string>() : text_of(row, "text");
  return engine.encode(name.empty() ? text : prompt->second + text, {}, {.tokens = a.truncate});
}

Json to_row(const PoolingResult& result, bool embeds) {
  if (result.reason != FinishReason::kStop) return {{"error", result.message.empty() ? "aborted" : result.message}};
  return {{embeds ? "embedding" : "scores", result.vectors.front()}, {"prompt_tokens", result.prompt_tokens}};
}

int run(Arguments& a) {
  make_local(a.engine);
  const auto engine = load_engine(a.engine);
  const bool embeds = engine->model().embeds();
  if (engine->model().task == Task::kGenerate && !embeds) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("{} generates text (use --task embed or --embedding-pooling to "
                                                        "get vectors)",
                                                        engine->model().name));
  }
  std::deque<std::future<Json>> open;  // answers in the order of the lines
  bool failed = false;
  const auto write_first = [&] {
    const Json row = open.front().get();
    open.pop_front();
    failed = failed || row.contains("error");
    fmt::print("{}\n", dump_json(row));
  };
  const size_t ahead = static_cast<size_t>(
      std::min(2 * (a.engine.max_num_seqs > 0 ? a.engine.max_num_seqs : 512), a.engine.max_num_queued_reqs));
  for (std::string line; std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (open.size() >= ahead) write_first();
    const auto answer = std::make_shared<std::promise<Json>>();
    open.push_back(answer->get_future());
    try {
      PoolingRequest request;
      request.param = "text";
      request.texts.push_back(read_line(*engine, a, line));
      request.dimensions = a.dimensions;
      engine->embed(std::move(request),
                    [answer, embeds](const PoolingResult& result) { answer->set_value(to_row(result, embeds)); });
    } catch (const Error& e) {
      answer->set_value({{"error", e.what()}});
    }
  }
  while (!open.empty()) write_first();
  return failed ? 1 : 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  app.add_option("--dimensions", a->dimensions, "keep only the first dimensions of each vector (0: all)");
  app.add_option("--prompt-name", a->prompt_name, "name of the model's prompt that is put before each text");
  app.add_option("--truncate", a->truncate, "cut texts to this many tokens (0: texts that are too long are errors)");
  add_engine_options(app, a->engine);
  return [a] { return run(*a); };
}

const Command command{"embed", "compute vectors or scores of lines of JSON on standard input", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::embed_command
