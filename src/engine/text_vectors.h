// Vectors of texts from a model that generates: each text of a PoolingRequest is a request of its own that waits and
// runs like any other.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "scheduler/queue_limit.h"
#include "sluice/engine.h"

namespace sluice {

class TextVectors {
 public:
  // start() takes a request that has entered the queue; it leaves the queue before it throws.
  using Start = std::function<RequestId(Request, EventSink)>;
  TextVectors(const ModelInfo& model, HiddenPooling pooling, QueueLimit& queue, Start start,
              std::function<void(RequestId)> cancel);

  // See Engine::embed.
  RequestId embed(PoolingRequest request, PoolingSink sink);
  // Ends all texts of a request with FinishReason::kAbort. Returns false for other requests.
  bool cancel(RequestId id);

 private:
  struct Job;
  Request request_of(PoolingRequest& request, size_t text) const;
  void take(Job& job, size_t text, Event event);

  const ModelInfo& model_;
  const HiddenPooling pooling_;
  QueueLimit& queue_;
  const Start start_;
  const std::function<void(RequestId)> cancel_;
  std::mutex mutex_;
  std::unordered_map<RequestId, std::vector<RequestId>> running_;  // by the first text's id: those of all texts
};

}  // namespace sluice
