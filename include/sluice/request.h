// A generation request and the events that answer it. Plain values; Engine::submit validates them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "sluice/prompt_vectors.h"
#include "sluice/sampling_parameters.h"

namespace sluice {

// A language that the text of an answer must be in.
struct GrammarSpec {
  std::string kind{};             // "json_schema", "regex", ...: the kinds of grammar/source.h
  std::string text{};             // in the form of the kind
  std::string param = "grammar";  // name of the request's field in errors about the grammar
};

// When a beam search ends, as transformers defines it.
enum class EarlyStopping {
  kNo,     // once no beam looks as if it could become better than the finished texts
  kYes,    // once there are as many finished texts as beams
  kNever,  // once no beam can become better, whatever its length will be
};

// Beam search: the choices are the best of the texts that several beams find. It takes the likeliest tokens and samples
// nothing, so that temperature and filters have no effect.
inline constexpr int kMostBeams = 64;
struct BeamParams {
  int width = 1;                // beams, at most kMostBeams and at least as many as choices
  double length_penalty = 1.0;  // -10 .. 10: the exponent of the length that divides a text's log-probability
  EarlyStopping early_stopping = EarlyStopping::kNo;
  // Diverse beam search (Vijayakumar et al. 2016, arXiv:1610.02424): the beams are divided into this many equal groups.
  // In each step, a token that a beam of an earlier group goes on with costs the later groups `diversity_penalty`.
  int groups = 1;
  double diversity_penalty = 0.0;  // above 0 with groups
};

// A prompt that one server computes and another one goes on with (docs/scale-out.md).
struct KvTransfer {
  std::string id{};    // names the prompt on both servers; at most kMostTransferId bytes
  std::string host{};  // where its keys and values come from; empty: another server fetches them from this one
  int port = 0;
};
inline constexpr size_t kMostTransferId = 128;

// Whether an answer begins inside a thought, as far as its prompt tells.
enum class ThoughtStart {
  kMaybe,   // the answer may open one
  kOpen,    // the prompt has opened one
  kClosed,  // the prompt has closed one: there is to be none
};

// A part of a prompt whose keys and values are computed apart: its tokens see only each other (docs/prompt-modules.md).
struct PromptModule {
  int tokens = 0;     // of the prompt, behind those of the modules before it
  int position = -1;  // of the first one; -1: behind the module before it
};
inline constexpr int kMostPromptModules = 128;

inline constexpr int kMostSessionSeconds = 7 * 24 * 3600;

// How the last hidden states of a text, after the final norm, become its vector.
enum class HiddenPooling {
  kLast,  // that of the last token
  kMean,  // their mean
};

struct Request {
  std::string id{};               // for logs; need not be unique
  std::vector<TokenId> prompt{};  // at least one token
  // Vectors in place of the prompt's ids, which are then as many zeros; null: none. For an engine that was loaded with
  // enable_prompt_embeds. They count as tokens. Samplers that look at the text see the answer only.
  std::shared_ptr<const PromptVectors> prompt_vectors{};
  // What the prompt begins with. Modules may come in any order and leave positions out, but not share them. The rest of
  // the prompt, at least one token, is behind the last position of all modules and sees all of them.
  std::vector<PromptModule> modules{};
  std::string prompt_param = "prompt";          // name of the request's field in errors about the prompt
  std::string max_tokens_param = "max_tokens";  // the same for sampling.max_tokens
  // Most tokens of the prompt, of which the others are cut off (sluice/context.h). -1: as many as fit beside the
  // completion.
  std::optional<int> truncate_prompt{};
  bool truncation_keeps_start = false;  // the first tokens are kept, not the last ones
  bool returns_prompt = false;          // the first event has the prompt's tokens
  SamplingParams sampling{};
  std::optional<GrammarSpec> grammar{};  // compiled before the request runs
  std::string tool_syntax{};             // answers are parsed for calls in this syntax; empty: they are text
  std::string tools{};                   // with tool_syntax: the functions, as JSON of OpenAI's field
  std::string reasoning_syntax{};        // thoughts are told from the answer in this syntax; empty: there are none
  ThoughtStart thought = ThoughtStart::kMaybe;  // with reasoning_syntax
  // With reasoning_syntax: tokens of thought after which its end is forced; at least 0.
  std::optional<int> thinking_token_budget{};
  bool max_tokens_is_default = false;  // sampling.max_tokens gives way to the context (sluice/context.h)
  int n = 1;                           // independent continuations; they share the prompt's cache blocks
  int best_of = 0;                     // above n: so many are made, and those with the best mean log-probability remain
  std::optional<BeamParams> beams{};   // searches for the choices instead of sampling them
  // The answer is the prompt's vector (Event::vector) instead of text. Engine::embed makes such requests.
  std::optional<HiddenPooling> pooling{};
  int priority = 0;          // lower is served first under the priority policy
  std::string adapter{};     // name of a loaded adapter that changes the model; empty: none
  float adapter_scale = 1;   // factor of what the adapter adds; 0: the model alone
  std::string cache_salt{};  // prefixes are shared only between equal salts
  // The conversation that this request is a turn of: its cached tokens stay longer than others (docs/sessions.md).
  // Empty: none. Names of different tenants are different sessions.
  std::string session{};
  std::chrono::milliseconds session_ttl{0};  // how long they stay without another turn; 0: the engine's default
  std::optional<KvTransfer> kv_transfer{};
  // An answer that fills the context goes on without its oldest tokens, up to max_tokens (docs/context-shift.md). None:
  // as EngineOptions::context_shift says.
  std::optional<bool> context_shift{};
  // Tokens at the start of the prompt that stay then; -1: all of it. None: as EngineOptions::context_keep says.
  std::optional<int> context_keep{};
  std::string tenant{};  // who asks: under fcfs, waiting requests of different tenants take turns
  // Past it the request ends with FinishReason::kAbort.
  std::optional<std::chrono::steady_clock::time_point> deadline{};
};

enum class FinishReason {
  kStop,    // end-of-sequence token, stop token or stop string
  kLength,  // max_tokens or the context is full
  kAbort,   // cancelled, past its deadline, or the engine is shutting down
  kError,   // a fault confined to this request; Finish::message says which
};
constexpr const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "error";
}

struct Finish {
  FinishReason reason = FinishReason::kStop;
  std::string stop_string{};            // the stop string that matched, if one did
  bool end_token = false;               // for kStop: the last token is an end or stop token, not a part of the text
  std::optional<TokenId> stop_token{};  // the stop_token_ids entry that matched, if one did
  std::string message{};                // for kError
  std::string param{};                  // for kError: the request's field at fault, or empty: a fault of the engine
};

struct TokenLogprob {
  TokenId id = 0;
  float logprob = 0.0f;  // natural logarithm, from the raw logits (before penalties and temperature)
  int rank = 0;          // 1: the most likely
};
struct TokenLogprobs {
  TokenLogprob token{};
  std::vector<TokenLogprob> top{};  // most likely first
};

struct Usage {
  int prompt_tokens = 0;
  int cached_tokens = 0;      // prompt tokens that were found in the prefix cache
  int completion_tokens = 0;  // tokens of this choice, the end token included
  int reasoning_tokens = 0;   // those of them that are thought, without its marks where these are tokens
  int context_shifts = 0;     // how often the oldest tokens were dropped, see Request::context_shift
};

// Pieces of an answer. Those of a choice, put together in order, are the answer.
struct TextDelta {
  std::string text{};  // whole UTF-8 characters
};
struct ReasoningDelta {
  std::string text{};  // what the model thinks before it answers
};
struct ToolCallBegin {
  int index = 0;  // calls of a choice count from 0
  std::string id{};
  std::string name{};
};
struct ToolCallArguments {
  int index = 0;
  std::string json{};  // the next piece of the JSON text
};
using Delta = std::variant<TextDelta, ReasoningDelta, ToolCallBegin, ToolCallArguments>;

// One piece of the answer to one choice. Events of a choice come in order; the last one of each choice has `finish`.
struct Event {
  int index = 0;                                 // choice, 0 .. n-1
  std::vector<Delta> deltas{};                   // newly complete pieces of the answer; may be empty
  std::vector<TokenId> tokens{};                 // tokens of this step, special and end tokens included
  std::vector<TokenId> prompt{};                 // in the request's first event, when asked for
  std::vector<TokenLogprobs> logprobs{};         // one per token, when asked for
  std::vector<TokenLogprobs> prompt_logprobs{};  // in the first event of choice 0, when asked for: one per prompt token
  std::vector<float> vector{};                   // for Request::pooling: in the last event, unless the request failed
  std::optional<Finish> finish{};
  bool last = false;  // nothing follows for the whole request
  Usage usage{};      // usage of this choice so far
};

// The text of an event: its text deltas together.
inline std::string event_text(const Event& event) {
  std::string text;
  for (const Delta& delta : event.deltas) {
    if (const auto* piece = std::get_if<TextDelta>(&delta)) text += piece->text;
  }
  return text;
}

}  // namespace sluice
