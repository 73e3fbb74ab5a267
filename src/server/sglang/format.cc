// An event of a stream repeats the whole answer so far, as SGLang's do.
#include "server/sglang/format.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::server {
namespace {

Json finish_reason(const Finish& finish, const std::vector<TokenId>& tokens, int completion_tokens) {
  if (finish.reason == FinishReason::kLength) return {{"type", "length"}, {"length", completion_tokens}};
  Json matched;
  if (!finish.stop_string.empty()) {
    matched = finish.stop_string;
  } else if (finish.stop_token) {
    matched = *finish.stop_token;
  } else if (finish.end_token && !tokens.empty()) {
    matched = tokens.back();
  }
  return {{"type", "stop"}, {"matched", std::move(matched)}};
}

}  // namespace

SglangFormat::SglangFormat(std::shared_ptr<const Engine> engine, SglangAnswerOptions options)
    : engine_(std::move(engine)), options_(std::move(options)), prompt_logprobs_(options_.prompts.size()) {
  for (size_t i = 0; i < options_.prompts.size(); ++i) {
    first_.push_back(answers_.size());
    for (int choice = 0; choice < options_.prompts[i].n; ++choice) answers_.push_back({.prompt = i});
  }
}

std::string SglangFormat::on_event(int prompt, Event event) {
  const auto p = static_cast<size_t>(prompt);
  const size_t index = first_[p] + static_cast<size_t>(event.index);
  const SglangPrompt& asked = options_.prompts[p];
  Answer& answer = answers_[index];
  answer.usage = event.usage;
  if (!event.prompt_logprobs.empty()) prompt_logprobs_[p] = std::move(event.prompt_logprobs);
  if (event.finish) {
    answer.finish = std::move(event.finish);
    answer.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  }
  if (asked.scores_only) {
    answer.usage.completion_tokens = 0;
    if (answer.finish) answer.finish = Finish{.reason = FinishReason::kLength};
  } else {
    answer.text += event_text(event);
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    for (const TokenLogprobs& token : event.logprobs) {
      answer.token_logprobs.push_back(entry(token.token));
      if (asked.top > 0) answer.top_logprobs.push_back(top_entries(token, asked.top));
    }
  }
  if (!options_.stream || (event.tokens.empty() && !answer.finish)) return {};
  Json out = answer_json(answer);
  if (options_.is_list) out["index"] = index;
  return fmt::format("data: {}\n\n", dump_json(out));
}

std::string SglangFormat::stream_error(const ApiError& error) {
  return fmt::format("data: {}\n\ndata: [DONE]\n\n", kSglang.error_body(error));
}

std::string SglangFormat::body() {
  if (!options_.is_list) return dump_json(answer_json(answers_.front()));
  Json list = Json::array();
  for (const Answer& answer : answers_) list.push_back(answer_json(answer));
  return dump_json(list);
}

Json SglangFormat::entry(const TokenLogprob& token) const {
  const double logprob = std::max(static_cast<double>(token.logprob), -9999.0);  // JSON has no infinity
  return Json::array({logprob, token.id, options_.token_texts ? Json(engine_->token_bytes(token.id)) : Json()});
}

Json SglangFormat::top_entries(const TokenLogprobs& token, int most) const {
  Json list = Json::array();
  for (const TokenLogprob& other : token.top) {
    if (static_cast<int>(list.size()) < most) list.push_back(entry(other));
  }
  return list;
}

Json SglangFormat::answer_json(const Answer& answer) const {
  const SglangPrompt& asked = options_.prompts[answer.prompt];
  Json meta = {{"id", asked.id},
               {"finish_reason",
                answer.finish ? finish_reason(*answer.finish, answer.tokens, answer.usage.completion_tokens) : Json()},
               {"prompt_tokens", answer.usage.prompt_tokens},
               {"completion_tokens", answer.usage.completion_tokens},
               {"cached_tokens", answer.usage.cached_tokens},
               {"weight_version", "default"}};
  if (asked.logprobs) add_logprobs(answer, meta);
  if (answer.finish) meta["e2e_latency"] = answer.seconds;
  return {{"text", answer.text}, {"output_ids", answer.tokens}, {"meta_info", std::move(meta)}};
}

// The first token that is scored has no log probability, as in SGLang: nothing comes before it.
void SglangFormat::add_logprobs(const Answer& answer, Json& meta) const {
  const SglangPrompt& asked = options_.prompts[answer.prompt];
  const std::vector<TokenLogprobs>& scored = prompt_logprobs_[answer.prompt];
  Json tokens = Json::array(), top = Json::array();
  const size_t start = asked.start ? static_cast<size_t>(*asked.start) : asked.tokens.size();
  for (size_t i = start; i < asked.tokens.size(); ++i) {
    const bool known = i > start && i < scored.size();
    const TokenId id = asked.tokens[i];
    tokens.push_back(known
                         ? entry(scored[i].token)
                         : Json::array({nullptr, id, options_.token_texts ? Json(engine_->token_bytes(id)) : Json()}));
    if (asked.top > 0) top.push_back(known ? top_entries(scored[i], asked.top) : Json());
  }
  meta["input_token_logprobs"] = std::move(tokens);
  meta["output_token_logprobs"] = answer.token_logprobs;
  if (asked.top == 0) return;
  meta["input_top_logprobs"] = std::move(top);
  meta["output_top_logprobs"] = answer.top_logprobs;
}

}  // namespace sluice::server
