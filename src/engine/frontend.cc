// One thread takes token events and hands out text events.
#include "engine/frontend.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace sluice {

Frontend::Frontend(const Tokenizer& tokenizer, EngineMetrics& metrics, std::function<void(RequestId, int)> stop_choice)
    : tokenizer_(tokenizer), metrics_(metrics), stop_choice_(std::move(stop_choice)), thread_([this] { run(); }) {}

Frontend::~Frontend() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Frontend::add(RequestId id, Request request, EventSink sink) {
  auto stream = std::make_shared<Stream>();
  stream->sink = std::move(sink);
  stream->open = request.n;
  const auto automaton = automata_.get(request.sampling.stop);
  stream->syntax = {.tools = tool_syntax(request.tool_syntax),
                    .reasoning = reasoning_syntax(request.reasoning_syntax),
                    .thought = request.thought};
  std::shared_ptr<const ToolFunctions> functions;
  if (!request.tools.empty()) functions = std::make_shared<ToolFunctions>(tool_functions(parse_json(request.tools)));
  for (int i = 0; i < request.n; ++i) add_choice(*stream, request, automaton, functions);
  stream->times.arrival = Clock::now();
  if (request.returns_prompt) stream->prompt = std::move(request.prompt);
  request.prompt.clear();
  request.prompt.shrink_to_fit();
  request.prompt_vectors.reset();
  stream->request = std::move(request);
  const std::scoped_lock lock(streams_mutex_);
  streams_.emplace(id, std::move(stream));
}

void Frontend::add_choice(Stream& stream, const Request& request, const std::shared_ptr<const StopAutomaton>& automaton,
                          const std::shared_ptr<const ToolFunctions>& functions) const {
  const bool plain = stream.syntax.plain(), skip = request.sampling.skip_special_tokens;
  // A mark may be a special token.
  Choice& choice = stream.choices.emplace_back(tokenizer_, request.sampling, skip && plain, automaton);
  choice.parser = make_answer_parser(stream.syntax, functions);
  if (skip && !plain) choice.special.emplace();
  if (stream.syntax.reasoning != nullptr) choice.thought.emplace(*stream.syntax.reasoning, stream.syntax.thought);
}

void Frontend::remove(RequestId id) {
  const std::scoped_lock lock(streams_mutex_);
  streams_.erase(id);
}

int Frontend::active() const {
  const std::scoped_lock lock(streams_mutex_);
  return static_cast<int>(streams_.size());
}

std::shared_ptr<Frontend::Stream> Frontend::find(RequestId id) const {
  const std::scoped_lock lock(streams_mutex_);
  const auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : it->second;
}

void Frontend::post(std::vector<SequenceEvent>&& events) {
  if (events.empty()) return;
  {
    const std::scoped_lock lock(mutex_);
    if (posted_.empty()) {
      posted_.swap(events);
    } else {
      posted_.insert(posted_.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
    }
  }
  wake_.notify_one();
  events.clear();
}

void Frontend::run() {
  std::vector<SequenceEvent> events;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !posted_.empty(); });
      if (posted_.empty()) return;
      events.swap(posted_);
    }
    for (SequenceEvent& event : events) {
      try {
        deliver(event);
      } catch (const std::exception& e) {
        give_up(event.request, e.what());
      }
    }
    events.clear();
  }
}

// Tokens that come together share the time since the last one before them.
void Frontend::time_tokens(Stream& stream, Choice& choice, const SequenceEvent& event, Clock::time_point now) {
  RequestTimes& times = stream.times;
  if (!times.was_scheduled) {
    times.was_scheduled = true;
    times.scheduled = event.admitted_at;
  }
  if (choice.completion_tokens > 0) {
    const double seconds = std::chrono::duration<double>(now - choice.last_token).count();
    for (uint32_t i = 0; i < event.tokens.size(); ++i) metrics_.next_token(seconds / event.tokens.size());
  } else if (!times.has_token) {
    times.has_token = true;
    times.first_token = now;
    metrics_.first_token(std::chrono::duration<double>(now - times.arrival).count());
  }
  choice.last_token = times.last_token = now;
}

// Counts thought, and remembers which special tokens are to be hidden.
void Frontend::look_at(Choice& choice, TokenId token, const ReasoningSyntax* reasoning) const {
  if (choice.thought) {
    const bool was_inside = choice.thought->inside();
    choice.thought->push(tokenizer_.token_bytes(token));
    if (was_inside && choice.thought->inside()) ++choice.reasoning_tokens;
  }
  if (!choice.special || !tokenizer_.is_special(token)) return;
  const std::string text = tokenizer_.token_bytes(token);
  if (reasoning == nullptr || !has_mark(*reasoning, text)) choice.special->add(text);
}

// Returns the text that the event adds to its choice. A stop string ends the choice: sets `finish` and drops the tokens
// after the one that completed it.
std::string Frontend::text_of(const Stream& stream, Choice& choice, Event& event) const {
  const SamplingParams& sampling = stream.request.sampling;
  const bool ends_by_token = event.finish && event.finish->end_token;
  const auto armed = [&] { return choice.completion_tokens > sampling.min_tokens || sampling.min_tokens == 0; };
  std::string text;
  size_t used = 0;
  while (used < event.tokens.size() && !choice.stops.matched()) {
    const TokenId token = event.tokens[used++];
    ++choice.completion_tokens;
    // An end or stop token is not part of the text, unless asked for.
    const bool last = used == event.tokens.size();
    if (last && ends_by_token && !sampling.include_stop_str_in_output) break;
    look_at(choice, token, stream.syntax.reasoning);
    text += choice.stops.push(choice.decoder.push(token), armed());
  }
  const size_t dropped = event.tokens.size() - used;
  event.tokens.resize(used);
  event.logprobs.resize(std::min(event.logprobs.size(), used));
  event.usage.completion_tokens -= static_cast<int>(dropped);
  if (event.finish && !choice.stops.matched()) text += choice.stops.push(choice.decoder.finish(), armed());
  if (choice.stops.matched()) {
    event.finish =
        Finish{.reason = FinishReason::kStop, .stop_string = choice.stops.match(), .stop_token = {}, .message = {}};
  } else if (event.finish) {
    text += choice.stops.finish();
  }
  return text;
}

void Frontend::deliver(SequenceEvent& event) {
  const std::shared_ptr<Stream> stream = find(event.request);
  if (stream == nullptr) return;
  Choice& choice = stream->choices[static_cast<size_t>(event.index)];
  if (choice.ended) return;  // tokens computed after the stop string
  const Clock::time_point now = Clock::now();
  if (!event.tokens.empty()) time_tokens(*stream, choice, event, now);
  if (event.vector) stream->times.was_scheduled = true, stream->times.scheduled = event.admitted_at;

  Event out;
  out.index = event.index;
  out.usage = event.usage;
  if (event.finish) out.finish = std::move(*event.finish);
  const bool ended_by_engine = out.finish.has_value();
  out.tokens.assign(event.tokens.begin(), event.tokens.end());
  if (event.vector) out.vector = std::move(*event.vector);
  out.prompt = std::exchange(stream->prompt, {});
  if (event.logprobs) {
    out.logprobs = std::move(event.logprobs->tokens);
    out.prompt_logprobs = std::move(event.logprobs->prompt);
  }
  choice.parser->push(text_of(*stream, choice, out), out.deltas);
  if (out.finish) choice.parser->finish(out.deltas);
  if (choice.special && !out.finish) choice.special->apply(out.deltas);
  if (choice.special && out.finish) choice.special->finish(out.deltas);
  out.usage.reasoning_tokens = choice.reasoning_tokens;
  if (out.finish) {
    if (!ended_by_engine) stop_choice_(event.request, event.index);
    out.last = stream->open == 1;
    // Metrics count the request by the worst end of its choices.
    if (static_cast<int>(out.finish->reason) > static_cast<int>(stream->reason)) stream->reason = out.finish->reason;
  }
  if (out.last) {
    int completion_tokens = 0;
    for (const Choice& c : stream->choices) completion_tokens += c.completion_tokens;
    stream->times.preemptions = event.preemptions;
    metrics_.request_done(stream->request, stream->times, out.usage, completion_tokens, stream->reason, now);
    if (out.finish->param.empty()) metrics_.count_outcome(stream->reason);
    remove(event.request);
  }
  if (out.finish) {  // nothing can fail from here on
    choice.ended = true;
    --stream->open;
  }
  stream->sink(std::move(out));
}

// Ends a request whose event could not be delivered, in most cases because memory ran out: each of its open choices
// gets an error. Must not need memory itself.
void Frontend::give_up(RequestId id, const char* reason) noexcept {
  const std::shared_ptr<Stream> stream = find(id);
  if (stream == nullptr) return;
  remove(id);
  try {
    log::error("a request failed: {}", reason);
    metrics_.request_done(stream->request, stream->times, {}, 0, FinishReason::kError, Clock::now());
    metrics_.count_outcome(FinishReason::kError);
  } catch (const std::exception&) {  // the request ends all the same
  }
  for (size_t i = 0; i < stream->choices.size(); ++i) {
    Choice& choice = stream->choices[i];
    if (std::exchange(choice.ended, true)) continue;
    const int index = static_cast<int>(i);
    try {
      stop_choice_(id, index);
    } catch (const std::exception&) {  // the engine computes tokens for nobody until the choice ends by itself
    }
    Event out;
    out.index = index;
    out.finish.emplace();
    out.finish->reason = FinishReason::kError;
    try {
      out.finish->message = reason;
    } catch (const std::exception&) {  // an error without a reason
    }
    out.last = --stream->open == 0;
    stream->sink(std::move(out));
  }
}

}  // namespace sluice
