// A piece of text per event, and a last object with counts and times.
#include "server/llamacpp/format.h"

#include <fmt/core.h>

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
  if (!options_.stream) return {};
  std::string out;
  if (!text.empty()) out = fmt::format("data: {}\n\n", dump_json(piece(index, text, event.tokens, false)));
  if (ends) out += fmt::format("data: {}\n\n", dump_json(finished(index, "", {})));
  return out;
}

std::string LlamaFormat::stream_error(const ApiError& error) {
  return fmt::format("data: {}\n\n", dump_json(llama_error(error)));
}

std::string LlamaFormat::body() {
  if (answers_.size() == 1) return dump_json(finished(0, answers_[0].text, answers_[0].tokens));
  Json list = Json::array();
  for (size_t i = 0; i < answers_.size(); ++i) list.push_back(finished(i, answers_[i].text, answers_[i].tokens));
  return dump_json(list);
}

Json LlamaFormat::piece(size_t index, std::string_view text, const std::vector<TokenId>& tokens, bool stop) const {
  Json ids = Json::array();
  for (size_t i = 0; options_.tokens && i < tokens.size(); ++i) ids.push_back(tokens[i]);
  return {{"index", index},
          {"content", text},
          {"tokens", std::move(ids)},
          {"stop", stop},
          {"id_slot", -1},
          {"tokens_predicted", answers_[index].usage.completion_tokens},
          {"tokens_evaluated", answers_[index].usage.prompt_tokens}};
}

Json LlamaFormat::finished(size_t index, std::string_view text, const std::vector<TokenId>& tokens) const {
  const Answer& answer = answers_[index];
  const Finish& finish = answer.finish;
  Json out = piece(index, text, tokens, true);
  out["model"] = options_.model;
  out["generation_settings"] = options_.settings;
  out["prompt"] = options_.prompts[index];
  out["has_new_line"] = answer.text.find('\n') != std::string::npos;
  out["truncated"] = false;
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
