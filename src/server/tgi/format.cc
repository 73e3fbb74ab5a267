// A stream has one event per token; the last one has the whole text and the details.
#include "server/tgi/format.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::server {

// Texts of tokens in a stream are those that became complete with them, so that characters of several tokens are whole.
std::string TgiFormat::on_event(int, Event event) {
  usage_ = event.usage;
  if (!event.prompt_logprobs.empty()) prefill_ = prompt_tokens(event.prompt_logprobs);
  const std::string text = event_text(event);
  text_ += text;
  if (event.finish) finish_ = event.finish;
  const bool ended_by_token = event.finish && event.finish->end_token;
  std::string out;
  for (size_t i = 0; i < event.logprobs.size(); ++i) {
    const bool last = i + 1 == event.logprobs.size();
    Json one = token(event.logprobs[i], last && ended_by_token);
    tokens_.push_back(one);
    if (!one["special"]) one["text"] = last ? text : "";
    ++index_;
    if (last && event.finish) {
      out += last_event(std::move(one));
    } else {
      out += fmt::format(
          "data:{}\n\n",
          dump_json({{"index", index_}, {"token", std::move(one)}, {"generated_text", nullptr}, {"details", nullptr}}));
    }
  }
  return out;
}

std::string TgiFormat::last_event(Json token) {
  ended_ = true;
  return fmt::format("data:{}\n\n", dump_json({{"index", index_},
                                               {"token", std::move(token)},
                                               {"generated_text", options_.before + text_},
                                               {"details", details()}}));
}

// The end of an answer may come without a token.
std::string TgiFormat::stream_end() { return ended_ ? std::string() : last_event(nullptr); }

std::string TgiFormat::stream_error(const ApiError& error) {
  return fmt::format("data:{}\n\n", kTgi.error_body(error));
}

std::string TgiFormat::body() {
  Json out = {{"generated_text", options_.before + text_}};
  if (options_.details) {
    out["details"] = details();
    out["details"]["prefill"] = prefill_;
    out["details"]["tokens"] = tokens_;
  }
  return dump_json(options_.list ? Json::array({std::move(out)}) : out);
}

Json TgiFormat::token(const TokenLogprobs& token, bool special) const {
  return {{"id", token.token.id},
          {"text", engine_->token_bytes(token.token.id)},
          {"logprob", std::max(static_cast<double>(token.token.logprob), -9999.0)},  // JSON has no infinity
          {"special", special}};
}

// Nothing comes before the first token, which has no log probability.
Json TgiFormat::prompt_tokens(const std::vector<TokenLogprobs>& tokens) const {
  Json out = Json::array();
  for (const TokenLogprobs& one : tokens) {
    Json row = token(one, false);
    row.erase("special");
    if (out.empty()) row["logprob"] = nullptr;
    out.push_back(std::move(row));
  }
  return out;
}

Json TgiFormat::details() const {
  const bool word = finish_ && !finish_->stop_string.empty();
  const bool length = finish_ && finish_->reason == FinishReason::kLength;
  return {{"finish_reason", length ? "length"
                            : word ? "stop_sequence"
                                   : "eos_token"},
          {"generated_tokens", usage_.completion_tokens},
          {"input_length", usage_.prompt_tokens},
          {"seed", options_.seed ? Json(*options_.seed) : Json()}};
}

}  // namespace sluice::server
