// The engine's thread queues events; the connection's thread formats them.
#include "server/generation.h"

#include <fmt/core.h>

#include <new>
#include <thread>

#include "base/log.h"

namespace sluice::server {

void RunningGenerations::add(const std::shared_ptr<RunningCall>& call) {
  const std::lock_guard lock(mutex_);
  items_.emplace(call.get(), call);
}

void RunningGenerations::remove(RunningCall* call) {
  const std::lock_guard lock(mutex_);
  items_.erase(call);
}

bool RunningGenerations::empty() {
  const std::lock_guard lock(mutex_);
  return items_.empty();
}

std::vector<std::shared_ptr<RunningCall>> RunningGenerations::all() {
  std::vector<std::shared_ptr<RunningCall>> out;
  const std::lock_guard lock(mutex_);
  for (auto& [_, weak] : items_) {
    if (auto item = weak.lock()) out.push_back(std::move(item));
  }
  return out;
}

void RunningGenerations::abort_all(const ApiError& error) {
  for (const auto& call : all()) call->abort(error);
}

void RunningGenerations::detach_all() {
  for (const auto& call : all()) call->detach();
}

ApiError aborted(const std::optional<std::chrono::steady_clock::time_point>& deadline) {
  if (!deadline || std::chrono::steady_clock::now() < *deadline) return overloaded("The request was aborted.");
  return {.status = 504,
          .message = "The request did not finish before its deadline.",
          .code = "deadline_exceeded",
          .type = "server_error"};
}

namespace {

// The engine needs a little memory to take the message. Others may free some in the meantime.
void cancel_request(Engine& engine, RequestId id) {
  constexpr int kAttempts = 10;
  for (int attempt = 1;; ++attempt) {
    try {
      return engine.cancel(id);
    } catch (const std::bad_alloc&) {
      if (attempt == kAttempts) throw;
      std::this_thread::yield();
    }
  }
}

}  // namespace

Generation::Generation(std::shared_ptr<Engine> engine, GenerationJob job, std::shared_ptr<HttpReply> reply,
                       std::shared_ptr<RunningGenerations> running)
    : engine_(std::move(engine)),
      job_(std::move(job)),
      running_(std::move(running)),
      reply_(std::move(reply)),
      open_(job_.chat ? 1 : job_.requests.size()) {
  deadline_ = job_.chat ? job_.chat->request.deadline : job_.requests.front().deadline;
}

Generation::~Generation() {
  running_->remove(this);
  if (job_.log) job_.log->write("abandoned");  // unless it is written
}

void Generation::start(std::shared_ptr<Engine> engine, GenerationJob job, std::shared_ptr<HttpReply> reply,
                       const std::shared_ptr<RunningGenerations>& running) {
  const std::shared_ptr<Generation> self(new Generation(std::move(engine), std::move(job), reply, running));
  running->add(self);
  // Weak: the reply must not keep the generation alive.
  reply->on_abandoned([weak = std::weak_ptr(self)] {
    if (const auto generation = weak.lock()) generation->cancel();
  });
  try {
    self->submit();
  } catch (...) {
    if (self->job_.log) self->job_.log->write("refused");
    self->detach();  // the caller answers
    throw;
  }
}

RequestId Generation::submit(size_t prompt) {
  EventSink sink = [self = shared_from_this(), prompt](Event event) {
    self->push(static_cast<int>(prompt), std::move(event));
  };
  if (job_.chat) return engine_->submit_chat(std::move(*job_.chat), std::move(sink));
  return engine_->submit(std::move(job_.requests[prompt]), std::move(sink));
}

void Generation::submit() {
  const size_t prompts = open_;  // drain() counts it down
  ids_.reserve(prompts);         // no request may get lost between the engine and the list
  for (size_t i = 0; i < prompts; ++i) {
    RequestId id = 0;
    try {
      id = submit(i);
    } catch (const Error& e) {
      return abort(to_api_error(e));
    } catch (const std::bad_alloc&) {
      return abort(out_of_memory());
    }
    bool cancelled = false;
    {
      const std::lock_guard lock(mutex_);
      ids_.push_back(id);
      cancelled = cancelled_;
    }
    if (cancelled) return cancel_request(*engine_, id);
  }
}

std::shared_ptr<HttpReply> Generation::reply() {
  const std::lock_guard lock(mutex_);
  return reply_;
}

void Generation::abort(const ApiError& error) {
  cancel();
  if (const auto to = reply()) to->run([self = shared_from_this(), error] { self->fail(error); });
}

void Generation::detach() {
  cancel();
  const std::lock_guard posting(posting_mutex_);
  const std::lock_guard lock(mutex_);
  reply_ = nullptr;
  pending_.clear();
}

void Generation::cancel() {
  for (size_t i = 0;; ++i) {
    RequestId id = 0;
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
      if (i >= ids_.size()) return;
      id = ids_[i];
    }
    cancel_request(*engine_, id);
  }
}

// On the engine's thread: must not throw.
void Generation::push(int prompt, Event event) {
  try {
    if (!queue(prompt, std::move(event))) return;
    const std::lock_guard posting(posting_mutex_);
    if (const auto to = reply()) to->run([self = shared_from_this()] { self->drain(); });
  } catch (const std::exception& e) {
    log::error("an event was lost: {}", e.what());
    abort(out_of_memory());
  }
}

// Returns true when the caller must post a drain().
bool Generation::queue(int prompt, Event event) {
  const std::lock_guard lock(mutex_);
  if (reply_ == nullptr) return false;
  pending_.emplace_back(prompt, std::move(event));
  return !std::exchange(draining_, true);
}

void Generation::drain() {
  for (;;) {
    std::vector<std::pair<int, Event>> events;
    {
      const std::lock_guard lock(mutex_);
      events.swap(pending_);
      if (events.empty()) {
        draining_ = false;
        return;
      }
    }
    for (auto& [prompt, event] : events) take(prompt, std::move(event));
  }
}

void Generation::take(int prompt, Event event) {
  if (done_) return;
  if (event.finish && event.finish->reason == FinishReason::kError) {
    if (!event.finish->param.empty()) {  // of the request, found out after it was submitted
      return fail({.message = event.finish->message, .param = event.finish->param, .code = "invalid_grammar"});
    }
    log::error("a request failed: {}", event.finish->message);
    return fail(server_fault(engine_->health(), event.finish->message));
  }
  if (event.finish && event.finish->reason == FinishReason::kAbort) {
    return fail(aborted(deadline_));
  }
  if (job_.log) job_.log->add(prompt, event);
  const bool last = event.last;
  std::string data = job_.format->on_event(prompt, std::move(event));
  if (job_.stream && !data.empty()) {
    const auto to = reply();
    if (to == nullptr) return;
    if (!streaming_) {
      streaming_ = true;
      Headers headers = job_.headers;
      headers.emplace_back("Cache-Control", "no-cache");
      headers.emplace_back("X-Accel-Buffering", "no");
      to->start_stream({.content_type = std::string(job_.format->stream_type()), .headers = std::move(headers)});
    }
    to->write(std::move(data));
  }
  if (last && --open_ == 0) finish();
}

void Generation::finish() {
  const bool waits = job_.format->keep([self = shared_from_this()](const ApiError* error) { self->kept(error); });
  if (!waits) end();
}

// On any thread: must not throw.
void Generation::kept(const ApiError* error) {
  try {
    std::function<void()> task = [self = shared_from_this()] { self->end(); };
    if (error != nullptr) task = [self = shared_from_this(), failure = *error] { self->fail(failure); };
    const std::lock_guard posting(posting_mutex_);
    if (const auto to = reply()) to->run(std::move(task));
  } catch (const std::exception&) {
    try {
      abort(out_of_memory());
    } catch (const std::exception&) {  // the connection ends with the reply
    }
  }
}

void Generation::end() {
  if (done_) return;  // aborted while the answer was kept
  done_ = true;
  if (job_.log) job_.log->write();
  const auto to = reply();
  if (to == nullptr) return;
  if (job_.stream) {
    to->write(job_.format->stream_end());
    to->end_stream(false);
  } else {
    to->send({.body = job_.format->body(), .headers = std::move(job_.headers)});
  }
}

// Before the first byte, the status reports the error. A stream reports it as an event and lacks the end marker.
void Generation::fail(const ApiError& error) {
  if (done_) return;
  done_ = true;
  cancel();
  if (job_.log) job_.log->write(error.code.empty() ? "error" : error.code);
  const auto to = reply();
  if (to == nullptr) return;
  if (streaming_) {
    to->write(job_.format->stream_error(error));
    return to->end_stream(true);
  }
  to->send(job_.format->error_response(error));
}

}  // namespace sluice::server
