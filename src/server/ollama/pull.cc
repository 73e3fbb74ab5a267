// /api/pull: downloads a model and serves it, if the operator allows that; see server/pulls.h.
#include <fmt/core.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/endpoint.h"
#include "server/ollama/dialect.h"
#include "server/ollama/models.h"
#include "server/pulls.h"
#include "server/rows.h"

namespace sluice::server::ollama::pull {
namespace {

struct PullFields {
  std::string model, name;  // the newer and the older field
  bool stream = true;
};

std::string line(const Json& value) { return dump_json(value) + "\n"; }
std::string status_line(std::string_view status) { return line({{"status", status}}); }

std::string file_line(const PullFile& file) {
  const std::string digits = file.digest.substr(file.digest.find(':') + 1);
  return line({{"status", "pulling " + digits.substr(0, 12)},
               {"digest", file.digest},
               {"total", file.size},
               {"completed", file.done}});
}

HttpResponse stream_head(Headers headers, std::string body) {
  headers.emplace_back("Cache-Control", "no-cache");
  headers.emplace_back("X-Accel-Buffering", "no");
  return {.content_type = "application/x-ndjson", .body = std::move(body), .headers = std::move(headers)};
}

// Prints a download for one client. What it hears is printed on the reply's thread.
class PullCall final : public RunningCall, public PullListener, public std::enable_shared_from_this<PullCall> {
 public:
  PullCall(const Call& call, std::shared_ptr<Pulls> pulls, bool stream)
      : pulls_(pulls),
        running_(call.running),
        stream_(stream),
        headers_(call.warnings()),
        deadline_(call.deadline),
        reply_(call.reply) {}
  ~PullCall() override { running_->remove(this); }

  // Throws ApiError, and then answers nothing.
  static void start(const Call& call, const std::shared_ptr<Pulls>& pulls, const std::string& model, bool stream) {
    const auto self = std::make_shared<PullCall>(call, pulls, stream);
    call.running->add(self);
    // Weak: the reply must not keep the call alive.
    call.reply->on_abandoned([weak = std::weak_ptr(self)] {
      if (const auto left = weak.lock()) left->leave();
    });
    try {
      pulls->join(model, self);
    } catch (...) {
      self->detach();  // the caller answers
      throw;
    }
    if (self->left_) self->leave();  // the client left before there was a download
    if (stream) self->post([self = self.get()] { self->begin(); });
  }

  std::optional<std::chrono::steady_clock::time_point> deadline() const override { return deadline_; }

  void on_files(std::span<const PullFile> files) override {
    if (!stream_) return;
    try {
      post([this, all = std::vector(files.begin(), files.end())] { print(all); });
    } catch (const std::exception&) {  // the next one tells more
    }
  }
  void on_step(std::string_view name) override {
    if (!stream_) return;
    try {
      post([this, text = status_line(name)] { write(text); });
    } catch (const std::exception&) {
    }
  }
  void on_end(const ApiError* error) override {
    try {
      if (error != nullptr) return fail(*error);
      post([this] { end(status_line("success"), {.body = dump_json({{"status", "success"}}), .headers = headers_}); });
    } catch (const std::exception& e) {  // the connection ends with the reply
      log::error("the end of a pull was lost: {}", e.what());
    }
  }

  void abort(const ApiError& error) override {
    leave();
    fail(error);
  }
  void detach() override {
    leave();
    const std::lock_guard posting(posting_mutex_);
    const std::lock_guard lock(mutex_);
    reply_ = nullptr;
  }

 private:
  void leave() {
    left_ = true;
    if (const auto pulls = pulls_.lock()) pulls->leave(this);
  }
  std::shared_ptr<HttpReply> reply() {
    const std::lock_guard lock(mutex_);
    return reply_;
  }
  template <class F>
  void post(F task) {
    const std::lock_guard posting(posting_mutex_);
    if (const auto to = reply()) to->run([self = shared_from_this(), task = std::move(task)] { task(); });
  }

  void fail(const ApiError& error) {
    post([this, error] { end(line({{"error", error.message}}), to_response(error, kOllama)); });
  }

  // The rest runs on the reply's thread.
  void begin() {
    const auto to = reply();
    if (to == nullptr || std::exchange(begun_, true)) return;
    to->start_stream(stream_head(headers_, status_line("pulling manifest")));
  }
  void write(std::string text) {
    begin();
    const auto to = reply();
    if (to != nullptr && !ended_) to->write(std::move(text));
  }
  // A line for each file that has got further.
  void print(const std::vector<PullFile>& files) {
    told_.resize(files.size());
    std::string text;
    for (size_t i = 0; i < files.size(); ++i) {
      if (std::exchange(told_[i], files[i].done) != files[i].done) text += file_line(files[i]);
    }
    if (!text.empty()) write(std::move(text));
  }
  void end(std::string last_line, HttpResponse whole) {
    if (stream_) begin();
    const auto to = reply();
    if (to == nullptr || std::exchange(ended_, true)) return;
    if (!stream_) return to->send(std::move(whole));
    to->write(std::move(last_line));
    to->end_stream(false);
  }

  const std::weak_ptr<Pulls> pulls_;
  const std::shared_ptr<RunningGenerations> running_;
  const bool stream_;
  const Headers headers_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::atomic<bool> left_{false};

  std::mutex posting_mutex_;          // held while a task is posted to the reply; locked before mutex_
  std::mutex mutex_;                  // guards the reply
  std::shared_ptr<HttpReply> reply_;  // null once detached

  // Used on the reply's thread only.
  bool begun_ = false, ended_ = false;
  std::vector<uint64_t> told_;  // bytes of each file in its last line
};

// Clients pull a model before they use it. The files of a served one are there.
void answer_served(Call& call, const ServedModel& served, bool stream) {
  if (!stream) return call.send({.body = dump_json({{"status", "success"}}), .headers = call.warnings()});
  const Json model = models::card(served);
  const uint64_t size = model["size"].get<uint64_t>();
  const PullFile file{.digest = "sha256:" + model["digest"].get<std::string>(), .size = size, .done = size};
  call.send(stream_head(call.warnings(), status_line("pulling manifest") + file_line(file) + status_line("success")));
}

void run(Call& call) {
  const auto& fields = call.fields.of<PullFields>();
  const std::string& name = fields.model.empty() ? fields.name : fields.model;
  if (name.empty()) throw missing_parameter("model");
  if (const auto served = find_model(call.models, kOllama, name)) return answer_served(call, *served, fields.stream);
  const auto pulls = call.shared->of<Pulls>();
  if (!pulls->allowed()) {
    std::string served;
    for (const std::string& each : call.models.names())
      served += fmt::format("{}`{}`", served.empty() ? "" : ", ", each);
    throw ApiError{.status = 403,
                   .message = fmt::format("The model '{}' is not served, and requests may not download models: the "
                                          "server was started without --allow-pull. Served: {}.",
                                          quotable(name), served),
                   .code = "pull_not_allowed"};
  }
  PullCall::start(call, pulls, std::string(plain_model_name(kOllama, name)), fields.stream);
}

constexpr Parameter kFields[] = {{.name = "model",
                                  .type = Parameter::Type::kString,
                                  .max_bytes = kLabelBytes,
                                  .fallback = "name",
                                  .help = "a served model, or with --allow-pull org/name[:tag] on the hub",
                                  .set = assign<&PullFields::model>},
                                 {.name = "name",
                                  .type = Parameter::Type::kString,
                                  .max_bytes = kLabelBytes,
                                  .fallback = "model",
                                  .help = "the older name of model",
                                  .set = assign<&PullFields::name>},
                                 {.name = "stream",
                                  .type = Parameter::Type::kBoolean,
                                  .fallback = "true",
                                  .help = "answer by lines of JSON",
                                  .set = assign<&PullFields::stream>},
                                 refused("insecure", "[false]"),
                                 refused("username"),
                                 refused("password")};

const EndpointInfo endpoint{.name = "ollama pull",
                            .dialect = &kOllama,
                            .paths = {"/api/pull"},
                            .help = "download a model and serve it (--allow-pull), for Ollama's clients",
                            .parameters = {kFields},
                            .needs_engine = [](const Json&) { return false; },
                            .without_model = true,
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::ollama::pull
