// What all routes of the OpenAI API share: reading a request, its errors, its way to the engine.
#include "server/openai/openai.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <future>
#include <mutex>

#include "base/log.h"
#include "base/sha256.h"
#include "server/auth.h"
#include "server/openai/reading.h"

namespace sluice::server {
namespace {

// Text of so many bytes per token of context cannot fit: refused before any time is spent on tokenizing it.
constexpr size_t kBytesPerToken = 16;
constexpr size_t kBytesAlways = 4096;

Json parse_body(std::string_view body) {
  constexpr std::string_view kMessage = "We could not parse the JSON body of your request.";
  Json json;
  try {
    json = parse_json(body);
  } catch (const Error& e) {
    throw ApiError{.message = fmt::format("{} (HINT: {})", kMessage, quotable(e.what()))};
  }
  if (!json.is_object()) throw ApiError{.message = fmt::format("{} (HINT: it must be an object)", kMessage)};
  return json;
}

// A name that is the same as long as answers are made the same way.
std::string make_fingerprint(const ModelInfo& model) {
  const std::string text = fmt::format("{} {} {} {}", model.name, model.dtype, model.backend, model.created);
  return "fp_" + hex(sha256(text)).substr(0, 12);
}

std::optional<Endpoint> endpoint_of(std::string_view path) {
  if (path == "/v1/chat/completions") return kChat;
  if (path == "/v1/completions") return kCompletions;
  if (path == "/tokenize") return kTokenize;
  if (path == "/detokenize") return kDetokenize;
  if (path == "/v1/embeddings") return kEmbeddings;
  if (path == "/rerank" || path == "/v1/rerank" || path == "/v2/rerank") return kRerank;
  if (path == "/score" || path == "/v1/score") return kScores;
  return std::nullopt;
}

// Runs tasks where they come up; answers into a callback.
class OfflineReply final : public HttpReply {
 public:
  explicit OfflineReply(std::function<void(ApiResult)> done) : done_(std::move(done)) {}
  void send(HttpResponse response) override { done_({response.status, parse_json(response.body)}); }
  void start_stream(HttpResponse) override {}
  void write(std::string) override {}
  void end_stream(bool) override {}
  void run(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    task();
  }
  void on_abandoned(std::function<void()>) override {}

 private:
  std::recursive_mutex mutex_;
  const std::function<void(ApiResult)> done_;
};

// Whole answers to a number of seconds; nullopt when it is none.
std::optional<std::chrono::milliseconds> parse_seconds(std::string_view text) {
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) || seconds > 1e9) return std::nullopt;
  return std::chrono::milliseconds(std::max<int64_t>(1, static_cast<int64_t>(seconds * 1000)));
}

}  // namespace

OpenAiApi::OpenAiApi(Engine& engine, OpenAiOptions options)
    : engine_(engine),
      options_(std::move(options)),
      fingerprint_(make_fingerprint(engine.model())),
      running_(std::make_shared<RunningGenerations>()) {
  if (options_.model_names.empty()) options_.model_names.push_back(engine.model().name);
}

OpenAiApi::~OpenAiApi() { running_->detach_all(); }

void OpenAiApi::serve(std::string_view path, std::string_view body, const Caller& caller,
                      std::shared_ptr<HttpReply> reply) {
  try {
    serve_json(path, parse_body(body), caller, reply);
  } catch (const ApiError& error) {
    reply->send(to_response(error));
  }
}

// Admission: one of the places where errors are caught. Everything thrown on the way becomes an answer.
void OpenAiApi::serve_json(std::string_view path, const Json& body, const Caller& caller,
                           std::shared_ptr<HttpReply> reply) {
  try {
    const std::optional<Endpoint> endpoint = endpoint_of(path);
    if (!endpoint) {
      throw ApiError{
          .status = 404, .message = fmt::format("Unknown route: {}.", quotable(path)), .code = "unknown_url"};
    }
    Reading reading = read(*endpoint, body, caller);
    expect_task(*endpoint);
    switch (*endpoint) {
      case kEmbeddings:
        return PoolingCall::start(engine_, embeddings_job(reading), reply, running_);
      case kRerank:
        return PoolingCall::start(engine_, rerank_job(reading), reply, running_);
      case kScores:
        return PoolingCall::start(engine_, score_job(reading), reply, running_);
      case kTokenize:
        return reply->send(tokenize(reading));
      case kDetokenize:
        return reply->send(detokenize(reading));
      case kChat:
        return Generation::start(engine_, chat_job(std::move(reading)), reply, running_);
      case kCompletions:
        return Generation::start(engine_, completions_job(std::move(reading)), reply, running_);
    }
  } catch (const ApiError& error) {
    reply->send(to_response(error));
  } catch (const Error& error) {
    reply->send(to_response(to_api_error(error)));
  } catch (const std::bad_alloc&) {
    reply->send(to_response(out_of_memory()));
  } catch (const std::exception& error) {
    log::error("{}: {}", caller.request_id, error.what());
    reply->send(to_response(server_fault()));
  }
}

ApiResult OpenAiApi::complete(std::string_view path, const Json& body) {
  std::promise<ApiResult> promise;
  complete(path, body, [&](ApiResult result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

void OpenAiApi::complete(std::string_view path, const Json& body, std::function<void(ApiResult)> done) {
  static std::atomic<uint64_t> next{0};
  const auto reply = std::make_shared<OfflineReply>(std::move(done));
  if (!body.is_object()) {
    return reply->send(to_response({.message = "The body of a request must be a JSON object."}));
  }
  if (const auto stream = body.find("stream"); stream != body.end() && *stream == true) {
    return reply->send(to_response(unsupported_parameter("stream", "is not supported in a batch")));
  }
  serve_json(path, body, {.request_id = fmt::format("batch-{}", next++)}, reply);
}

OpenAiApi::Reading OpenAiApi::read(Endpoint endpoint, const Json& body, const Caller& caller) const {
  Reading reading;
  reading.request_id = caller.request_id;
  RequestFields& fields = reading.fields;
  fields.sampling = engine_.model().default_sampling;
  read_parameters(endpoint, body, engine_.model().vocab_size, fields, reading.unknown);
  if (fields.model.empty() && (endpoint & (kGeneration | kEmbeddings)) != 0) throw missing_parameter("model");
  const auto& names = options_.model_names;
  if (!fields.model.empty() && std::find(names.begin(), names.end(), fields.model) == names.end()) {
    throw model_not_found(fields.model);
  }
  if (fields.has_max_tokens && fields.sampling.max_tokens == 0 && !fields.echo) {
    throw ApiError{.message =
                       "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 "
                       "instead.",
                   .param = "max_tokens",
                   .code = "integer_below_min_value"};
  }
  if (!fields.stream_options.is_null() && !fields.stream) {
    throw invalid_value("stream_options", "Invalid 'stream_options': it needs 'stream' to be true.");
  }
  if (fields.stream && fields.sampling.prompt_logprobs) {
    throw invalid_value("prompt_logprobs", "Invalid 'prompt_logprobs': it cannot be streamed.");
  }
  reading.salt = cache_salt(caller.tenant, fields.cache_salt);
  std::optional<std::chrono::milliseconds> timeout = caller.timeout;
  if (options_.request_timeout.count() > 0)
    timeout = std::min(timeout.value_or(options_.request_timeout), options_.request_timeout);
  if (timeout) reading.deadline = std::chrono::steady_clock::now() + *timeout;
  return reading;
}

// Fields nobody knows: an error in strict mode, else a header that names them. Called when all of the body was looked
// at.
Headers OpenAiApi::judge_unknown(const Reading& reading) const {
  if (reading.unknown.empty()) return {};
  if (options_.strict) {
    throw ApiError{.message = fmt::format("Unrecognized request argument supplied: {}", quotable(reading.unknown[0]))};
  }
  // Names are the client's: only harmless characters go into a header.
  constexpr size_t kMaxNames = 8;
  std::string names;
  for (size_t i = 0; i < std::min(reading.unknown.size(), kMaxNames); ++i) {
    names += names.empty() ? "" : ", ";
    for (const char c : reading.unknown[i].substr(0, 64)) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         std::string_view("._[]-").find(c) != std::string_view::npos;
      names += plain ? c : '?';
    }
  }
  if (reading.unknown.size() > kMaxNames) names += ", ...";
  return {{"X-Sluice-Warning", "unknown fields ignored: " + names}};
}

Request OpenAiApi::base_request(const Reading& reading) const {
  Request request;
  request.id = reading.request_id;
  request.sampling = reading.fields.sampling;
  request.n = reading.fields.n;
  request.priority = reading.fields.priority;
  request.cache_salt = reading.salt;
  request.deadline = reading.deadline;
  return request;
}

std::vector<TokenId> OpenAiApi::tokenize_text(const std::string& text, bool add_special_tokens,
                                              const std::string& param) const {
  const auto context = static_cast<size_t>(engine_.model().max_model_len);
  if (text.size() > std::max(context * kBytesPerToken, kBytesAlways)) {
    throw ApiError{.message = fmt::format("This model's maximum context length is {} tokens. However, your {} has {} "
                                          "bytes of text, which is more than {} tokens can hold.",
                                          context, param, text.size(), context),
                   .param = param,
                   .code = "context_length_exceeded"};
  }
  return engine_.tokenize(text, add_special_tokens);
}

// `what` is "messages" or "prompt". OpenAI's wordings, with and without a wish for the completion's length. A default
// length that nobody asked for gives way to the context.
void OpenAiApi::fit_context(const RequestFields& fields, std::string_view what, Request& request) const {
  const int64_t context = engine_.model().max_model_len;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) {
    throw invalid_value(request.prompt_param, fmt::format("Invalid '{}': it has no tokens.", request.prompt_param));
  }
  const bool asked = fields.has_max_tokens || fields.has_max_completion_tokens;
  if (!asked && request.sampling.max_tokens) {
    request.sampling.max_tokens =
        static_cast<int>(std::clamp<int64_t>(context - prompt, 1, *request.sampling.max_tokens));
  }
  const int64_t completion = request.sampling.max_tokens.value_or(1);
  if (prompt + completion <= context) return;
  std::string message = fmt::format("This model's maximum context length is {} tokens. However, ", context);
  if (prompt >= context) {
    message += fmt::format("your {0} resulted in {1} tokens. Please reduce the length of the {0}.", what, prompt);
  } else {
    message += fmt::format(
        "you requested {0} tokens ({1} in the {3}, {2} in the completion). Please reduce the length "
        "of the {3} or completion.",
        prompt + completion, prompt, completion, what);
  }
  throw ApiError{.message = std::move(message), .param = request.prompt_param, .code = "context_length_exceeded"};
}

Json OpenAiApi::model_card(const std::string& name) const {
  const ModelInfo& model = engine_.model();
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "sluice"},
          {"root", model.name},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len},
          {"task", to_string(model.task)}};
}

HttpResponse OpenAiApi::models() const {
  Json data = Json::array();
  for (const std::string& name : options_.model_names) data.push_back(model_card(name));
  return {.body = dump_json({{"object", "list"}, {"data", std::move(data)}})};
}

HttpResponse OpenAiApi::model(const std::string& name) const {
  const auto& names = options_.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) return to_response(model_not_found(name));
  return {.body = dump_json(model_card(name))};
}

std::vector<Route> OpenAiApi::routes() {
  const auto post = [this](std::string_view path, unsigned flags, std::string_view help) {
    return Route{.method = "POST",
                 .path = path,
                 .flags = flags,
                 .help = help,
                 .handle = [this, path](HttpRequest request, RequestContext context, std::shared_ptr<HttpReply> reply) {
                   Caller caller{.request_id = request.id, .tenant = std::move(context.tenant)};
                   if (request.count("X-Request-Timeout") > 0) {
                     caller.timeout = parse_seconds(request.header("X-Request-Timeout").value_or(""));
                     if (!caller.timeout) {
                       return reply->send(to_response(
                           {.message = "The header X-Request-Timeout must be one number of seconds above 0."}));
                     }
                   }
                   serve(path, request.body, caller, std::move(reply));
                 }};
  };
  const auto get = [](std::string_view path, std::string_view help, auto answer) {
    return Route{.method = "GET",
                 .path = path,
                 .flags = Route::kQuick,
                 .help = help,
                 .handle = [answer](HttpRequest, RequestContext context, std::shared_ptr<HttpReply> reply) {
                   reply->send(answer(context));
                 }};
  };
  return {post("/v1/chat/completions", Route::kGenerates, "chat completions"),
          post("/v1/completions", Route::kGenerates, "text completions"),
          post("/v1/embeddings", Route::kGenerates, "vectors of texts"),
          post("/v1/rerank", Route::kGenerates, "documents by their relevance to a query"),
          post("/v2/rerank", Route::kGenerates, "the same"),
          post("/rerank", Route::kGenerates, "the same"),
          post("/v1/score", Route::kGenerates, "scores of pairs of texts"),
          post("/score", Route::kGenerates, "the same"),
          post("/tokenize", 0, "text or messages to token ids"),
          post("/detokenize", 0, "token ids to text"),
          get("/v1/models", "the served models", [this](const RequestContext&) { return models(); }),
          get("/v1/models/*", "one model", [this](const RequestContext& context) { return model(context.suffix); })};
}

}  // namespace sluice::server
