// sluice bench perplexity: how well a model predicts a file of documents, to check kernels and quantization.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <fstream>
#include <memory>

#include "base/json.h"
#include "cli/bench/bench.h"
#include "engine/ranks.h"
#include "engine/runner.h"
#include "engine/text.h"
#include "sluice/error.h"

namespace sluice::cli::bench_perplexity {
namespace {

struct Arguments {
  EngineOptions engine;
  std::string file;
  std::string end = "<|endoftext|>";
};

double log_probability(std::span<const float> logits, int32_t id) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v - top));
  return static_cast<double>(logits[static_cast<size_t>(id)] - top) - std::log(sum);
}

std::vector<std::vector<int32_t>> read_documents(const Arguments& a, const Tokenizer& tokenizer) {
  std::ifstream in(a.file);
  if (!in) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot open the file", a.file));
  std::vector<std::vector<int32_t>> documents;
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line);
    if (!row.is_object() || !row.contains("text") || !row["text"].is_string()) {
      throw Error(ErrorCode::kInvalidRequest,
                  fmt::format("{}:{}: expected {{\"text\": \"...\"}}", a.file, documents.size() + 1));
    }
    documents.push_back(tokenizer.encode(row["text"].get<std::string>() + a.end));
  }
  return documents;
}

int perplexity(Arguments a) {
  make_local(a.engine);
  constexpr int kChunk = 256;
  a.engine.max_num_batched_tokens = kChunk;
  a.engine.max_num_seqs = kChunk;
  ThreadPool pool(threads_of_rank(a.engine, 0));
  LoadedModel loaded = load_model(a.engine, pool);
  const auto tokenizer = load_tokenizer(a.engine, *loaded.plan.checkpoint);
  Runner runner(loaded);
  const auto start = std::chrono::steady_clock::now();
  double sum = 0;
  int64_t scored = 0;
  const std::vector<std::vector<int32_t>> documents = read_documents(a, *tokenizer);
  for (const std::vector<int32_t>& ids : documents) {
    if (static_cast<int>(ids.size()) > loaded.plan.max_model_len) {
      throw Error(ErrorCode::kInvalidRequest, fmt::format("a document of {} tokens is longer than the context of {}",
                                                          ids.size(), loaded.plan.max_model_len));
    }
    for_each_logits(runner, loaded.plan, loaded.plan.block_size, ids, kChunk,
                    [&](int position, std::span<const float> row) {
                      if (position + 1 >= static_cast<int>(ids.size())) return;
                      sum -= log_probability(row, ids[static_cast<size_t>(position) + 1]);
                      ++scored;
                    });
  }
  if (scored == 0) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: has no tokens to score", a.file));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  print_result({{"perplexity", std::exp(sum / static_cast<double>(scored))},
                {"documents", documents.size()},
                {"scored_tokens", scored},
                {"tokens_per_second", static_cast<double>(scored) / seconds},
                {"dtype", loaded.plan.dtype->name},
                {"backend", loaded.plan.backend->name}});
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  add_engine_options(app, a->engine);
  app.add_option("--file", a->file, "file with lines {\"text\": ...}; each document is scored separately")->required();
  app.add_option("--end", a->end, "text appended to every document")->capture_default_str();
  return [a] { return perplexity(*a); };
}

const BenchCommand command{"perplexity", "measure perplexity over a file of documents", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_perplexity
