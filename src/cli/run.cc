// sluice run: answers one prompt, or a file of requests in OpenAI's batch format.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>

#include "base/json.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/load_engine.h"
#include "server/api.h"

namespace sluice::cli::run_command {
namespace {

struct Arguments {
  EngineOptions engine;
  SamplingArguments sampling;
  std::vector<std::string> served_model_name;
  std::vector<std::string> words;  // [MODEL] PROMPT, or MODEL with --input
  std::string prompt, input, output;
  bool raw = false;
};

int run_prompt(Engine& engine, const Arguments& a) {
  const bool chat = engine.model().has_chat_template && !a.raw;
  Request request;
  request.prompt =
      chat ? engine.tokenize(engine.render_chat(ChatPrompt::user(a.prompt)), false) : engine.tokenize(a.prompt);
  request.sampling = a.sampling.resolve(engine.model());
  const Answer answer = generate(engine, std::move(request), [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  });
  fmt::print("\n");
  if (answer.finish.reason == FinishReason::kError) throw Error(ErrorCode::kInternal, answer.finish.message);
  return answer.finish.reason == FinishReason::kAbort ? 130 : 0;
}

// Runs the lines of a batch file. Keeps a bounded number of requests in the engine and writes results as they finish.
class BatchRun {
 public:
  BatchRun(Engine& engine, const Arguments& a, int in_flight)
      : api_(server::Models::single(engine, a.served_model_name), {}),
        in_flight_limit_(in_flight),
        input_(a.input),
        part_(a.output + ".part") {
    if (!input_) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot open the file", a.input));
    out_.open(part_, std::ios::binary | std::ios::trunc);
    if (!out_) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: cannot write the file", part_));
    total_bytes_ = std::filesystem::file_size(a.input);
  }

  // Returns the number of failed requests. The output file gets its name only when it is complete.
  int run(const std::string& output) {
    int number = 0;
    for (std::string line; std::getline(input_, line);) {
      ++number;
      read_bytes_ += line.size() + 1;
      if (line.find_first_not_of(" \t\r") != std::string::npos) submit(line, number);
    }
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return open_ == 0; });
    progress(true);
    out_.close();
    if (!out_) throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the file", part_));
    std::filesystem::rename(part_, output);
    return failed_;
  }

 private:
  void submit(const std::string& line, int number) {
    Json row, body;
    std::string path, id;
    try {
      row = parse_json(line);
      id = field(row, "custom_id");
      path = field(row, "url");
      if (field(row, "method") != "POST") throw Error(ErrorCode::kInvalidRequest, "'method' must be POST");
      if (!row.contains("body") || !row["body"].is_object())
        throw Error(ErrorCode::kInvalidRequest, "'body' must be an object");
    } catch (const Error& e) {
      const Json error = {{"code", "invalid_request"}, {"message", fmt::format("line {}: {}", number, e.what())}};
      std::unique_lock lock(mutex_);
      ++open_;
      finish(number, id, Json(nullptr), error);
      return;
    }
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return open_ < in_flight_limit_; });
      ++open_;
    }
    api_.complete(path, row["body"], [this, id, number](server::ApiResult result) {
      const Json response = {{"status_code", result.status},
                             {"request_id", fmt::format("batch_req_{}", number)},
                             {"body", std::move(result.body)}};
      const std::unique_lock lock(mutex_);
      finish(number, id, response, Json(nullptr));
    });
  }

  static std::string field(const Json& row, const char* name) {
    if (!row.is_object() || !row.contains(name) || !row[name].is_string()) {
      throw Error(ErrorCode::kInvalidRequest, fmt::format("'{}' must be a string", name));
    }
    return row[name].get<std::string>();
  }

  // Call with the mutex held.
  void finish(int number, const std::string& id, const Json& response, const Json& error) {
    const bool ok = error.is_null() && response["status_code"] == 200;
    failed_ += ok ? 0 : 1;
    ++done_;
    const Json row = {{"id", fmt::format("batch_req_{}", number)},
                      {"custom_id", id.empty() ? Json(nullptr) : Json(id)},
                      {"response", response},
                      {"error", error}};
    out_ << dump_json(row) << '\n';
    --open_;
    progress(false);
    wake_.notify_all();
  }

  // Shows a bar on standard error if that is a terminal. The bar is the fraction of the file that was read and is done.
  void progress(bool end) {
    if (::isatty(STDERR_FILENO) == 0) return;
    const double read =
        total_bytes_ > 0 ? std::min(1.0, static_cast<double>(read_bytes_) / static_cast<double>(total_bytes_)) : 1.0;
    const double share = done_ + open_ > 0 ? read * done_ / (done_ + open_) : read;
    constexpr int kWidth = 40;
    const int full = static_cast<int>(share * kWidth);
    fmt::print(stderr, "\r[{}{}] {} done, {} running, {} failed {}", std::string(full, '#'),
               std::string(kWidth - full, ' '), done_, open_, failed_, end ? "\n" : "");
  }

  server::Api api_;
  const int in_flight_limit_;
  std::ifstream input_;
  const std::string part_;
  std::ofstream out_;
  std::mutex mutex_;
  std::condition_variable wake_;
  int open_ = 0, done_ = 0, failed_ = 0;
  uint64_t total_bytes_ = 0, read_bytes_ = 0;
};

int run(Arguments a) {
  if (!a.words.empty() && a.input.empty()) {
    a.prompt = a.words.back();
    a.words.pop_back();
  }
  if (!a.words.empty()) a.engine.model = a.words.front();
  if (a.words.size() > 1) throw Error(ErrorCode::kInvalidRequest, "--input: only a model may be given besides it");
  if (a.input.empty() == a.prompt.empty())
    throw Error(ErrorCode::kInvalidRequest, "give either a prompt or --input FILE");
  if (a.input.empty() != a.output.empty())
    throw Error(ErrorCode::kInvalidRequest, "--input and --output must be given together");
  make_local(a.engine);
  // Twice the batch size keeps the engine full while results are written. This bounds the queue, however large `n` is.
  const int in_flight =
      std::min(2 * (a.engine.max_num_seqs > 0 ? a.engine.max_num_seqs : 512), a.engine.max_num_queued_reqs);
  a.engine.max_num_queued_reqs = std::numeric_limits<int>::max();
  const auto engine = load_engine(a.engine);
  if (!a.prompt.empty()) return run_prompt(*engine, a);
  const int failed = BatchRun(*engine, a, in_flight).run(a.output);
  if (failed > 0) fmt::print(stderr, "sluice: {} requests failed; see {}\n", failed, a.output);
  return failed == 0 ? 0 : 1;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  app.add_option("model_and_prompt", a->words,
                 "MODEL PROMPT, or PROMPT for the bundled demo model; with --input, only MODEL")
      ->expected(1, 2)
      ->type_name("[MODEL] [PROMPT]");
  app.add_option("--input", a->input, "file of requests in OpenAI's batch format, one per line");
  app.add_option("--output", a->output, "file for the results in OpenAI's batch format");
  app.add_option("--served-model-name", a->served_model_name, "model names that requests in --input may use")
      ->allow_extra_args(false)
      ->delimiter(',');
  app.add_flag("--raw", a->raw, "use the prompt as it is, without the chat template");
  add_engine_options(app, a->engine);
  add_sampling_options(app, a->sampling);
  return [a] { return run(*a); };
}

const Command command{"run", "answer one prompt, or a batch file", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::run_command
