// Prints answers and chunks around their choices.
#include "server/openai/format.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

namespace sluice::server {
namespace {

std::string name_of(const Engine& engine, TokenId id, bool tokens_as_ids) {
  return tokens_as_ids ? fmt::format("token_id:{}", id) : engine.token_bytes(id);
}

// SGLang tells what ended the text, also if it was an end token.
std::string matched_stop(const Finish& finish, const std::vector<TokenId>& tokens) {
  if (finish.reason != FinishReason::kStop) return "null";
  if (!finish.stop_string.empty()) return dump_json(finish.stop_string);
  if (finish.stop_token) return std::to_string(*finish.stop_token);
  return tokens.empty() ? "null" : std::to_string(tokens.back());
}

Json token_entry(const Engine& engine, const TokenLogprob& token, bool tokens_as_ids) {
  Json bytes = Json::array();
  for (const char byte : engine.token_bytes(token.id)) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", name_of(engine, token.id, tokens_as_ids)},
          {"logprob", json_logprob(token.logprob)},
          {"bytes", std::move(bytes)}};
}

}  // namespace

OpenAiFormat::OpenAiFormat(std::shared_ptr<const Engine> engine, FormatOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      prompt_logprobs_(static_cast<size_t>(options_.prompts)),
      prompts_(static_cast<size_t>(options_.prompts)),
      created_(std::time(nullptr)),
      chunk_head_(fmt::format(
          R"(data: {{"id":"{}","object":"{}","created":{},"model":{},"system_fingerprint":"{}","choices":[)",
          options_.id, options_.chunk_object, created_, dump_json(options_.model), options_.fingerprint)),
      choices_(static_cast<size_t>(options_.prompts) * static_cast<size_t>(options_.n)) {}

std::string OpenAiFormat::on_event(int prompt, Event event) {
  const int index = prompt * options_.n + event.index;
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.usage = event.usage;
  if (!event.prompt_logprobs.empty()) {
    prompt_logprobs_[static_cast<size_t>(prompt)] = std::move(event.prompt_logprobs);
  }
  if (!event.prompt.empty()) prompts_[static_cast<size_t>(prompt)] = std::move(event.prompt);
  if (options_.token_ids && collects()) {
    choice.tokens.insert(choice.tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  if (event.finish) {
    choice.finish = event.finish;
    choice.matched = matched_stop(*event.finish, event.tokens);
  }
  return add(prompt, index, choice, event);
}

// A prompt counts once, however many choices share it.
Json OpenAiFormat::usage() const {
  Usage sum;
  for (size_t i = 0; i < choices_.size(); ++i) {
    sum.completion_tokens += choices_[i].usage.completion_tokens;
    sum.reasoning_tokens += choices_[i].usage.reasoning_tokens;
    if (i % static_cast<size_t>(options_.n) == 0) {
      sum.prompt_tokens += choices_[i].usage.prompt_tokens;
      sum.cached_tokens += choices_[i].usage.cached_tokens;
    }
  }
  return usage_json(sum);
}

Json OpenAiFormat::usage_json(const Usage& usage) const {
  const auto prompt = static_cast<int64_t>(usage.prompt_tokens);
  Json out = {{"prompt_tokens", prompt},
              {"total_tokens", prompt + usage.completion_tokens},
              {"completion_tokens", usage.completion_tokens},
              {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
  if (options_.thinks) out["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

std::string OpenAiFormat::chunk(std::string_view choice_json, const Usage& usage, std::string_view members) const {
  std::string usage_text;
  if (options_.continuous_usage) {
    usage_text = ",\"usage\":" + dump_json(usage_json(usage));
  } else if (options_.include_usage) {
    usage_text = ",\"usage\":null";
  }
  return fmt::format("{}{}]{}{}}}\n\n", chunk_head_, choice_json, usage_text, members);
}

std::string OpenAiFormat::stream_end() {
  std::string out;
  if (options_.include_usage) {
    out = fmt::format("{}],\"usage\":{}}}\n\n", chunk_head_, dump_json(usage()));
  }
  return out + "data: [DONE]\n\n";
}

std::string OpenAiFormat::stream_error(const ApiError& error) {
  return fmt::format("data: {}\n\n", dump_json(to_json(error)));
}

std::string OpenAiFormat::body() { return dump_json(whole()); }

const Json& OpenAiFormat::whole() {
  if (!whole_.is_null()) return whole_;
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) choices.push_back(whole_choice(static_cast<int>(i), choices_[i]));
  whole_ = {{"id", options_.id},
            {"object", options_.object},
            {"created", created_},
            {"model", options_.model},
            {"system_fingerprint", options_.fingerprint},
            {"choices", std::move(choices)},
            {"usage", usage()}};
  if (!options_.kv_transfer.is_null()) whole_["kv_transfer_params"] = options_.kv_transfer;
  extend_body(whole_);
  return whole_;
}

std::string OpenAiFormat::finish_members(const Choice& choice, std::string_view stopped) {
  const std::optional<Finish>& finish = choice.finish;
  if (!finish) return std::string(kUnfinished);
  std::string stop_reason = "null";
  if (finish->stop_token) stop_reason = std::to_string(*finish->stop_token);
  if (!finish->stop_string.empty()) stop_reason = dump_json(finish->stop_string);
  // Aborts and faults are answered as errors and never get here.
  const std::string_view reason = finish->reason == FinishReason::kLength ? "length" : stopped;
  return fmt::format(R"("finish_reason":"{}","stop_reason":{},"matched_stop":{})", reason, stop_reason, choice.matched);
}

std::string OpenAiFormat::token_name(TokenId id) const { return name_of(*engine_, id, options_.tokens_as_ids); }

std::vector<TokenLogprobs> text_logprobs(const Event& event, bool keep_stop) {
  std::vector<TokenLogprobs> out = event.logprobs;
  const bool ended_by_token =
      event.finish && event.finish->reason == FinishReason::kStop && event.finish->stop_string.empty();
  if (ended_by_token && !keep_stop && !out.empty()) out.pop_back();
  return out;
}

Json logprobs_content(const Engine& engine, std::span<const TokenLogprobs> logprobs, int top, bool tokens_as_ids) {
  Json content = Json::array();
  for (const TokenLogprobs& token : logprobs) {
    Json entry = token_entry(engine, token.token, tokens_as_ids);
    Json others = Json::array();
    for (const TokenLogprob& other : token.top) {
      if (static_cast<int>(others.size()) < top) others.push_back(token_entry(engine, other, tokens_as_ids));
    }
    entry["top_logprobs"] = std::move(others);
    content.push_back(std::move(entry));
  }
  return content;
}

std::string ids_text(const std::vector<TokenId>& ids) { return fmt::format("[{}]", fmt::join(ids, ",")); }

double json_logprob(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

bool is_utf8(std::string_view bytes) {
  try {
    Json(std::string(bytes)).dump();  // strict: throws for what is not UTF-8
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

Json prompt_logprobs_json(const Engine& engine, const std::vector<TokenLogprobs>& logprobs) {
  Json out = Json::array();
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (i == 0) {
      out.push_back(nullptr);
      continue;
    }
    Json entry = Json::object();
    const auto add = [&](const TokenLogprob& token) {
      entry[std::to_string(token.id)] = {{"logprob", json_logprob(token.logprob)},
                                         {"rank", token.rank},
                                         {"decoded_token", engine.token_bytes(token.id)}};
    };
    add(logprobs[i].token);
    for (const TokenLogprob& token : logprobs[i].top) add(token);
    out.push_back(std::move(entry));
  }
  return out;
}

}  // namespace sluice::server
