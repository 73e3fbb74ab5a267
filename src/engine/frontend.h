// Turns the scheduler's token events into the caller's events: detokenizes, finds stop strings, parses the answer. Runs
// on its own thread, so that none of this nor a sink delays a step.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "chat/answer_parser.h"
#include "engine/metrics.h"
#include "engine/special_text.h"
#include "engine/stop_matcher.h"
#include "scheduler/scheduler.h"
#include "sluice/engine.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

class Frontend {
 public:
  // Calls stop_choice(id, index) on its thread when a stop string ended that choice; the engine must free the choice.
  Frontend(const Tokenizer& tokenizer, EngineMetrics& metrics, std::function<void(RequestId, int)> stop_choice);
  ~Frontend();  // delivers all posted events first

  void add(RequestId id, Request request, EventSink sink);  // before the engine sees the request
  void remove(RequestId id);                                // the request was refused after all: no event comes
  // Takes events from the engine thread; never blocks for long. Leaves `events` empty, with capacity for further ones.
  void post(std::vector<SequenceEvent>&& events);
  int active() const;  // requests that have not ended

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const SamplingParams& sampling, bool skip_special_tokens,
           std::shared_ptr<const StopAutomaton> automaton)
        : decoder(tokenizer, skip_special_tokens), stops(std::move(automaton), sampling.include_stop_str_in_output) {}
    StreamDecoder decoder;
    StopMatcher stops;
    std::unique_ptr<OutputParser> parser;
    std::optional<SpecialTextFilter> special;  // special tokens reach the parser and are hidden afterwards
    std::optional<ThoughtTracker> thought;
    int reasoning_tokens = 0;
    bool ended = false;
    Clock::time_point last_token;
    int completion_tokens = 0;
  };
  struct Stream {
    Request request;              // without the prompt
    std::vector<TokenId> prompt;  // for the first event, when asked for
    EventSink sink;
    AnswerSyntax syntax;
    std::vector<Choice> choices;
    int open = 0;
    RequestTimes times;
    FinishReason reason = FinishReason::kStop;
  };

  void run();
  void deliver(SequenceEvent& event);
  void give_up(RequestId id, const char* reason) noexcept;
  void time_tokens(Stream& stream, Choice& choice, const SequenceEvent& event, Clock::time_point now);
  std::string text_of(const Stream& stream, Choice& choice, Event& event) const;
  void add_choice(Stream& stream, const Request& request, const std::shared_ptr<const StopAutomaton>& automaton,
                  const std::shared_ptr<const ToolFunctions>& functions) const;
  void look_at(Choice& choice, TokenId token, const ReasoningSyntax* reasoning) const;
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
