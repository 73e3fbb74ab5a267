// One row for each sampler. All take time linear in the text.
#include "sampling/history.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <span>
#include <unordered_map>

namespace sluice {
namespace {

using Edits = std::vector<ops::LogitEdit>;

constexpr float kBanned = -std::numeric_limits<float>::infinity();

struct History {
  bool (*on)(const SamplingParams& params);
  size_t (*most)(const SampleTask& task);
  void (*append)(const SampleTask& task, Edits& edits);
};

// Returns, for each i, how many tokens before the last i ones of a text are equal to the last tokens of the text, but
// at most `most`. This is the Z function of the text read backwards. Takes linear time.
std::vector<int> repeats(std::span<const TokenId> text, int most) {
  const int size = static_cast<int>(text.size());
  const auto back = [&](int i) { return text[static_cast<size_t>(size - 1 - i)]; };
  std::vector<int> equal(text.size());
  for (int i = 1, begin = 0, end = 0; i < size; ++i) {  // [begin, end) is the match that reaches furthest
    int& own = equal[static_cast<size_t>(i)];
    if (i < end) own = std::min(end - i, equal[static_cast<size_t>(i - begin)]);
    while (i + own < size && back(own) == back(i + own)) ++own;
    if (i + own > end) begin = i, end = i + own;
  }
  for (int& own : equal) own = std::min(own, most);
  return equal;
}

// A sampler looks at each token of the text once.
size_t one_per_token(const SampleTask& task) { return task.text().size(); }

void ban_repeated_ngrams(const SampleTask& task, Edits& edits) {
  const std::span<const TokenId> text = task.text();
  const int before = task.params->no_repeat_ngram_size - 1;
  const std::vector<int> equal = repeats(text, before);
  for (size_t i = 1; i < text.size(); ++i) {
    if (equal[i] == before) edits.push_back({.id = text[text.size() - i], .bias = kBanned});
  }
  // A text of a single token has no match before it, but its token is a sequence of one.
  if (before == 0 && !text.empty()) edits.push_back({.id = text.front(), .bias = kBanned});
}

// llama.cpp's DRY, by p-e-w: the longer the text's end repeats an earlier part, the larger the penalty of the token
// that followed there.
void penalize_repetitions(const SampleTask& task, Edits& edits) {
  const SamplingParams& p = *task.params;
  std::span<const TokenId> text = task.text();
  if (p.dry_penalty_last_n >= 0) text = text.last(std::min(text.size(), static_cast<size_t>(p.dry_penalty_last_n)));
  const std::vector<TokenId>& breakers = p.dry_breaker_tokens.items();
  const auto breaks = [&](TokenId token) { return std::ranges::binary_search(breakers, token); };
  const auto unbroken = static_cast<int>(std::find_if(text.rbegin(), text.rend(), breaks) - text.rbegin());
  const int allowed = p.dry_allowed_length;
  if (unbroken < allowed || static_cast<int>(text.size()) <= allowed) return;
  const std::vector<int> equal = repeats(text, unbroken);
  std::unordered_map<TokenId, int> longest;  // by the token that followed
  for (size_t i = 1; i < text.size(); ++i) {
    if (equal[i] < allowed) continue;
    int& own = longest[text[text.size() - i]];
    own = std::max(own, equal[i]);
  }
  constexpr double kMostPenalty = 1e30;
  for (const auto& [token, length] : longest) {
    const double penalty = p.dry_multiplier * std::pow(p.dry_base, length - allowed);
    edits.push_back({.id = token, .late = static_cast<float>(std::min(penalty, kMostPenalty))});
  }
}

// Bans the last token of a word whose other tokens are the end of the output.
void ban_words(const SampleTask& task, Edits& edits) {
  const auto output = std::span(*task.tokens).subspan(static_cast<size_t>(task.prompt_length));
  for (const std::vector<TokenId>& word : task.params->bad_word_tokens) {
    const auto before = std::span(word).first(word.size() - 1);
    if (before.size() > output.size()) continue;
    if (std::ranges::equal(before, output.last(before.size()))) edits.push_back({.id = word.back(), .bias = kBanned});
  }
}

void run_processors(const SampleTask& task, Edits& edits) {
  std::vector<std::pair<TokenId, float>> biases;
  for (const LogitProcessor& process : task.params->logit_processors) {
    process(task.text(), task.prompt_length - task.given, biases);
  }
  for (const auto& [token, bias] : biases) edits.push_back({.id = token, .bias = bias});
}

constexpr std::initializer_list<History> kHistories = {
    {[](const SamplingParams& p) { return !p.logit_processors.empty(); },
     [](const SampleTask&) { return std::numeric_limits<size_t>::max() / 2; }, run_processors},
    {[](const SamplingParams& p) { return !p.bad_word_tokens.empty(); },
     [](const SampleTask& task) { return task.params->bad_word_tokens.size(); }, ban_words},
    {[](const SamplingParams& p) { return p.no_repeat_ngram_size > 0; }, one_per_token, ban_repeated_ngrams},
    {[](const SamplingParams& p) { return p.dry_multiplier > 0 && uses(p, "dry"); }, one_per_token,
     penalize_repetitions},
};

}  // namespace

size_t most_history_edits(const SampleTask& task) {
  size_t most = 0;
  for (const History& sampler : kHistories) {
    if (task.tokens != nullptr && sampler.on(*task.params)) most += sampler.most(task);
  }
  return most;
}

void append_history_edits(const SampleTask& task, Edits& edits) {
  for (const History& sampler : kHistories) {
    if (sampler.on(*task.params)) sampler.append(task, edits);
  }
}

}  // namespace sluice
