// Turns one result into one answer.
#include "server/pooling_call.h"

#include <fmt/core.h>

#include "base/log.h"

namespace sluice::server {

PoolingCall::PoolingCall(std::shared_ptr<Engine> engine, PoolingJob job, std::shared_ptr<HttpReply> reply,
                         std::shared_ptr<RunningGenerations> running)
    : engine_(std::move(engine)),
      job_(std::move(job)),
      running_(std::move(running)),
      deadline_(job_.request.deadline),
      reply_(std::move(reply)) {}

PoolingCall::~PoolingCall() {
  running_->remove(this);
  if (job_.log) job_.log->write("abandoned");  // unless it is written
}

void PoolingCall::start(std::shared_ptr<Engine> engine, PoolingJob job, std::shared_ptr<HttpReply> reply,
                        const std::shared_ptr<RunningGenerations>& running) {
  const std::shared_ptr<PoolingCall> self(new PoolingCall(std::move(engine), std::move(job), reply, running));
  running->add(self);
  // Weak: the reply must not keep the call alive.
  reply->on_abandoned([weak = std::weak_ptr(self)] {
    if (const auto call = weak.lock()) call->cancel();
  });
  try {
    self->submit();
  } catch (...) {
    if (self->job_.log) self->job_.log->write("refused");
    self->detach();  // the caller answers
    throw;
  }
}

void PoolingCall::submit() {
  RequestId id = 0;
  try {
    id = engine_->embed(std::move(job_.request),
                        [self = shared_from_this()](PoolingResult result) { self->push(std::move(result)); });
  } catch (const Error& e) {
    return abort(to_api_error(e));
  }
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    id_ = id;
    cancelled = cancelled_;
  }
  if (cancelled) engine_->cancel(id);
}

std::shared_ptr<HttpReply> PoolingCall::reply() {
  const std::lock_guard lock(mutex_);
  return reply_;
}

void PoolingCall::abort(const ApiError& error) {
  cancel();
  if (const auto to = reply())
    to->run([self = shared_from_this(), error] { self->answer(to_response(error, *self->job_.dialect)); });
}

void PoolingCall::detach() {
  cancel();
  const std::lock_guard posting(posting_mutex_);
  const std::lock_guard lock(mutex_);
  reply_ = nullptr;
}

void PoolingCall::cancel() {
  std::optional<RequestId> id;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    id = id_;
  }
  if (id) engine_->cancel(*id);
}

// On the engine's thread: must not throw.
void PoolingCall::push(PoolingResult result) {
  try {
    const std::lock_guard posting(posting_mutex_);
    const auto to = reply();
    if (to == nullptr) return;
    // A std::function is copyable; the shared pointer avoids copies of the result.
    to->run([self = shared_from_this(), result = std::make_shared<const PoolingResult>(std::move(result))] {
      self->answer(self->response_to(*result));
    });
  } catch (const std::exception& e) {
    log::error("a result was lost: {}", e.what());
    abort(out_of_memory());
  }
}

HttpResponse PoolingCall::response_to(const PoolingResult& result) {
  if (job_.log) {
    job_.log->add(result);
    job_.log->write();
  }
  if (result.reason == FinishReason::kError) {
    log::error("a request failed: {}", result.message);
    return to_response(server_fault(engine_->health(), result.message), *job_.dialect);
  }
  if (result.reason == FinishReason::kAbort) return to_response(aborted(deadline_), *job_.dialect);
  return {.body = job_.body(result), .headers = job_.headers};
}

void PoolingCall::answer(const HttpResponse& response) {
  if (std::exchange(done_, true)) return;
  if (job_.log) job_.log->write(fmt::format("status {}", response.status));  // unless it is written
  if (const auto to = reply()) to->send(response);
}

}  // namespace sluice::server
