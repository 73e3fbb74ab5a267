// Carries answers from the engine's threads to Python. Nothing here touches Python, so that an interpreter may end
// while the engine still works.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sluice/engine.h"

namespace sluice::python {

using Key = int64_t;  // chosen by Python, one per request of a channel

// What came of one choice since the last part.
struct ChoicePart {
  int index = 0;
  std::string text{};
  std::vector<TokenId> tokens{};
  std::vector<TokenLogprobs> logprobs{};
  std::optional<Finish> finish{};
};

// What came of one request since the last part.
struct Part {
  Key key = 0;
  std::vector<ChoicePart> choices{};
  std::vector<TokenLogprobs> prompt_logprobs{};
  std::optional<PoolingResult> pooled{};
  int cached_tokens = 0;
  bool last = false;  // nothing follows
};

// Collects the events of any number of requests. Thread-safe.
class Channel {
 public:
  Channel() = default;
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // A request's place in the channel; sinks hold one.
  struct Answer {
    Part part{};
    std::optional<RequestId> id{};  // the engine's, once it has taken the request
    bool stream = false;            // parts come as soon as there are events; otherwise one when the request has ended
    bool queued = false;            // among ready_
    bool dropped = false;           // nobody wants it any more
  };
  std::shared_ptr<Answer> open(Key key, bool stream);
  void push(const std::shared_ptr<Answer>& answer, Event event);
  void push(const std::shared_ptr<Answer>& answer, PoolingResult result);
  void started(Answer& answer, RequestId id);
  // No part of the answer, or of any answer, comes from now on. Returns the requests that may still run.
  std::vector<RequestId> drop(Key key);
  std::vector<RequestId> drop_all();

  // Waits until there are parts, at most so long, and takes them.
  std::vector<Part> take(std::chrono::milliseconds wait);

  // A descriptor that is readable while there are parts, for event loops. Throws Error.
  int descriptor();

 private:
  // With the mutex held.
  void queue(const std::shared_ptr<Answer>& answer);
  void forget(Answer& answer, std::vector<RequestId>& running);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::unordered_map<Key, std::shared_ptr<Answer>> open_;
  std::vector<std::shared_ptr<Answer>> ready_;
  int event_fd_ = -1;
};

}  // namespace sluice::python
