// OpenAI's API (and vLLM's additions to it) over an engine: requests in JSON to answers in JSON. Usable without HTTP:
//
//   OpenAiApi api(engine, {.model_names = {"minnow"}});
//   ApiResult result = api.complete("/v1/chat/completions", {{"model", "minnow"}, {"messages", ...}});
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/generation.h"
#include "server/parameters.h"
#include "server/pooling_call.h"
#include "server/router.h"
#include "sluice/engine.h"

namespace sluice::server {

struct OpenAiOptions {
  std::vector<std::string> model_names;  // what clients may call the model; the first is reported. Empty: the engine's
  bool strict = false;                   // unknown fields are errors
  std::chrono::milliseconds request_timeout{0};  // longest life of a request; 0: none
};

struct ApiResult {
  int status = 200;
  Json body;
};

// Where a request comes from.
struct Caller {
  std::string request_id = {};                            // for logs
  std::string tenant = {};                                // prefix-cache blocks are shared within it only
  std::optional<std::chrono::milliseconds> timeout = {};  // what the client allows; the option above caps it
};

class OpenAiApi {
 public:
  OpenAiApi(Engine& engine, OpenAiOptions options);
  ~OpenAiApi();  // ends what is running, without an answer

  // Answers one request body. `path` is one of the routes' below. Parses, renders and tokenizes on the caller's thread;
  // the answer follows on the reply's. Throws only what a failing reply.send() throws.
  void serve(std::string_view path, std::string_view body, const Caller& caller, std::shared_ptr<HttpReply> reply);

  // The same without HTTP: for batches. Streams are refused. Any number of calls may be in progress.
  ApiResult complete(std::string_view path, const Json& body);
  void complete(std::string_view path, const Json& body, std::function<void(ApiResult)> done);  // may be called at once

  // Ends every running generation with the error.
  void abort_all(const ApiError& error) { running_->abort_all(error); }
  // Cancels them and lets go of their replies.
  void detach_all() { running_->detach_all(); }

  // The routes of this dialect; they call back into the object.
  std::vector<Route> routes();

  const std::string& model_name() const { return options_.model_names.front(); }

 private:
  struct Reading;  // a request being read

  void serve_json(std::string_view path, const Json& body, const Caller& caller,
                  const std::shared_ptr<HttpReply>& reply);
  Reading read(Endpoint endpoint, const Json& body, const Caller& caller) const;
  Headers judge_unknown(const Reading& reading) const;
  GenerationJob chat_job(Reading reading) const;
  GenerationJob completions_job(Reading reading) const;
  PoolingJob embeddings_job(const Reading& reading) const;
  PoolingJob rerank_job(const Reading& reading) const;
  PoolingJob score_job(const Reading& reading) const;
  PoolingJob pairs_job(const Reading& reading, const std::vector<std::pair<std::string, std::string>>& pairs,
                       const std::string& first, const std::string& second) const;
  PooledText encode(const Reading& reading, std::string_view text, std::optional<std::string_view> pair,
                    const std::string& path) const;
  void expect_task(Endpoint endpoint) const;
  HttpResponse tokenize(const Reading& reading) const;
  HttpResponse detokenize(const Reading& reading) const;
  HttpResponse models() const;
  HttpResponse model(const std::string& name) const;
  Json model_card(const std::string& name) const;

  // Refuses text that cannot fit the context before it spends time on it, unless the text has at most `accepted` bytes.
  std::vector<TokenId> tokenize_text(const std::string& text, bool add_special_tokens, const std::string& param,
                                     size_t accepted = 4096) const;
  std::vector<TokenId> tokenize_chat(Reading& reading) const;
  Request base_request(const Reading& reading) const;
  void fit_context(const RequestFields& fields, std::string_view what, Request& request) const;

  Engine& engine_;
  OpenAiOptions options_;
  const std::string fingerprint_;
  const std::shared_ptr<RunningGenerations> running_;
};

}  // namespace sluice::server
