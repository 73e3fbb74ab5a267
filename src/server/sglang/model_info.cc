// /get_model_info and /health_generate, for SGLang's clients.
#include "server/engine_request.h"
#include "server/rows.h"
#include "server/sglang/dialect.h"

namespace sluice::server::sglang::model_info {
namespace {

constexpr std::chrono::seconds kMostSeconds{20};  // of a probe

void show(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  const ModelInfo& model = call.info();
  call.send({.body = dump_json({{"model_path", model.path},
                                {"tokenizer_path", model.path},
                                {"is_generation", model.task == Task::kGenerate},
                                {"preferred_sampling_params", nullptr},
                                {"weight_version", "default"},
                                {"has_image_understanding", false},
                                {"has_audio_understanding", false},
                                {"model_type", model.family}})});
}

// Answers when there is a token, whatever it is.
class ProbeFormat final : public AnswerFormat {
 public:
  std::string on_event(int, Event) override { return {}; }
  std::string stream_end() override { return {}; }
  std::string stream_error(const ApiError&) override { return {}; }
  std::string body() override { return R"({"status":"ok"})"; }
  HttpResponse error_response(const ApiError& error) override {
    ApiError unhealthy = error;
    unhealthy.status = 503;
    return to_response(unhealthy, kSglang);
  }
};

void probe(Call& call) {
  if (call.model.name.empty()) throw model_not_named(call.models.names());
  const auto end = call.arrived + kMostSeconds;
  const auto deadline = call.deadline ? std::min(*call.deadline, end) : end;
  if (call.info().task != Task::kGenerate) {
    PoolingJob job{.request = {.id = call.request_id, .texts = {{.tokens = {0}}}, .deadline = deadline},
                   .body = [](const PoolingResult&) { return std::string(R"({"status":"ok"})"); },
                   .headers = {}};
    return call.embed(std::move(job));
  }
  Request request;
  request.id = call.request_id;
  request.prompt = {0};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 1;
  request.deadline = deadline;
  GenerationJob job;
  job.requests.push_back(std::move(request));
  job.format = std::make_unique<ProbeFormat>();
  call.generate(std::move(job));
}

const EndpointInfo info{.name = "sglang model_info",
                        .dialect = &kSglang,
                        .method = "GET",
                        .paths = {"/get_model_info", "/model_info"},
                        .flags = Route::kQuick,
                        .help = "the model (?model=NAME), for SGLang's clients",
                        .run = show};
const EndpointInfo health{.name = "sglang health_generate",
                          .dialect = &kSglang,
                          .method = "GET",
                          .paths = {"/health_generate"},
                          .flags = Route::kGenerates,
                          .help = "200 if the model (?model=NAME) computes a token within 20 seconds, else 503",
                          .needs_engine = [](const Json&) { return true; },
                          .run = probe};
const Registry<EndpointInfo> registered_info{info}, registered_health{health};

}  // namespace
}  // namespace sluice::server::sglang::model_info
