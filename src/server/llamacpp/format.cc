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

std::string LlamaFormat::on_event(int, Event event) {
  if (!first_) first_ = Clock::now();
  usage_ = event.usage;
  const std::string text = event_text(event);
  text_ += text;
  if (options_.tokens && !options_.stream) tokens_.insert(tokens_.end(), event.tokens.begin(), event.tokens.end());
  if (event.finish) finish_ = std::move(event.finish);
  if (!options_.stream || text.empty()) return {};
  return fmt::format("data: {}\n\n", dump_json(piece(text, event.tokens, false)));
}

std::string LlamaFormat::stream_end() { return fmt::format("data: {}\n\n", dump_json(finished("", {}))); }

std::string LlamaFormat::stream_error(const ApiError& error) {
  return fmt::format("data: {}\n\n", dump_json(llama_error(error)));
}

std::string LlamaFormat::body() { return dump_json(finished(text_, tokens_)); }

Json LlamaFormat::piece(std::string_view text, const std::vector<TokenId>& tokens, bool stop) const {
  Json ids = Json::array();
  for (size_t i = 0; options_.tokens && i < tokens.size(); ++i) ids.push_back(tokens[i]);
  return {{"index", 0},
          {"content", text},
          {"tokens", std::move(ids)},
          {"stop", stop},
          {"id_slot", -1},
          {"tokens_predicted", usage_.completion_tokens},
          {"tokens_evaluated", usage_.prompt_tokens}};
}

Json LlamaFormat::finished(std::string_view text, const std::vector<TokenId>& tokens) const {
  const Finish finish = finish_.value_or(Finish{});
  Json out = piece(text, tokens, true);
  out["model"] = options_.model;
  out["generation_settings"] = options_.settings;
  out["prompt"] = options_.prompt;
  out["has_new_line"] = text_.find('\n') != std::string::npos;
  out["truncated"] = false;
  out["stop_type"] = finish.reason == FinishReason::kLength ? "limit" : finish.stop_string.empty() ? "eos" : "word";
  out["stopping_word"] = finish.stop_string;
  out["tokens_cached"] = usage_.cached_tokens;
  out["timings"] = timings();
  return out;
}

Json LlamaFormat::timings() const {
  const Clock::time_point end = Clock::now(), first = first_.value_or(end);
  const double prompt = milliseconds(first - start_), predicted = milliseconds(end - first);
  const int read = usage_.prompt_tokens - usage_.cached_tokens, written = usage_.completion_tokens;
  return {{"cache_n", usage_.cached_tokens},
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
