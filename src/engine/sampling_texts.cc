// Texts are tokenized once for each request that has some.
#include "engine/sampling_texts.h"

#include <fmt/core.h>

#include <algorithm>

#include "sampling/steps.h"
#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse_parameter(std::string_view name, const char* code, const std::string& what) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid '{}': {}", name, what), std::string(name), code);
}

void check(const SamplingTexts& row, const SharedList<std::string>& texts) {
  if (texts.size() > row.most) {
    refuse_parameter(row.name, "array_above_max_length",
                     fmt::format("expected at most {} texts, but got {} instead.", row.most, texts.size()));
  }
  size_t bytes = 0;
  for (const std::string& text : texts) {
    if (text.empty()) refuse_parameter(row.name, "empty_string", "expected texts that are not empty.");
    bytes += text.size();
  }
  if (bytes <= kMaxStopBytes) return;
  refuse_parameter(row.name, "array_above_max_size",
                   fmt::format("expected at most {} bytes of texts, but got {} instead.", kMaxStopBytes, bytes));
}

// Returns the tokens whose text contains one of the breakers. For a breaker that no token contains, it is the last
// token of the breaker's own text, as in text-generation-webui.
std::vector<TokenId> breaker_tokens(const std::vector<std::string>& breakers, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens;
  std::vector<bool> found(breakers.size());
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string text = tokenizer.token_bytes(id);
    bool breaks = false;
    for (size_t i = 0; i < breakers.size(); ++i) {
      if (text.find(breakers[i]) != std::string::npos) breaks = found[i] = true;
    }
    if (breaks) tokens.push_back(id);
  }
  for (size_t i = 0; i < breakers.size(); ++i) {
    if (found[i]) continue;
    const std::vector<TokenId> own = tokenizer.encode("a" + breakers[i], false);
    if (!own.empty()) tokens.push_back(own.back());
  }
  std::ranges::sort(tokens);
  return tokens;
}

// Like vLLM: the word as it is, and after a space where that begins with another token and has as many.
std::vector<std::vector<TokenId>> word_tokens(const std::vector<std::string>& words, const Tokenizer& tokenizer) {
  std::vector<std::vector<TokenId>> all;
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    std::vector<TokenId> own = tokenizer.encode(bare, false), spaced = tokenizer.encode(" " + bare, false);
    const bool differs = !spaced.empty() && spaced.size() == own.size() && spaced.front() != own.front();
    if (!own.empty()) all.push_back(std::move(own));
    if (differs) all.push_back(std::move(spaced));
  }
  return all;
}

}  // namespace

void resolve_texts(SamplingParams& params, const Tokenizer& tokenizer) {
  for (const SamplingTexts& row : kSamplingTexts) check(row, params.*row.field);
  params.bad_word_tokens = word_tokens(params.bad_words.items(), tokenizer);
  if (params.dry_multiplier > 0) {
    params.dry_breaker_tokens = breaker_tokens(params.dry_sequence_breakers.items(), tokenizer);
  }
  const std::string error = error_of_order(params.samplers.items());
  if (!error.empty()) refuse_parameter("samplers", "invalid_value", error);
}

}  // namespace sluice
