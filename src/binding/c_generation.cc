// The C API's generations: events as plain structs, from a queue or to a callback.
#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/json.h"
#include "binding/c_engine.h"
#include "binding/c_status.h"
#include "binding/requests.h"

namespace sluice::binding {

// Log probabilities in the form of the C API, and their memory.
struct FlatLogprobs {
  std::vector<sluice_logprob> tokens, top;
  std::vector<int32_t> counts;

  explicit FlatLogprobs(const std::vector<TokenLogprobs>& list) {
    for (const TokenLogprobs& entry : list) {
      tokens.push_back(flat(entry.token));
      counts.push_back(static_cast<int32_t>(entry.top.size()));
      for (const TokenLogprob& other : entry.top) top.push_back(flat(other));
    }
  }
  static sluice_logprob flat(const TokenLogprob& t) { return {t.id, t.logprob, t.rank}; }
  sluice_logprobs view() const {
    if (tokens.empty()) return {};
    return {tokens.size(), tokens.data(), counts.data(), top.empty() ? nullptr : top.data()};
  }
};

// Collects the deltas of an event by their kind.
struct DeltaTexts {
  int choice = 0;
  std::string text = {}, reasoning = {};
  Json calls = Json::array();

  void operator()(const TextDelta& d) { text += d.text; }
  void operator()(const ReasoningDelta& d) { reasoning += d.text; }
  void operator()(const ToolCallBegin& d) {
    calls.push_back({{"index", d.index},
                     {"id", d.id.empty() ? fmt::format("call_{}_{}", choice, d.index) : d.id},
                     {"type", "function"},
                     {"function", {{"name", d.name}, {"arguments", ""}}}});
  }
  void operator()(const ToolCallArguments& d) {
    calls.push_back({{"index", d.index}, {"function", {{"arguments", d.json}}}});
  }
};

// An event in the form of the C API. The pointers of view() are valid as long as the object.
class FlatEvent {
 public:
  explicit FlatEvent(Event event)
      : event_(std::move(event)),
        texts_{.choice = event_.index},
        logprobs_(event_.logprobs),
        prompt_logprobs_(event_.prompt_logprobs) {
    for (const Delta& delta : event_.deltas) std::visit(texts_, delta);
    if (!texts_.calls.empty()) calls_ = dump_json(texts_.calls);
  }

  sluice_event view() const {
    sluice_event out{};
    out.choice = event_.index;
    out.last = event_.last ? 1 : 0;
    out.text = texts_.text.c_str();
    out.text_bytes = texts_.text.size();
    out.reasoning = texts_.reasoning.c_str();
    out.reasoning_bytes = texts_.reasoning.size();
    out.tool_calls = calls_.empty() ? nullptr : calls_.c_str();
    out.tokens = event_.tokens.empty() ? nullptr : event_.tokens.data();
    out.token_count = event_.tokens.size();
    out.logprobs = logprobs_.view();
    out.prompt_logprobs = prompt_logprobs_.view();
    out.stop_token = -1;
    if (event_.finish) add_finish(*event_.finish, out);
    out.prompt_tokens = event_.usage.prompt_tokens;
    out.cached_tokens = event_.usage.cached_tokens;
    out.completion_tokens = event_.usage.completion_tokens;
    out.reasoning_tokens = event_.usage.reasoning_tokens;
    return out;
  }

 private:
  static void add_finish(const Finish& finish, sluice_event& out) {
    out.finish_reason = to_string(finish.reason);
    if (!finish.stop_string.empty()) out.stop_string = finish.stop_string.c_str();
    out.stop_token = finish.stop_token.value_or(-1);
    if (finish.reason != FinishReason::kError) return;
    out.error = finish.message.c_str();
    out.error_field = finish.param.c_str();
  }

  const Event event_;
  DeltaTexts texts_;
  std::string calls_;
  const FlatLogprobs logprobs_, prompt_logprobs_;
};

// What the sink of a generation and its handle share.
class Stream {
 public:
  Stream(sluice_callback callback, void* user_data) : callback_(callback), user_data_(user_data) {}

  bool has_callback() const { return callback_ != nullptr; }

  void push(Event event) {
    const std::scoped_lock lock(mutex_);
    ended_ = event.last;
    if (freed_) return;
    if (callback_ != nullptr) {
      const FlatEvent flat(std::move(event));
      const sluice_event view = flat.view();
      return callback_(&view, user_data_);
    }
    events_.push_back(std::move(event));
    wake_.notify_one();
  }

  // Returns SLUICE_OK with an event, SLUICE_TIMEOUT or SLUICE_END.
  sluice_status next(int64_t timeout_ms, std::optional<Event>& out) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !events_.empty() || ended_; };
    constexpr int64_t kYears = int64_t{1} << 40;  // longer times are no limit
    if (timeout_ms < 0 || timeout_ms > kYears) {
      wake_.wait(lock, ready);
    } else if (!wake_.wait_for(lock, std::chrono::milliseconds(timeout_ms), ready)) {
      return SLUICE_TIMEOUT;
    }
    if (events_.empty()) return SLUICE_END;
    out = std::move(events_.front());
    events_.pop_front();
    return SLUICE_OK;
  }

  // No callback runs or comes afterwards. Returns whether the last event came.
  bool release() {
    const std::scoped_lock lock(mutex_);
    freed_ = true;
    return ended_;
  }

 private:
  const sluice_callback callback_;
  void* const user_data_;

  std::mutex mutex_;  // also held during callbacks, so that release() waits for them
  std::condition_variable wake_;
  std::deque<Event> events_;  // without a callback
  bool ended_ = false;        // the last event came
  bool freed_ = false;
};

}  // namespace sluice::binding

using namespace sluice::binding;  // NOLINT(google-build-using-namespace): what follows is the C API

struct sluice_generation {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<EngineLink> engine;
  std::atomic<sluice::RequestId> id{0};
  const pid_t owner = ::getpid();
  std::optional<FlatEvent> current;  // the event that next() returned
  sluice_event view{};
};

sluice_status sluice_generation_start(sluice_engine* engine, const char* request_json, sluice_callback callback,
                                      void* user_data, sluice_generation** generation) {
  return guard([&] {
    expect_pointers({{engine, "engine"}, {request_json, "request_json"}, {generation, "generation"}});
    if (engine->forked()) return fail(SLUICE_FORKED, "The engine belongs to the parent process.");
    GenerationBody body = read_generation(*engine->engine, request_json);
    auto handle = std::make_unique<sluice_generation>();
    handle->stream = std::make_shared<Stream>(callback, user_data);
    handle->engine = engine->link;
    handle->id = submit(*engine->engine, std::move(body),
                        [stream = handle->stream](sluice::Event event) { stream->push(std::move(event)); });
    *generation = handle.release();
    return SLUICE_OK;
  });
}

sluice_status sluice_generation_next(sluice_generation* generation, int64_t timeout_ms, const sluice_event** event) {
  return guard([&] {
    expect_pointers({{generation, "generation"}, {event, "event"}});
    if (generation->owner != ::getpid()) return fail(SLUICE_FORKED, "The generation belongs to the parent process.");
    if (generation->stream->has_callback()) {
      return fail(SLUICE_INVALID_ARGUMENT, "The generation has a callback, which gets its events.", "generation");
    }
    std::optional<sluice::Event> next;
    const sluice_status status = generation->stream->next(timeout_ms, next);
    if (status != SLUICE_OK) return status;
    generation->current.emplace(std::move(*next));
    generation->view = generation->current->view();
    *event = &generation->view;
    return SLUICE_OK;
  });
}

void sluice_generation_cancel(sluice_generation* generation) {
  if (generation == nullptr || generation->owner != ::getpid()) return;
  guard([&] {
    const std::scoped_lock lock(generation->engine->mutex);
    if (generation->engine->engine != nullptr) generation->engine->engine->cancel(generation->id);
    return SLUICE_OK;
  });
}

void sluice_generation_free(sluice_generation* generation) {
  if (generation == nullptr || generation->owner != ::getpid()) return;
  if (!generation->stream->release()) sluice_generation_cancel(generation);
  delete generation;
}
