#include "server/openai/responses/background.h"

#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

#include "base/log.h"
#include "server/openai/dialect.h"

namespace sluice::server {

std::shared_ptr<LateAnswer> LateAnswer::start(std::shared_ptr<HttpReply> reply,
                                              std::shared_ptr<RunningGenerations> running) {
  std::shared_ptr<LateAnswer> answer(new LateAnswer(std::move(reply), std::move(running)));
  answer->running_->add(answer);
  return answer;
}

void LateAnswer::send(HttpResponse response) {
  const std::lock_guard lock(mutex_);
  if (const auto to = std::exchange(reply_, nullptr)) to->send(std::move(response));
}

void LateAnswer::abort(const ApiError& error) { send(to_response(error, kOpenAi)); }

void LateAnswer::detach() {
  const std::lock_guard lock(mutex_);
  reply_ = nullptr;
}

void BackgroundReply::cancel() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    callback = std::exchange(abandoned_, nullptr);
  }
  if (callback) callback();
}

void BackgroundReply::run(std::function<void()> task) {
  boost::asio::post(executor_, [task = std::move(task)] {
    try {
      task();
    } catch (const std::exception& e) {
      log::error("a response in the background failed: {}", e.what());
    }
  });
}

void BackgroundReply::on_abandoned(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!cancelled_) {
      abandoned_ = std::move(callback);
      return;
    }
  }
  callback();
}

void BackgroundResponses::add(const std::string& id, const std::shared_ptr<BackgroundReply>& reply) {
  const std::lock_guard lock(mutex_);
  std::erase_if(replies_, [](const auto& entry) { return entry.second.expired(); });
  replies_.emplace(id, reply);
}

std::shared_ptr<BackgroundReply> BackgroundResponses::find(std::string_view id) {
  const std::lock_guard lock(mutex_);
  const auto found = replies_.find(std::string(id));
  return found != replies_.end() ? found->second.lock() : nullptr;
}

bool BackgroundResponses::runs(std::string_view id) { return find(id) != nullptr; }

bool BackgroundResponses::cancel(std::string_view id) {
  const auto reply = find(id);
  if (reply) reply->cancel();
  return reply != nullptr;
}

}  // namespace sluice::server
