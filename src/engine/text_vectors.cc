// Starts the texts of a request and collects their vectors.
#include "engine/text_vectors.h"

#include <utility>

#include "engine/pooling_request.h"
#include "sluice/error.h"

namespace sluice {

struct TextVectors::Job {
  RequestId id = 0;
  PoolingRequest request{};  // without texts
  PoolingSink sink{};        // null: the request was refused
  PoolingResult result{};
  size_t open = 0;  // texts that have not ended
};

TextVectors::TextVectors(const ModelInfo& model, HiddenPooling pooling, QueueLimit& queue, Start start,
                         std::function<void(RequestId)> cancel)
    : model_(model), pooling_(pooling), queue_(queue), start_(std::move(start)), cancel_(std::move(cancel)) {}

Request TextVectors::request_of(PoolingRequest& request, size_t text) const {
  Request one;
  one.id = request.id;
  one.prompt = std::move(request.texts[text].tokens);
  one.prompt_param = request.param;
  one.sampling.max_tokens = 1;
  one.context_shift = false;
  one.pooling = pooling_;
  one.cache_salt = request.cache_salt;
  one.tenant = request.tenant;
  one.deadline = request.deadline;
  return one;
}

RequestId TextVectors::embed(PoolingRequest request, PoolingSink sink) {
  check_pooling(request, model_);
  const size_t texts = request.texts.size();
  int64_t tokens = 0;
  for (const PooledText& text : request.texts) tokens += static_cast<int64_t>(text.tokens.size());
  if (!queue_.try_enter(static_cast<int>(texts), tokens)) {
    throw Error(ErrorCode::kOverloaded, "The server is overloaded. Please try again later.");
  }
  std::vector<RequestId> ids;
  std::shared_ptr<Job> job;
  size_t started = 0;
  std::unique_lock lock(mutex_);  // no text is taken as done before all have started
  try {
    job = std::make_shared<Job>();
    job->sink = std::move(sink);
    job->result.vectors.resize(texts);
    job->open = texts;
    ids.reserve(texts);
    for (size_t i = 0; i < texts; ++i) {
      Request one = request_of(request, i);
      tokens -= static_cast<int64_t>(one.prompt.size());
      ++started;
      ids.push_back(start_(std::move(one), [this, job, i](Event event) { take(*job, i, std::move(event)); }));
    }
    request.texts.clear();
    job->request = std::move(request);
    job->id = ids.front();
    running_.emplace(job->id, ids);
  } catch (...) {  // no memory
    if (job != nullptr) job->sink = nullptr;
    lock.unlock();
    queue_.leave(static_cast<int>(texts - started), tokens);
    for (const RequestId id : ids) cancel_(id);
    throw;
  }
  return ids.front();
}

void TextVectors::take(Job& job, size_t text, Event event) {
  if (!event.finish) return;
  std::unique_lock lock(mutex_);
  if (job.sink == nullptr) return;
  PoolingResult& result = job.result;
  if (event.finish->reason == FinishReason::kStop) {
    result.vectors[text] = finish_embedding(event.vector, job.request.dimensions, job.request.normalize.value_or(true));
  } else if (result.reason == FinishReason::kStop) {  // the first one tells
    result.reason = event.finish->reason;
    result.message = std::move(event.finish->message);
  }
  result.prompt_tokens += event.usage.prompt_tokens;
  if (--job.open > 0) return;
  running_.erase(job.id);
  if (result.reason != FinishReason::kStop) result.vectors.clear();
  const PoolingSink sink = std::exchange(job.sink, nullptr);
  lock.unlock();
  sink(std::move(result));
}

bool TextVectors::cancel(RequestId id) {
  std::vector<RequestId> ids;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return false;
    ids = found->second;
  }
  for (const RequestId text : ids) cancel_(text);
  return true;
}

}  // namespace sluice
