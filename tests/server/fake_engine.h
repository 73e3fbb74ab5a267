// An engine for tests of the server. Tokens are bytes, and the answer to a prompt is the prompt again. It generates on
// its own thread, one token per choice and step. Tests can make it slow, fail, refuse or stall.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/json.h"
#include "sluice/context.h"
#include "sluice/engine.h"

namespace sluice {

class FakeEngine : public Engine {
 public:
  static constexpr TokenId kEos = 256;
  static constexpr TokenId kBos = 257;
  static constexpr TokenId kPrefix = 258;
  static constexpr std::array<std::string_view, 3> kFillIn = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"};

  std::atomic<int> step_us{0};
  std::atomic<int> render_ms{0};           // how long render_chat takes
  std::atomic<int> fail_at_token{-1};      // that output token becomes a fault
  std::atomic<bool> refuse_submit{false};  // submit throws kOverloaded, overloaded() does not say so
  std::atomic<bool> throw_in_tokenize{false};
  std::atomic<bool> is_overloaded{false};
  std::atomic<bool> draining{false};  // set by stop_accepting
  std::atomic<bool> alive{true}, failed{false};
  std::atomic<bool> stalled{false};   // no step is made
  std::atomic<bool> fills_in{false};  // <fim_prefix>, <fim_suffix> and <fim_middle> are tokens 258, 259 and 260
  std::atomic<int> errors_in_a_row{0};
  std::atomic<int> submitted{0}, cancelled{0}, tokenized{0}, resets{0};
  std::vector<std::string> ended_sessions;  // to be read when nothing runs
  std::vector<std::string> prefetched_sessions;
  std::vector<AdapterInfo> loaded_adapters;  // to be set before the server starts

  FakeEngine() {
    info_.name = "fake";
    info_.max_model_len = 4096;
    info_.vocab_size = 300;
    info_.eos_token_ids = {kEos};
    info_.created = 1700000000;
    info_.has_chat_template = true;
    thread_ = std::thread([this] { run(); });
  }
  ~FakeEngine() override {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  // Later requests are answered by one event with these deltas.
  void answer_with(std::vector<Delta> deltas) {
    const std::lock_guard lock(mutex_);
    script_ = std::move(deltas);
  }

  ModelInfo& info() { return info_; }
  const ModelInfo& model() const override { return info_; }

  std::vector<TokenId> tokenize(std::string_view text, bool add_special_tokens) const override {
    if (throw_in_tokenize) throw Error(ErrorCode::kInternal, "tokenizer of /home/secret broke at 0xdeadbeef");
    ++const_cast<FakeEngine*>(this)->tokenized;
    for (size_t i = 0; fills_in && i < kFillIn.size(); ++i) {
      if (text == kFillIn[i]) return {kPrefix + static_cast<TokenId>(i)};
    }
    std::vector<TokenId> tokens;
    if (add_special_tokens) tokens.push_back(kBos);
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  std::string detokenize(std::span<const TokenId> tokens, bool skip_special_tokens) const override {
    std::string text;
    for (const TokenId token : tokens) {
      if (token < 256 || !skip_special_tokens) text += token_bytes(token);
    }
    return text;
  }
  std::string token_text(TokenId token) const override {
    return token < 256 ? fmt::format("<{:02x}>", token) : token_bytes(token);
  }
  std::string token_bytes(TokenId token) const override {
    if (token == kEos) return "<eos>";
    if (token == kBos) return "<bos>";
    const auto mark = static_cast<size_t>(token - kPrefix);
    if (fills_in && token >= kPrefix && mark < kFillIn.size()) return std::string(kFillIn[mark]);
    return token < 256 ? std::string(1, static_cast<char>(token)) : "";
  }
  // "role:content|" of each message, then tools and kwargs if there are any.
  std::string render_chat(const ChatPrompt& chat) const override {
    std::this_thread::sleep_for(std::chrono::milliseconds(render_ms));
    std::string text;
    for (const Json& message : parse_json(chat.messages)) {
      if (message["content"] == Json("raise")) {
        throw Error(ErrorCode::kInvalidRequest, "The chat template refused: no raising.", "messages", "");
      }
      const std::string content = message["content"].is_string() ? message["content"].get<std::string>() : "";
      text += message["role"].get<std::string>() + ":" + content + "|";
      if (message.contains("tool_calls")) text += dump_json(message["tool_calls"]);
    }
    if (chat.continue_final_message) text.pop_back();
    return text + chat.tools + chat.template_kwargs + (chat.add_generation_prompt ? ">" : "");
  }

  std::string tokenizer_config() const override { return R"({"tokenizer_class":"Fake","chat_template":"{{ x }}"})"; }
  void reset_prefix_cache() override { ++resets; }
  std::vector<AdapterInfo> adapters() const override { return loaded_adapters; }
  void prefetch_session(std::string_view, std::string_view session) override {
    prefetched_sessions.emplace_back(session);
  }
  void end_session(std::string_view, std::string_view session) override { ended_sessions.emplace_back(session); }

  RequestId submit(Request request, EventSink sink) override {
    if (refuse_submit || draining) throw Error(ErrorCode::kOverloaded, "The queue is full.");
    const std::lock_guard lock(mutex_);
    ++submitted;
    const RequestId id = ++last_id_;
    Running running{.request = std::move(request), .sink = std::move(sink), .choices = {}};
    running.choices.resize(static_cast<size_t>(running.request.n));
    last_request_ = running.request;
    running_.emplace(id, std::move(running));
    wake_.notify_all();
    return id;
  }
  Request chat_request(ChatRequest chat) const override {
    const std::string text = render_chat(chat.chat);
    check_text_length(text.size(), info_.max_model_len, chat.request.prompt_param);
    const std::vector<TokenId> own = tokenize(text, chat.add_special_tokens);
    chat.request.prompt.insert(chat.request.prompt.end(), own.begin(), own.end());
    fit_context(chat.request, info_.max_model_len, "messages");
    return std::move(chat.request);
  }
  // The vector of a text: its length, its first and its last token, its types' sum. Scores: the same without the first
  // token.
  RequestId embed(PoolingRequest request, PoolingSink sink) override {
    if (refuse_submit || draining) throw Error(ErrorCode::kOverloaded, "The queue is full.");
    PoolingResult result;
    for (const PooledText& text : request.texts) {
      const int types = std::accumulate(text.types.begin(), text.types.end(), 0);
      result.prompt_tokens += static_cast<int>(text.tokens.size());
      std::vector<float> vector{static_cast<float>(text.tokens.size()), static_cast<float>(text.tokens.front()),
                                static_cast<float>(text.tokens.back()), static_cast<float>(types)};
      if (info_.task == Task::kScore) {
        vector.erase(vector.begin() + 1);
        vector.resize(static_cast<size_t>(std::max(1, info_.vector_size)));
      }
      if (request.dimensions > 0) vector.resize(static_cast<size_t>(request.dimensions));
      result.vectors.push_back(std::move(vector));
    }
    if (fail_at_token == 0) result = {.vectors = {}, .reason = FinishReason::kError, .message = "NaN at 0x7f00"};
    RequestId id = 0;
    {
      const std::lock_guard lock(mutex_);
      ++submitted;
      id = ++last_id_;
      last_pooling_ = std::move(request);
      if (stalled) {
        pooling_.emplace(id, std::move(sink));
        return id;
      }
    }
    sink(std::move(result));
    return id;
  }
  // Bytes with kBos in front; a pair joined by kEos, the second text of type 1.
  PooledText encode(std::string_view text, std::optional<std::string_view> pair,
                    const Truncation& truncation) const override {
    const int truncate = truncation.tokens;
    PooledText out{.tokens = tokenize(text, true), .types = {}};
    out.types.assign(out.tokens.size(), 0);
    if (pair) {
      out.tokens.push_back(kEos);
      for (const TokenId token : tokenize(*pair, false)) out.tokens.push_back(token);
      out.types.resize(out.tokens.size(), 1);
    }
    const auto most = static_cast<size_t>(truncate > 0 ? truncate : info_.max_model_len);
    if (truncate > 0 && out.tokens.size() > most) {
      const bool keep_end = truncation.keep_end && !pair;
      keep_tokens(out.tokens, most, keep_end);
      if (keep_end) out.tokens.front() = kBos;
    }
    out.types.resize(out.tokens.size());
    if (out.tokens.size() <= most) return out;
    throw Error(ErrorCode::kInvalidRequest, "This model's maximum context length is exceeded.", "",
                "context_length_exceeded");
  }
  PoolingRequest last_pooling() const {
    const std::lock_guard lock(mutex_);
    return last_pooling_;
  }
  void cancel(RequestId id) override {
    PoolingSink pooled;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = pooling_.find(id); found != pooling_.end()) {
        ++cancelled;
        pooled = std::move(found->second);
        pooling_.erase(found);
      }
    }
    if (pooled) return pooled({.vectors = {}, .reason = FinishReason::kAbort, .message = {}});
    const std::lock_guard lock(mutex_);
    const auto found = running_.find(id);
    if (found == running_.end()) return;
    ++cancelled;
    found->second.cancelled = true;
    wake_.notify_all();
  }
  bool overloaded() const override { return is_overloaded || draining; }
  void stop_accepting() override { draining = true; }
  Health health() const override {
    const int errors = errors_in_a_row;
    return {.alive = alive && !failed && errors < kFailingAfter,
            .failed = failed,
            .seconds_since_step = 0,
            .running = running(),
            .waiting = 0,
            .errors_in_a_row = errors};
  }
  std::vector<MetricFamily> metrics() const override {
    MetricFamily running_now{.name = "vllm:num_requests_running", .help = "Running\nrequests."};
    running_now.samples.push_back({.labels = {{"model_name", "fa\"ke"}}, .value = static_cast<double>(running())});
    MetricFamily tokens{.name = "vllm:prompt_tokens", .help = "Tokens.", .type = MetricFamily::Type::kCounter};
    tokens.samples.push_back({.value = 7});
    MetricFamily latency{
        .name = "vllm:time_to_first_token_seconds", .help = "TTFT.", .type = MetricFamily::Type::kHistogram};
    latency.samples.push_back({.histogram = {.bounds = {0.5, 1}, .counts = {2, 1, 4}, .sum = 12.5}});
    return {running_now, tokens, latency};
  }

  int running() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(running_.size());
  }
  Request last_request() const {
    const std::lock_guard lock(mutex_);
    return last_request_;
  }

 private:
  struct Choice {
    std::string text;  // all bytes generated
    size_t sent = 0;
    int tokens = 0;
    bool ended = false;
  };
  struct Running {
    Request request;
    EventSink sink;
    std::vector<Choice> choices;
    bool cancelled = false;
    bool prompt_scored = false, prompt_returned = false;
  };

  static TokenLogprobs score(TokenId token, int top) {
    TokenLogprobs out{.token = {token, -0.5f, 1}, .top = {}};
    for (int i = 0; i < top; ++i) out.top.push_back({token + i, -0.5f - static_cast<float>(i), i + 1});
    return out;
  }

  // How much of the text may be shown: whole characters, and nothing that may become a stop string.
  static size_t visible(const std::string& text, const SamplingParams& sampling) {
    size_t hold = 0;
    for (const std::string& stop : sampling.stop) hold = std::max(hold, stop.size() - 1);
    size_t end = text.size() > hold ? text.size() - hold : 0;
    size_t lead = end;
    while (lead > 0 && (static_cast<unsigned char>(text[lead - 1]) & 0xc0) == 0x80) --lead;
    if (lead > 0) {
      const auto byte = static_cast<unsigned char>(text[lead - 1]);
      const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
      if (lead - 1 + length > end) end = lead - 1;
    }
    return end;
  }

  Event step(Running& r, int index) {
    const SamplingParams& s = r.request.sampling;
    Choice& choice = r.choices[static_cast<size_t>(index)];
    Event event;
    event.index = index;
    if (index == 0 && s.prompt_logprobs && !std::exchange(r.prompt_scored, true)) {
      for (const TokenId token : r.request.prompt) event.prompt_logprobs.push_back(score(token, *s.prompt_logprobs));
    }
    if (r.request.returns_prompt && !std::exchange(r.prompt_returned, true)) event.prompt = r.request.prompt;
    const size_t n = r.request.prompt.size();
    const size_t position = static_cast<size_t>(choice.tokens);
    const bool late = r.request.deadline && std::chrono::steady_clock::now() >= *r.request.deadline;
    if (r.cancelled || late) {
      event.finish = Finish{.reason = FinishReason::kAbort, .stop_string = {}, .stop_token = {}, .message = {}};
    } else if (!script_.empty()) {
      event.deltas = script_;
      event.finish = Finish{};
      ++choice.tokens;
    } else if (choice.tokens == fail_at_token) {
      event.finish = Finish{
          .reason = FinishReason::kError, .stop_string = {}, .stop_token = {}, .message = "NaN at 0x7f00deadbeef"};
    } else {
      const bool end = position >= n && !s.ignore_eos;
      const TokenId token = end ? kEos : r.request.prompt[position % n];
      ++choice.tokens;
      event.tokens.push_back(token);
      if (s.logprobs) event.logprobs.push_back(score(token, *s.logprobs));
      if (end) {
        event.finish = Finish{};
      } else if (token < 256) {
        choice.text += static_cast<char>(token);
      }
      if (!event.finish && s.max_tokens && choice.tokens >= *s.max_tokens) {
        event.finish = Finish{.reason = FinishReason::kLength, .stop_string = {}, .stop_token = {}, .message = {}};
      }
      if (std::count(s.stop_token_ids.begin(), s.stop_token_ids.end(), token) > 0) {
        choice.text.pop_back();
        event.finish = Finish{.reason = FinishReason::kStop, .stop_string = {}, .stop_token = token, .message = {}};
      }
      size_t show = event.finish ? choice.text.size() : visible(choice.text, s);
      for (const std::string& stop : s.stop) {
        const size_t at = choice.text.find(stop);
        if (at == std::string::npos) continue;
        show = at + (s.include_stop_str_in_output ? stop.size() : 0);
        event.finish = Finish{.reason = FinishReason::kStop, .stop_string = stop, .stop_token = {}, .message = {}};
      }
      if (show > choice.sent) event.deltas = {TextDelta{choice.text.substr(choice.sent, show - choice.sent)}};
      choice.sent = std::max(show, choice.sent);
    }
    choice.ended = event.finish.has_value();
    event.usage = {.prompt_tokens = static_cast<int>(n), .cached_tokens = 3, .completion_tokens = choice.tokens};
    event.last = std::all_of(r.choices.begin(), r.choices.end(), [](auto& c) { return c.ended; });
    return event;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!closed_) {
      if (running_.empty()) {
        wake_.wait(lock);
        continue;
      }
      std::vector<std::pair<EventSink, Event>> events;
      for (auto it = running_.begin(); it != running_.end();) {
        Running& r = it->second;
        for (int i = 0; i < r.request.n; ++i) {
          const bool moving = !stalled || r.cancelled || r.request.deadline;
          if (moving && !r.choices[static_cast<size_t>(i)].ended) events.emplace_back(r.sink, step(r, i));
        }
        const bool over = std::all_of(r.choices.begin(), r.choices.end(), [](auto& c) { return c.ended; });
        it = over ? running_.erase(it) : std::next(it);
      }
      lock.unlock();
      for (auto& [sink, event] : events) sink(std::move(event));
      events.clear();
      const int pause = stalled ? 1000 : step_us.load();
      if (pause > 0) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      lock.lock();
    }
  }

  ModelInfo info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<RequestId, Running> running_;
  std::map<RequestId, PoolingSink> pooling_;  // while stalled
  PoolingRequest last_pooling_;
  Request last_request_;
  std::vector<Delta> script_;
  RequestId last_id_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace sluice
