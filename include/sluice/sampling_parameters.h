// How tokens are chosen: SamplingParams, and one row for each number among them. The engine's checks, the fields of
// every API, the flags of the command line and their documentation are made from the rows.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/shared_list.h"
#include "sluice/token.h"

namespace sluice {

// Limits on the stop strings of a request.
inline constexpr size_t kMaxStopStrings = 1024;
inline constexpr size_t kMaxStopBytes = 64 << 10;  // bytes of all stop strings together

// Changes logits by the text so far, which begins with `prompt_length` tokens of prompt: adds tokens and what is added
// to their logits. -infinity excludes a token. It runs on the engine's threads, and must not throw.
using LogitProcessor = std::function<void(std::span<const TokenId> text, int prompt_length,
                                          std::vector<std::pair<TokenId, float>>& biases)>;

// How tokens are chosen. Names and meanings follow vLLM, OpenAI and, for samplers that these lack, their inventors.
// docs/sampling.md has the order in which they apply. Engine::submit checks every range given here.
struct SamplingParams {
  double temperature = 1.0;         // 0 .. 2; 0: greedy (the lowest id wins a tie)
  int top_k = 0;                    // 0 or -1: all
  double top_p = 1.0;               // (0, 1]
  double min_p = 0.0;               // [0, 1], relative to the most likely token
  double top_n_sigma = 0.0;         // standard deviations of the logits below the largest one; 0 or less: off
  double repetition_penalty = 1.0;  // > 0, over prompt and output (Keskar et al. 2019, arXiv:1909.05858)
  double presence_penalty = 0.0;    // -2 .. 2, over the output
  double frequency_penalty = 0.0;   // -2 .. 2, over the output
  int repeat_last_n = -1;           // how many tokens back the penalties look; -1: all; 0: none
  double typical_p = 1.0;           // (0, 1]; 1: off (Meister et al. 2022, arXiv:2202.00666)
  double top_a = 0.0;               // [0, 1]; 0: off
  double epsilon_cutoff = 0.0;      // [0, 1]; 0: off (Hewitt et al. 2022, arXiv:2210.15191)
  double eta_cutoff = 0.0;          // [0, 1]; 0: off (Hewitt et al. 2022, arXiv:2210.15191)
  double xtc_probability = 0.0;     // [0, 1]; 0: off
  double xtc_threshold = 0.1;       // [0, 1]; above 0.5: off
  double dynatemp_range = 0.0;      // 0 .. 2, around the temperature; 0: off
  double dynatemp_exponent = 1.0;   // 0 .. 10, of the entropy's share of its maximum
  double smoothing_factor = 0.0;    // 0 .. 10; 0: off
  double smoothing_curve = 1.0;     // 1 .. 3
  int mirostat = 0;                 // 1 or 2: the version (Basu et al. 2020, arXiv:2007.14966); 0: off
  double mirostat_tau = 5.0;        // 0 .. 30: bits of surprise to aim at
  double mirostat_eta = 0.1;        // 0 .. 1: how fast it learns
  double adaptive_target = -1.0;    // 0 .. 1: the probability to favour; below 0: off
  double adaptive_decay = 0.9;      // 0 .. 0.99
  int no_repeat_ngram_size = 0;     // 0: off; over prompt and output, as in transformers
  double dry_multiplier = 0.0;      // 0 .. 100; 0: off
  double dry_base = 1.75;           // 1 .. 10
  int dry_allowed_length = 2;       // repeated tokens without a penalty
  int dry_penalty_last_n = -1;      // how far to look back; -1: over the whole text; 0: off
  // 0 .. 1; above 0: contrastive search among the top_k likeliest tokens (docs/beam-search.md)
  double penalty_alpha = 0.0;
  std::vector<std::pair<TokenId, float>> logit_bias{};  // added to the logit, -100 .. 100, or -infinity: never
  // No repetition goes across these texts. The engine sets the tokens.
  SharedList<std::string> dry_sequence_breakers{"\n", ":", "\"", "*"};
  SharedList<TokenId> dry_breaker_tokens{};
  // Texts that are not generated, as in vLLM. The engine sets the tokens.
  SharedList<std::string> bad_words{};
  SharedList<std::vector<TokenId>> bad_word_tokens{};
  SharedList<LogitProcessor> logit_processors{};  // called in this order
  // The samplers to use, and their order. Empty: all, in the order of docs/sampling.md.
  SharedList<std::string> samplers{};
  SharedList<TokenId> allowed_token_ids{};  // at most as many as the vocabulary has tokens; empty: all
  // The same seed and request give the same tokens in every batch. None: derived from the engine's seed.
  std::optional<int64_t> seed{};
  // The text ends before the first stop string, which may span tokens. At most kMaxStopStrings, none of them empty,
  // with at most kMaxStopBytes together.
  SharedList<std::string> stop{};
  std::vector<TokenId> stop_token_ids{};  // tokens that end the text
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  int min_tokens = 0;                    // output tokens before an end token or a stop string counts
  std::optional<int> max_tokens{};       // output tokens, at least 1; none: up to the context length
  std::optional<int> logprobs{};         // most likely alternatives per output token; 0: only the token's own
  std::optional<int> prompt_logprobs{};  // like logprobs, for each prompt token but the first
  bool skip_special_tokens = true;       // leave special tokens out of the text
};

struct SamplingParameter {
  // What a value other than the default changes.
  enum class Effect {
    kPenalty,  // single logits, by counts of tokens
    kHistory,  // single logits, by the text so far
    kScale,    // all logits
    kFilter,   // which tokens may be sampled
    kChain,    // the same, by the chain of samplers (src/ops/sample_chain.h)
    kSetting,  // how another parameter works
  };
  // APIs with the field, besides those of OpenAI, which have all.
  enum Dialect : unsigned { kLlamaCpp = 1, kOllama = 2, kTgi = 4, kAnthropic = 8, kSglang = 16, kAllDialects = 31 };
  using Field = std::variant<double SamplingParams::*, int SamplingParams::*>;

  std::string_view name;  // of the request's field; the command's flag has '-' for '_'
  Field field;
  double min = 0, max = 0;  // inclusive
  bool above_min = false;   // the range excludes min itself
  Effect effect = Effect::kFilter;
  bool stateful = false;           // a chain's sampler that remembers what was sampled before
  std::string_view fallback = {};  // the default, for readers
  unsigned dialects = 0;
  std::string_view llama_name = {};  // the field's name in llama.cpp's API and Ollama's, if it differs
  std::string_view help = {};

  constexpr std::string_view name_in(Dialect dialect) const {
    const bool llama = dialect == kLlamaCpp || dialect == kOllama;
    return llama && !llama_name.empty() ? llama_name : name;
  }
  constexpr bool is_integer() const { return std::holds_alternative<int SamplingParams::*>(field); }
  constexpr double of(const SamplingParams& params) const {
    return std::visit([&](auto member) { return static_cast<double>(params.*member); }, field);
  }
  // `value` must be in range, and an integer if is_integer().
  constexpr void set(SamplingParams& params, double value) const {
    std::visit([&](auto member) { params.*member = static_cast<decltype(params.*member + 0)>(value); }, field);
  }
};

inline constexpr auto kSamplingParameters = std::to_array<SamplingParameter>({
    {.name = "temperature",
     .field = &SamplingParams::temperature,
     .min = 0,
     .max = 2,
     .effect = SamplingParameter::Effect::kScale,
     .fallback = "the model's, else 1",
     .dialects = SamplingParameter::kAllDialects,
     .help = "divides the logits; 0 always takes the most likely token"},
    {.name = "top_p",
     .field = &SamplingParams::top_p,
     .min = 0,
     .max = 1,
     .above_min = true,
     .fallback = "the model's, else 1",
     .dialects = SamplingParameter::kAllDialects,
     .help = "sample from the smallest set of tokens with this much probability"},
    {.name = "top_k",
     .field = &SamplingParams::top_k,
     .min = -1,
     .max = 2147483647,
     .fallback = "the model's, else 0",
     .dialects = SamplingParameter::kAllDialects,
     .help = "sample from this many most likely tokens (0 or -1: all)"},
    {.name = "min_p",
     .field = &SamplingParams::min_p,
     .min = 0,
     .max = 1,
     .fallback = "the model's, else 0",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama | SamplingParameter::kSglang,
     .help = "least probability, relative to the most likely token"},
    {.name = "top_n_sigma",
     .field = &SamplingParams::top_n_sigma,
     .min = -1,
     .max = 1000,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "sample from logits within this many standard deviations of the largest one (0 or less: all)"},
    {.name = "presence_penalty",
     .field = &SamplingParams::presence_penalty,
     .min = -2,
     .max = 2,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama | SamplingParameter::kSglang,
     .help = "subtracted from the logits of tokens that are in the output"},
    {.name = "frequency_penalty",
     .field = &SamplingParams::frequency_penalty,
     .min = -2,
     .max = 2,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama | SamplingParameter::kTgi |
                 SamplingParameter::kSglang,
     .help = "subtracted once for each time that a token is in the output"},
    {.name = "repetition_penalty",
     .field = &SamplingParams::repetition_penalty,
     .min = 0.000001,
     .max = 1000000,
     .effect = SamplingParameter::Effect::kPenalty,
     .fallback = "the model's, else 1",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama | SamplingParameter::kTgi |
                 SamplingParameter::kSglang,
     .llama_name = "repeat_penalty",
     .help = "factor for tokens of prompt and output"},
    {.name = "repeat_last_n",
     .field = &SamplingParams::repeat_last_n,
     .min = -1,
     .max = 2147483647,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "-1",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama,
     .help = "how many tokens back the three penalties look; -1: all; 0: none"},
    {.name = "typical_p",
     .field = &SamplingParams::typical_p,
     .min = 0,
     .max = 1,
     .above_min = true,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "1",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama | SamplingParameter::kTgi,
     .help = "sample from the tokens whose information is nearest to the expected one, with this much probability"},
    {.name = "top_a",
     .field = &SamplingParams::top_a,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .help = "least probability, as a multiple of the largest one's square"},
    {.name = "epsilon_cutoff",
     .field = &SamplingParams::epsilon_cutoff,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .help = "least probability of a token (transformers' definition)"},
    {.name = "eta_cutoff",
     .field = &SamplingParams::eta_cutoff,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .help = "least probability of a token; lower where the entropy is high (transformers' definition)"},
    {.name = "xtc_probability",
     .field = &SamplingParams::xtc_probability,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "chance that all likely tokens but the least likely of them are excluded (llama.cpp's XTC)"},
    {.name = "xtc_threshold",
     .field = &SamplingParams::xtc_threshold,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "0.1",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "probability from which xtc_probability takes tokens to be likely"},
    {.name = "dynatemp_range",
     .field = &SamplingParams::dynatemp_range,
     .min = 0,
     .max = 2,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "the temperature moves with the entropy, by this much to both sides (llama.cpp's dynamic temperature)"},
    {.name = "dynatemp_exponent",
     .field = &SamplingParams::dynatemp_exponent,
     .min = 0,
     .max = 10,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "1",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "exponent of the entropy's share of its maximum, for dynatemp_range"},
    {.name = "smoothing_factor",
     .field = &SamplingParams::smoothing_factor,
     .min = 0,
     .max = 10,
     .effect = SamplingParameter::Effect::kChain,
     .fallback = "0",
     .help = "logits fall with the square of their distance from the largest one (text-generation-webui's definition)"},
    {.name = "smoothing_curve",
     .field = &SamplingParams::smoothing_curve,
     .min = 1,
     .max = 3,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "1",
     .help = "above 1, a part of smoothing_factor's square is a cube instead"},
    {.name = "mirostat",
     .field = &SamplingParams::mirostat,
     .min = 0,
     .max = 2,
     .effect = SamplingParameter::Effect::kChain,
     .stateful = true,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama,
     .help =
         "1 or 2: keeps the surprise near mirostat_tau. As in llama.cpp, all samplers but temperature and penalties "
         "are off then"},
    {.name = "mirostat_tau",
     .field = &SamplingParams::mirostat_tau,
     .min = 0,
     .max = 30,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "5",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama,
     .help = "bits of surprise that mirostat aims at"},
    {.name = "mirostat_eta",
     .field = &SamplingParams::mirostat_eta,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "0.1",
     .dialects = SamplingParameter::kLlamaCpp | SamplingParameter::kOllama,
     .help = "how fast mirostat learns"},
    {.name = "adaptive_target",
     .field = &SamplingParams::adaptive_target,
     .min = -1,
     .max = 1,
     .effect = SamplingParameter::Effect::kChain,
     .stateful = true,
     .fallback = "-1",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "favours tokens near this probability (llama.cpp's adaptive-p); below 0: off"},
    {.name = "adaptive_decay",
     .field = &SamplingParams::adaptive_decay,
     .min = 0,
     .max = 0.99,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "0.9",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "how long adaptive_target remembers the probabilities of earlier tokens"},
    {.name = "no_repeat_ngram_size",
     .field = &SamplingParams::no_repeat_ngram_size,
     .min = 0,
     .max = 2147483647,
     .effect = SamplingParameter::Effect::kHistory,
     .fallback = "0",
     .help = "no sequence of this many tokens occurs twice in prompt and output (transformers' definition); 0: off"},
    {.name = "dry_multiplier",
     .field = &SamplingParams::dry_multiplier,
     .min = 0,
     .max = 100,
     .effect = SamplingParameter::Effect::kHistory,
     .fallback = "0",
     .dialects = SamplingParameter::kLlamaCpp,
     .help =
         "subtracted from the logits of tokens that go on with a repetition, times a power of dry_base (llama.cpp's "
         "DRY); 0: off"},
    {.name = "dry_base",
     .field = &SamplingParams::dry_base,
     .min = 1,
     .max = 10,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "1.75",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "to the power of the repeated tokens beyond dry_allowed_length"},
    {.name = "dry_allowed_length",
     .field = &SamplingParams::dry_allowed_length,
     .min = 0,
     .max = 2147483647,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "2",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "shorter repetitions have no penalty from dry_multiplier"},
    {.name = "dry_penalty_last_n",
     .field = &SamplingParams::dry_penalty_last_n,
     .min = -1,
     .max = 2147483647,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "-1",
     .dialects = SamplingParameter::kLlamaCpp,
     .help = "how many tokens back dry_multiplier looks for repetitions; -1: all; 0: none"},
    {.name = "penalty_alpha",
     .field = &SamplingParams::penalty_alpha,
     .min = 0,
     .max = 1,
     .effect = SamplingParameter::Effect::kSetting,
     .fallback = "0",
     .help =
         "weight of the likeness to earlier tokens in a contrastive search, which chooses among the top_k likeliest "
         "tokens (0: none; docs/beam-search.md)"},
});

// A parameter that is a list of texts. src/engine/sampling_texts.cc makes tokens of those that stand for tokens.
struct SamplingTexts {
  std::string_view name;
  SharedList<std::string> SamplingParams::*field;
  size_t most = 0;  // texts, none of them empty, with at most kMaxStopBytes together
  unsigned dialects = 0;
  std::string_view fallback = {};
  std::string_view help = {};
};

inline constexpr auto kSamplingTexts = std::to_array<SamplingTexts>({
    {.name = "bad_words",
     .field = &SamplingParams::bad_words,
     .most = 1024,
     .fallback = "none",
     .help = "texts that are not generated (vLLM's definition)"},
    {.name = "dry_sequence_breakers",
     .field = &SamplingParams::dry_sequence_breakers,
     .most = 64,
     .dialects = SamplingParameter::kLlamaCpp,
     .fallback = R"(["\n", ":", "\"", "*"])",
     .help = "no repetition that dry_multiplier penalizes goes across these texts"},
    {.name = "samplers",
     .field = &SamplingParams::samplers,
     .most = 32,
     .dialects = SamplingParameter::kLlamaCpp,
     .fallback = "the usual order",
     .help =
         "the samplers to use, in this order, by llama.cpp's names (docs/sampling.md); penalties and dry come first, "
         "and those that are left out are off"},
});

// Whether `samplers` leaves a sampler on.
inline bool uses(const SamplingParams& params, std::string_view sampler) {
  const std::vector<std::string>& names = params.samplers.items();
  return names.empty() || std::ranges::find(names, sampler) != names.end();
}

// Whether a parameter for which `is(row)` holds differs from its default.
template <class Is>
bool any_parameter(const SamplingParams& params, Is is) {
  static const SamplingParams kNeutral;
  for (const SamplingParameter& row : kSamplingParameters) {
    if (is(row) && row.of(params) != row.of(kNeutral)) return true;
  }
  return false;
}
inline bool any_parameter(const SamplingParams& params, SamplingParameter::Effect effect) {
  return any_parameter(params, [=](const SamplingParameter& row) { return row.effect == effect; });
}
// Whether the text is searched for, by what the hidden states of its tokens are like.
inline bool searches_contrastively(const SamplingParams& params) { return params.penalty_alpha > 0; }
inline constexpr int kMostCandidates = 64;  // of a contrastive search: its top_k is 2 at least
// Whether a parameter looks at the text so far.
inline bool needs_history(const SamplingParams& params) {
  return !params.bad_words.empty() || !params.logit_processors.empty() ||
         any_parameter(params, SamplingParameter::Effect::kHistory);
}

// A sampling field of other servers that this engine lacks. It is refused unless its value is null or asks for nothing.
struct MissingSampler {
  std::string_view name;
  std::string_view neutral;  // a JSON array of the values that ask for nothing
  unsigned dialects = 0;     // besides OpenAI's
  bool setting = false;      // of another missing sampler: any number or text may be given, and changes nothing
};

inline constexpr auto kMissingSamplers = std::to_array<MissingSampler>({
    {"tfs_z", "[1]", SamplingParameter::kOllama},
});

}  // namespace sluice
