// See prefill_call.h.
#include "route/prefill_call.h"

#include <fmt/core.h>

#include <utility>

namespace sluice::route {

PrefillCall::PrefillCall(const Replicas& replicas, size_t replica, int64_t weight, HealthMonitor& health,
                         std::function<void(const std::string& reason)> failed)
    : replica_(replicas[replica]), index_(replica), health_(health), failed_(std::move(failed)) {
  ++replica_->requests;
  in_flight_.emplace(replica_, weight);
}

// The call's listener keeps this object until the call ends.
void PrefillCall::start(ConnectionPool& pool, const boost::asio::any_io_executor& executor, CallRequest request,
                        const CallLimits& limits) {
  ReplicaCall::Listener listener{
      .on_answer = [self = shared_from_this()](AnswerReader& answer) { self->on_answer(answer); },
      .on_failure =
          [self = shared_from_this()](ReplicaCall::Failure failure, const std::string& reason) {
            using Failure = ReplicaCall::Failure;
            const bool no_connection = failure == Failure::kRefused || failure == Failure::kUnreachable;
            if (no_connection) self->health_.refused(self->index_);
            if (failure == Failure::kClosed) self->health_.suspected(self->index_);
            ++(no_connection ? self->replica_->refused : self->replica_->broken);
            self->fail(reason);
          }};
  call_ = std::make_shared<ReplicaCall>(replica_, &pool, executor, std::move(request), limits, std::move(listener));
  call_->start();
}

void PrefillCall::cancel() noexcept {
  in_flight_.reset();
  failed_ = nullptr;
  if (const auto call = std::exchange(call_, nullptr)) call->cancel();
}

void PrefillCall::on_answer(AnswerReader& answer) {
  answer.take_body();
  if (answer.has_head() && answer.head().status >= 400) {
    ++replica_->refused;
    if (answer.head().status == 503) health_.suspected(index_);
    return fail(fmt::format("status {}", answer.head().status));
  }
  if (answer.done()) return cancel();
  call_->read();
}

void PrefillCall::fail(const std::string& reason) {
  const auto failed = std::exchange(failed_, nullptr);
  cancel();
  if (failed) failed(reason);
}

}  // namespace sluice::route
