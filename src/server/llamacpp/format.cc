// A piece of text per event, and a last object with counts and times.
#include "server/llamacpp/format.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "server/milliseconds.h"

namespace sluice::server {
namespace {

// JSON has no infinity: no time, no rate.
double per_second(int count, double ms) { return ms > 0 ? count * 1000.0 / ms : 0; }
double per_token(int count, double ms) { return count > 0 ? ms / count : 0; }

}  // namespace

std::string LlamaFormat::on_event(int prompt, Event event) {
  const auto index = static_cast<size_t>(prompt);
  Answer& answer = answers_[index];
  answer.end = Clock::now();
  if (!answer.first) answer.first = answer.end;
  answer.usage = event.usage;
  const std::string text = event_text(event);
  answer.text += text;
  if (options_.tokens && !options_.stream) {
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  const bool ends = event.finish.has_value();
  if (ends) answer.finish = std::move(*event.finish);
  if (!options_.stream) {
    for (TokenLogprobs& token : event.logprobs) answer.logprobs.push_back(std::move(token));
    return {};
  }
  std::string out;
  if (!text.empty() || !event.logprobs.empty()) {
    out = fmt::format("data: {}\n\n", shown(piece(index, {text, event.tokens, event.logprobs}, false)));
  }
  if (ends) out += fmt::format("data: {}\n\n", shown(finished(index, {"", {}, {}})));
  return out;
}

std::string LlamaFormat::stream_error(const ApiError& error) {
  return fmt::format("data: {}\n\n", dump_json(llama_error(error)));
}

std::string LlamaFormat::body() {
  if (answers_.size() == 1) return shown(whole(0));
  std::vector<std::string> list;
  for (size_t i = 0; i < answers_.size(); ++i) list.push_back(shown(whole(i)));
  return fmt::format("[{}]", fmt::join(list, ","));
}

Json LlamaFormat::whole(size_t index) const {
  const Answer& answer = answers_[index];
  return finished(index, {answer.text, answer.tokens, answer.logprobs});
}

// The text of an answer, with the fields that were asked for.
std::string LlamaFormat::shown(Json answer) const {
  if (options_.fields.empty()) return dump_json(answer);
  Json out = Json::object();
  for (const std::string& field : options_.fields) {
    const Json* value = &answer;
    for (std::string_view rest = field; value != nullptr && !rest.empty();) {
      const size_t slash = std::min(rest.find('/'), rest.size());
      const auto found = value->is_object() ? value->find(rest.substr(0, slash)) : value->end();
      value = value->is_object() && found != value->end() ? &*found : nullptr;
      rest.remove_prefix(std::min(slash + 1, rest.size()));
    }
    if (value != nullptr) out[field] = *value;
  }
  return dump_json(out);
}

Json LlamaFormat::probabilities(const std::vector<TokenLogprobs>& logprobs) const {
  const auto entry = [&](const TokenLogprob& token) {
    const std::string text = engine_->token_bytes(token.id);
    Json bytes = Json::array();
    for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
    return Json{{"id", token.id},
                {"token", text},
                {"bytes", std::move(bytes)},
                {"logprob", std::max(static_cast<double>(token.logprob), -9999.0)}};  // JSON has no infinity
  };
  Json out = Json::array();
  for (const TokenLogprobs& token : logprobs) {
    Json top = Json::array();
    for (const TokenLogprob& other : token.top) {
      if (static_cast<int>(top.size()) < options_.top_tokens) top.push_back(entry(other));
    }
    Json one = entry(token.token);
    one["top_logprobs"] = std::move(top);
    out.push_back(std::move(one));
  }
  return out;
}

Json LlamaFormat::piece(size_t index, const Part& part, bool stop) const {
  Json ids = Json::array();
  for (size_t i = 0; options_.tokens && i < part.tokens.size(); ++i) ids.push_back(part.tokens[i]);
  Json out = {{"index", index},
              {"content", part.text},
              {"tokens", std::move(ids)},
              {"stop", stop},
              {"id_slot", -1},
              {"tokens_predicted", answers_[index].usage.completion_tokens},
              {"tokens_evaluated", answers_[index].usage.prompt_tokens}};
  if (options_.top_tokens > 0) out["completion_probabilities"] = probabilities(part.logprobs);
  if (options_.times_per_token) out["timings"] = timings(answers_[index]);
  return out;
}

Json LlamaFormat::finished(size_t index, const Part& part) const {
  const Answer& answer = answers_[index];
  const Finish& finish = answer.finish;
  Json out = piece(index, part, true);
  out["model"] = options_.model;
  out["generation_settings"] = options_.settings;
  out["prompt"] = options_.prompts[index];
  out["has_new_line"] = answer.text.find('\n') != std::string::npos;
  out["truncated"] = answer.usage.context_shifts > 0;
  out["stop_type"] = finish.reason == FinishReason::kLength ? "limit" : finish.stop_string.empty() ? "eos" : "word";
  out["stopping_word"] = finish.stop_string;
  out["tokens_cached"] = answer.usage.cached_tokens;
  out["timings"] = timings(answer);
  return out;
}

Json LlamaFormat::timings(const Answer& answer) const {
  const Clock::time_point first = answer.first.value_or(answer.end);
  const double prompt = milliseconds(first - start_), predicted = milliseconds(answer.end - first);
  const int read = answer.usage.prompt_tokens - answer.usage.cached_tokens, written = answer.usage.completion_tokens;
  return {{"cache_n", answer.usage.cached_tokens},
          {"prompt_n", read},
          {"prompt_ms", prompt},
          {"prompt_per_token_ms", per_token(read, prompt)},
          {"prompt_per_second", per_second(read, prompt)},
          {"predicted_n", written},
          {"predicted_ms", predicted},
          {"predicted_per_token_ms", per_token(written, predicted)},
          {"predicted_per_second", per_second(written, predicted)}};
}

}  // namespace sluice::server
