// The text end of generation: turns the scheduler's token events into the caller's text events. Runs on its own thread
// so that detokenization, stop strings and sinks never delay a step.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/metrics.h"
#include "engine/stop_matcher.h"
#include "scheduler/scheduler.h"
#include "sluice/engine.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

class Frontend {
 public:
  // stop_choice(id, index): a stop string ended that choice; the engine thread must free it. Called on this thread.
  Frontend(const Tokenizer& tokenizer, EngineMetrics& metrics, std::function<void(RequestId, int)> stop_choice);
  ~Frontend();  // delivers what was posted, then ends

  void add(RequestId id, Request request, EventSink sink);  // before the engine sees the request
  void remove(RequestId id);                                // the request was refused after all: no event comes
  // From the engine thread, never blocks for long. Leaves memory in `events` for further ones.
  void post(std::vector<SequenceEvent>&& events);
  int active() const;  // requests that have not ended

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const SamplingParams& sampling, std::shared_ptr<const StopAutomaton> automaton)
        : decoder(tokenizer, sampling.skip_special_tokens),
          stops(std::move(automaton), sampling.include_stop_str_in_output) {}
    StreamDecoder decoder;
    StopMatcher stops;
    bool ended = false;
    Clock::time_point last_token;
    int completion_tokens = 0;
  };
  struct Stream {
    Request request;  // without the prompt
    EventSink sink;
    std::vector<Choice> choices;
    int open = 0;
    RequestTimes times;
    FinishReason reason = FinishReason::kStop;
  };

  void run();
  void deliver(SequenceEvent& event);
  void time_token(Stream& stream, Choice& choice, const SequenceEvent& event, Clock::time_point now);
  std::string text_of(Stream& stream, Choice& choice, const SequenceEvent& event, std::optional<Finish>& finish);
  std::shared_ptr<Stream> find(RequestId id) const;

  const Tokenizer& tokenizer_;
  EngineMetrics& metrics_;
  const std::function<void(RequestId, int)> stop_choice_;
  StopAutomata automata_;

  mutable std::mutex streams_mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Stream>> streams_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<SequenceEvent> posted_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace sluice
