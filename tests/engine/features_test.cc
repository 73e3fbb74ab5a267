// Every pair of features on the demo model. The answer must be in its grammar, and equal to the one that the same
// request gets alone on an engine without prefix cache, preemption or small chunks. docs/features.md has the table of
// pairs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "chat/reasoning_syntax.h"
#include "chat/tool_syntax.h"
#include "engine/collect.h"
#include "engine/prediction_model.h"
#include "engine/table_rows.h"
#include "grammar/source.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::features_test {
namespace {

using namespace testing;  // engine/collect.h

// What an engine, or the way a request is run on it, may have.
enum Place : unsigned {
  kAlone = 0,
  kReuse = 1,
  kPreempt = 2,
  kChunks = 4,
  kJump = 8,
  kCancel = 16,
  kKept = 32,
  kReplicas = 64,
  kDrafts = 128,
  kShift = 256,
  kDraftModel = 512,
  kPrediction = 1024  // drafts by a layer of the model
};

constexpr const char* kSchema =
    R"({"type": "object", "additionalProperties": false, "required": ["city", "kind", "visits"], "properties": {
        "city": {"type": "string", "maxLength": 9}, "kind": {"enum": ["capital", "village"]},
        "visits": {"type": "integer", "minimum": 0, "maximum": 9999}}})";
constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "find_city", "parameters": {"type": "object",
        "additionalProperties": false, "required": ["city_name"],
        "properties": {"city_name": {"type": "string", "maxLength": 9}}}}}])";

struct Feature {
  const char* name;
  unsigned place = kAlone;
  void (*apply)(Request& request) = [](Request&) {};
};

void demand_call(Request& request) {
  request.tool_syntax = "hermes";
  request.tools = kTools;
  const CallGrammar calls{.functions = tool_functions(parse_json(kTools)), .required = true, .parallel = false};
  request.grammar = {.kind = "tool_calls", .text = tool_calls_grammar("hermes", calls)};
}

constexpr int kMostThought = 6;  // tokens

// The demo model thinks seldom, so that the prompt opens the thought and the budget ends it.
void think(Request& request) {
  request.reasoning_syntax = "deepseek_r1";
  request.thought = ThoughtStart::kOpen;
  request.thinking_token_budget = kMostThought;
}

const Feature kFeatures[] = {
    {"grammar", kAlone, [](Request& r) { r.grammar = {.kind = "json_schema", .text = kSchema}; }},
    {"tool_call", kAlone, demand_call},
    {"prefix_reuse", kReuse},
    {"preemption", kPreempt},
    {"n", kAlone, [](Request& r) { r.n = 3; }},
    {"penalties", kAlone, [](Request& r) { r.sampling.presence_penalty = 0.8, r.sampling.repetition_penalty = 1.2; }},
    {"logprobs", kAlone, [](Request& r) { r.sampling.logprobs = 2, r.sampling.prompt_logprobs = 1; }},
    {"chunked_prefill", kChunks},
    {"stop", kAlone,
     [](Request& r) {
       r.sampling.stop = std::vector<std::string>{"i", "or"};
     }},
    {"cancel", kCancel},
    {"min_tokens", kAlone, [](Request& r) { r.sampling.min_tokens = 12; }},
    {"seed", kAlone, [](Request& r) { r.sampling.temperature = 0.9, r.sampling.seed = 7; }},
    {"logit_bias", kAlone,
     [](Request& r) {
       r.sampling.logit_bias = {{260, 4.0f}, {300, -100.0f}};
     }},
    {"jump_ahead", kJump},
    {"thought", kAlone, think},
    {"adapter", kAlone, [](Request& r) { r.adapter = "pirate"; }},
    {"samplers", kAlone,
     [](Request& r) {
       r.sampling.temperature = 0.9, r.sampling.seed = 11, r.sampling.typical_p = 0.9, r.sampling.dry_multiplier = 0.8;
       r.sampling.xtc_probability = 0.5, r.sampling.bad_words = {" the", "city"};
     }},
    {"mirostat", kAlone,
     [](Request& r) {
       r.sampling.temperature = 0.9, r.sampling.seed = 13, r.sampling.mirostat = 2, r.sampling.mirostat_tau = 3;
     }},
    {"beams", kAlone, [](Request& r) { r.beams = {.width = 4}; }},
    {"kept_rows", kKept},
    {"replicas", kReplicas},
    {"drafts", kDrafts},
    {"session", kReuse, [](Request& r) { r.session = "a conversation"; }},
    {"diverse_beams", kAlone, [](Request& r) { r.beams = {.width = 4, .groups = 2, .diversity_penalty = 0.5}; }},
    {"context_shift", kShift,
     [](Request& r) {
       r.context_shift = true, r.context_keep = 4;
       r.sampling.ignore_eos = true, r.sampling.max_tokens = 120;
     }},
    {"vectors", kAlone,
     [](Request& r) {
       give_vectors(r, table_rows(r.prompt));
       r.sampling.prompt_logprobs.reset();  // vectors have none
     }},
    {"contrastive", kAlone, [](Request& r) { r.sampling.penalty_alpha = 0.6, r.sampling.top_k = 4; }},
    {"modules", kAlone,
     [](Request& r) {
       r.modules = {{.tokens = 6, .position = 24}, {.tokens = 4, .position = 3}};
       r.sampling.prompt_logprobs.reset();  // refused
     }},
};

constexpr int kShortContext = 96;

// Engines by what they have.
Engine& engine_for(unsigned place) {
  static std::map<unsigned, std::unique_ptr<Engine>> engines;
  std::unique_ptr<Engine>& engine = engines[place & ~kCancel];
  if (engine) return *engine;
  EngineOptions o;
  o.model = demo_model();
  o.threads = 2;
  o.deterministic = true;
  o.max_model_len = 256;
  o.enable_prompt_embeds = true;
  o.contrastive_search_tokens = 512;
  o.kv_cache_memory_bytes = int64_t{16} << 20;
  o.lora_modules = {"pirate=" + demo_model() + "-lora-pirate"};
  o.enable_prefix_caching = (place & (kReuse | kKept)) != 0;
  o.jump_ahead = (place & kJump) != 0;
  if ((place & kChunks) != 0) o.max_num_batched_tokens = 8;
  if ((place & kShift) != 0) {
    o.context_shift = true;
    o.max_model_len = kShortContext;
  }
  if ((place & kReplicas) != 0) o.data_parallel_size = 2;
  if ((place & kDrafts) != 0) {
    o.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1})";
  }
  if ((place & kDraftModel) != 0) {
    o.speculative_config = dump_json({{"model", draft_model()}, {"num_speculative_tokens", 4}});
  }
  if ((place & kKept) != 0) o.kv_host_memory_bytes = int64_t{16} << 20;
  if ((place & kPrediction) != 0) {
    static const TempFolder folder;
    o.model = folder / "model";
    if (!std::filesystem::exists(o.model)) write_prediction_model(o.model);
    o.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 2})";
  }
  const int token_bytes = 2048 + ((place & kDraftModel) != 0 ? 512 : (place & kPrediction) != 0 ? 1024 : 0);
  if ((place & (kPreempt | kKept)) != 0) o.kv_cache_memory_bytes = 640 * token_bytes;
  engine = Engine::load(o);
  return *engine;
}

Request base_request(const Engine& engine) {
  Request request;
  request.prompt =
      engine.tokenize(engine.render_chat(ChatPrompt::user("Tell me about the city that you like most.")), false);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 48;
  return request;
}

// Whether a text is in the grammar, or begins one that is.
bool in_grammar(const GrammarSpec& spec, const std::string& text, bool whole) {
  grammar::Budget budget;
  const auto compiled = grammar::compile(
      spec.kind, spec.text, {.budget = budget, .special = [](std::string_view name) {
                               return engine_for(kAlone).tokenize(name, false).size() == 1
                                          ? std::optional<TokenId>(engine_for(kAlone).tokenize(name, false)[0])
                                          : std::nullopt;
                             }});
  const std::string none;
  const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(std::span(&none, 1), grammar::Vocabulary::Options{.width = 1});
  grammar::Matcher matcher(compiled, vocabulary);
  return matcher.accept(text) && (!whole || matcher.complete());
}

// The grammar of the whole answer.
GrammarSpec whole_grammar(const Request& request) {
  GrammarSpec grammar = *request.grammar;
  if (request.reasoning_syntax.empty()) return grammar;
  grammar.text = after_thought_grammar(request.reasoning_syntax, request.thought, grammar.kind, grammar.text);
  grammar.kind = "after_thought";
  return grammar;
}

// The text of an answer as the model wrote it, without its end token.
std::string written(const Engine& engine, const Choice& choice) {
  std::vector<TokenId> tokens = choice.tokens;
  if (choice.finish->end_token) tokens.pop_back();
  return engine.detokenize(tokens, false);
}

void expect_same(const std::vector<Choice>& actual, const std::vector<Choice>& alone) {
  ASSERT_EQ(actual.size(), alone.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].text, alone[i].text);
    EXPECT_EQ(actual[i].tokens, alone[i].tokens);
    EXPECT_EQ(actual[i].finish->reason, alone[i].finish->reason);
    EXPECT_EQ(actual[i].finish->stop_string, alone[i].finish->stop_string);
    EXPECT_EQ(actual[i].usage.completion_tokens, alone[i].usage.completion_tokens);
    ASSERT_EQ(actual[i].logprobs.size(), alone[i].logprobs.size());
    for (size_t t = 0; t < actual[i].logprobs.size(); ++t) {
      EXPECT_EQ(actual[i].logprobs[t].token.logprob, alone[i].logprobs[t].token.logprob);
      EXPECT_EQ(actual[i].logprobs[t].token.rank, alone[i].logprobs[t].token.rank);
    }
    EXPECT_EQ(actual[i].prompt_logprobs.size(), alone[i].prompt_logprobs.size());
  }
}

void expect_valid(const Request& request, const Engine& engine, const std::vector<Choice>& choices, bool may_abort) {
  for (const Choice& choice : choices) {
    ASSERT_TRUE(choice.finish);
    const FinishReason reason = choice.finish->reason;
    EXPECT_NE(reason, FinishReason::kError) << choice.finish->message;
    EXPECT_TRUE(may_abort || reason != FinishReason::kAbort);
    EXPECT_EQ(choice.usage.completion_tokens, static_cast<int>(choice.tokens.size()));
    EXPECT_LE(choice.usage.completion_tokens, *request.sampling.max_tokens);
    if (request.sampling.logprobs) {
      ASSERT_EQ(choice.logprobs.size(), choice.tokens.size());
      for (size_t t = 0; t < choice.tokens.size(); ++t) EXPECT_EQ(choice.logprobs[t].token.id, choice.tokens[t]);
    }
    if (request.thinking_token_budget) {
      EXPECT_LE(choice.usage.reasoning_tokens, kMostThought);
      const bool cut = may_abort || !choice.finish->stop_string.empty();
      EXPECT_TRUE(cut || written(engine, choice).find("</think>") != std::string::npos) << written(engine, choice);
    }
    if (!request.grammar) continue;
    const bool whole = reason == FinishReason::kStop && choice.finish->stop_string.empty();
    EXPECT_TRUE(in_grammar(whole_grammar(request), written(engine, choice), whole)) << written(engine, choice);
  }
}

// Has the engine compute the request's prompt, and then others that take its blocks.
void keep_prompt(Engine& engine, const Request& request) {
  run_alone(engine, request);
  static std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    Request other = base_request(engine);
    other.prompt.clear();
    for (int token = 0; token < 60; ++token) other.prompt.push_back(static_cast<TokenId>(300 + random() % 1000));
    other.sampling.max_tokens = 1;
    run_alone(engine, other);
  }
}

// Runs a request among others that take the cache's blocks from it, as far as the place has this.
std::vector<Choice> run_in(unsigned place, const Request& request) {
  Engine& engine = engine_for(place);
  if ((place & kKept) != 0) keep_prompt(engine, request);
  const double loaded = (place & kKept) != 0 ? metric(engine, "sluice:kv_rows_loaded") : 0;
  if ((place & kReuse) != 0) run_alone(engine, request);
  Collector collector(engine);
  const double before = metric(engine, "vllm:num_preemptions");
  if ((place & kPreempt) != 0) {
    for (int i = 0; i < 12; ++i) {  // they come first, and need more than there is before this request ends
      Request other = base_request(engine);
      other.prompt.resize(20 + static_cast<size_t>(i));
      other.sampling.ignore_eos = true;
      other.sampling.max_tokens = 80;
      collector.submit(std::move(other));
    }
  }
  const size_t at = collector.submit(request);
  if ((place & kCancel) != 0) {
    collector.wait_tokens(at, 3);
    engine.cancel(collector.id(at));
  }
  const std::vector<Choice> answer = collector.answer(at);
  collector.wait();
  if ((place & kPreempt) != 0) {
    EXPECT_GT(metric(engine, "vllm:num_preemptions"), before);
  }
  // Where all of the prompt is computed, nothing of it is reused.
  const bool reuses = !request.sampling.prompt_logprobs && !searches_contrastively(request.sampling);
  if ((place & (kReuse | kKept)) != 0 && reuses) {
    EXPECT_GT(answer[0].usage.cached_tokens, 0);
  }
  // A session keeps its rows on the device, so that they need not be loaded.
  if ((place & kKept) != 0 && reuses && request.session.empty()) {
    EXPECT_GT(metric(engine, "sluice:kv_rows_loaded"), loaded);
  }
  return answer;
}

// A beam search knows the raw logits only, and refuses what changes them.
bool refused_with_beams(const Request& request) {
  const SamplingParams& s = request.sampling;
  const bool changes = request.grammar || request.thinking_token_budget || s.presence_penalty != 0 ||
                       !s.logit_bias.empty() || s.xtc_probability > 0 || s.mirostat > 0 ||
                       request.context_shift.value_or(false);
  return request.beams && changes;
}

// A contrastive search takes the likeliest tokens as candidates, and has one best text.
bool refused_with_contrastive_search(const Request& request) {
  const SamplingParams& s = request.sampling;
  const bool refused =
      request.n > 1 || request.beams || s.xtc_probability > 0 || s.mirostat > 0 || !request.modules.empty();
  return searches_contrastively(s) && (refused || request.context_shift.value_or(false));
}

// Vectors cannot be shortened.
bool refused_with_vectors(const Request& request) {
  return request.prompt_vectors != nullptr && request.context_shift.value_or(false);
}

// Modules keep no session, and are of no use to another model that drafts.
bool refused_with_modules(const Request& request, unsigned place) {
  const bool refused = request.prompt_vectors != nullptr || request.context_shift.value_or(false) ||
                       !request.session.empty() || (place & (kDraftModel | kPrediction)) != 0;
  return !request.modules.empty() && refused;
}

void expect_refused(Engine& engine, const Request& request, const char* why) {
  try {
    engine.submit(request, [](const Event&) {});
    ADD_FAILURE() << "taken";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
  }
}

class FeaturePairs : public ::testing::TestWithParam<std::pair<size_t, size_t>> {};

void expect_together(const Feature& a, const Feature& b) {
  const unsigned place = a.place | b.place;
  Request request = base_request(engine_for(kAlone));
  a.apply(request);
  b.apply(request);
  if (refused_with_beams(request)) return expect_refused(engine_for(place), request, "beam search");
  if (refused_with_contrastive_search(request)) {
    return expect_refused(engine_for(place), request, "contrastive search");
  }
  if (refused_with_modules(request, place)) return expect_refused(engine_for(place), request, "prompt_modules");
  if (refused_with_vectors(request)) return expect_refused(engine_for(place), request, "vectors");
  const std::vector<Choice> actual = run_in(place, request);
  expect_valid(request, engine_for(place), actual, (place & kCancel) != 0);
  // A cancelled answer ends at any token. With jumps the tokens of forced text may be others.
  request.session.clear();
  const std::vector<Choice> alone = run_in(place & (kJump | kShift), request);
  if ((place & kCancel) == 0) return expect_same(actual, alone);
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(actual[i].tokens.size(), alone[i].tokens.size());
    EXPECT_TRUE(std::equal(actual[i].tokens.begin(), actual[i].tokens.end(), alone[i].tokens.begin()));
  }
}

TEST_P(FeaturePairs, WorkTogether) {
  const auto [first, second] = GetParam();
  expect_together(kFeatures[first], kFeatures[second]);
}

constexpr size_t kCount = std::size(kFeatures);

// A schema and demanded calls are refused together (tests/server/bad_requests_test.cc).
std::vector<std::pair<size_t, size_t>> pairs() {
  std::vector<std::pair<size_t, size_t>> all;
  for (size_t a = 0; a < kCount; ++a) {
    for (size_t b = a + 1; b < kCount; ++b) {
      if (b > 1) all.emplace_back(a, b);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, FeaturePairs, ::testing::ValuesIn(pairs()), [](const auto& info) {
  return std::string(kFeatures[info.param.first].name) + "_and_" + kFeatures[info.param.second].name;
});

// Drafts of a model, with each of the others.
class DraftModelPairs : public ::testing::TestWithParam<size_t> {};

TEST_P(DraftModelPairs, WorkTogether) {
  expect_together({.name = "draft_model", .place = kDraftModel}, kFeatures[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(All, DraftModelPairs, ::testing::Range(size_t{0}, kCount),
                         [](const auto& info) { return std::string(kFeatures[info.param].name); });

// Drafts by a layer of the model, with each of the others.
class PredictionPairs : public ::testing::TestWithParam<size_t> {};

TEST_P(PredictionPairs, WorkTogether) {
  expect_together({.name = "prediction", .place = kPrediction}, kFeatures[GetParam()]);
}

INSTANTIATE_TEST_SUITE_P(All, PredictionPairs, ::testing::Range(size_t{0}, kCount),
                         [](const auto& info) { return std::string(kFeatures[info.param].name); });

// Jumps together with a grammar and each of the others: the pairs above have no forced text.
class JumpsWithGrammar : public ::testing::TestWithParam<size_t> {};

TEST_P(JumpsWithGrammar, TheAnswerIsThatOfTheRequestAlone) {
  const Feature& feature = kFeatures[GetParam()];
  for (const Feature& grammar : {kFeatures[0], kFeatures[1]}) {
    Request request = base_request(engine_for(kJump));
    feature.apply(request);
    grammar.apply(request);
    if (refused_with_beams(request)) {
      expect_refused(engine_for(feature.place | kJump), request, "beam search");
      continue;
    }
    const unsigned place = feature.place | kJump;
    const std::vector<Choice> actual = run_in(place, request);
    request.session.clear();
    const std::vector<Choice> alone = run_in(place & (kJump | kShift), request);
    expect_valid(request, engine_for(place), actual, (place & kCancel) != 0);
    if ((place & kCancel) == 0) expect_same(actual, alone);
    // Requests that look at tokens have no jumps.
    if (request.sampling.logprobs || !request.sampling.logit_bias.empty()) {
      expect_same(alone, run_in(kAlone, request));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, JumpsWithGrammar, ::testing::Range(size_t{2}, kCount),
                         [](const auto& info) { return std::string(kFeatures[info.param].name); });

// Every key is forced from its first token that no other key has. Without whitespace the text around it is, too.
TEST(JumpAhead, SavesSteps) {
  const auto forced_tokens = [](Engine& engine, const Request& request, Choice& answer) {
    const double before = metric(engine, "sluice:forced_tokens");
    answer = run_alone(engine, request);
    return static_cast<size_t>(metric(engine, "sluice:forced_tokens") - before);
  };
  for (const std::string kind : {"json_schema", "json_schema_compact"}) {
    for (const char* question : {"Tell me about Paris.", "Name a village.", "Who are you?"}) {
      Engine& engine = engine_for(kJump);
      Request request = base_request(engine);
      request.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user(question)), false);
      request.grammar = {.kind = kind, .text = kSchema};
      request.sampling.max_tokens = 100;
      Choice with, without;
      const size_t forced = forced_tokens(engine, request, with);
      EXPECT_EQ(forced_tokens(engine_for(kAlone), request, without), 0u);
      EXPECT_GT(forced, kind == "json_schema" ? 2 : with.tokens.size() / 4);
      EXPECT_LT(with.tokens.size() - forced, without.tokens.size());
      std::printf("%s, %s\n  %zu steps, %zu tokens: %s\n  %zu steps without jumps: %s\n", question, kind.c_str(),
                  with.tokens.size() - forced, with.tokens.size(), with.text.c_str(), without.tokens.size(),
                  without.text.c_str());
      expect_valid(request, engine, {with}, false);
      expect_valid(request, engine, {without}, false);
    }
  }
}

// The engine's thread must neither sleep past the end of a session nor wait for it without sleep.
TEST(Sessions, EndWhileNothingRuns) {
  Engine& engine = engine_for(kReuse);
  Request request = base_request(engine);
  request.session = "short";
  request.session_ttl = std::chrono::milliseconds(50);
  const auto expired = [&] {
    for (const MetricFamily& family : engine.metrics()) {
      if (family.name == "sluice:sessions_lost") return family.samples.at(0).value;  // by time
    }
    return -1.0;
  };
  const double before = expired();
  run_alone(engine, request);
  for (int i = 0; i < 200 && expired() <= before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(expired(), before);
  const clock_t busy = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(std::clock() - busy, CLOCKS_PER_SEC / 10) << "the process works while nothing is to be done";
}

// A text that goes round in a circle is guessed right.
TEST(Drafts, AreAccepted) {
  Engine& engine = engine_for(kDrafts);
  Request request = base_request(engine);
  const std::vector<TokenId> once = engine.tokenize("one two three four five six seven eight ", false);
  request.prompt.clear();
  for (int i = 0; i < 5; ++i) request.prompt.insert(request.prompt.end(), once.begin(), once.end());
  request.sampling.ignore_eos = true;
  const double drafted = metric(engine, "vllm:spec_decode_num_draft_tokens");
  const double accepted = metric(engine, "vllm:spec_decode_num_accepted_tokens");
  const Choice with = run_alone(engine, request), without = run_alone(engine_for(kAlone), request);
  expect_same({with}, {without});
  EXPECT_GT(metric(engine, "vllm:spec_decode_num_draft_tokens"), drafted);
  EXPECT_GE(metric(engine, "vllm:spec_decode_num_accepted_tokens") - accepted, 8) << with.text;
}

// The answer is the one that a user gets who cuts the text himself, whenever the context is full.
TEST(ContextShift, AnswersGoOnAsThoseOfCutPrompts) {
  Engine& engine = engine_for(kShift | kReuse);
  for (const int keep : {0, 5, 20, -1}) {
    SCOPED_TRACE(keep);
    Request request = base_request(engine);
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 300;
    request.sampling.logprobs = 1;
    request.context_shift = true;
    request.context_keep = keep;
    const auto prompt = static_cast<int>(request.prompt.size());
    const Choice whole = run_alone(engine, request);
    EXPECT_EQ(whole.finish->reason, FinishReason::kLength);
    EXPECT_EQ(whole.usage.prompt_tokens, prompt);
    EXPECT_EQ(whole.usage.completion_tokens, 300);
    EXPECT_EQ(engine.detokenize(whole.tokens), whole.text);

    Request part = request;
    part.context_shift = false;
    part.context_keep.reset();
    std::vector<TokenId> tokens;
    int shifts = 0;
    for (;; ++shifts) {
      const int left = 300 - static_cast<int>(tokens.size()),
                room = kShortContext - static_cast<int>(part.prompt.size());
      part.sampling.max_tokens = std::min(left, room);
      const Choice piece = run_alone(engine, part);
      for (size_t i = 0; i < piece.tokens.size(); ++i) {
        EXPECT_EQ(piece.logprobs[i].token.logprob, whole.logprobs.at(tokens.size() + i).token.logprob);
      }
      tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
      if (left <= room) break;
      std::vector<TokenId>& text = part.prompt;
      text.insert(text.end(), piece.tokens.begin(), piece.tokens.end());
      const auto kept = text.begin() + (keep < 0 ? prompt : keep);
      text.erase(kept, kept + (text.end() - kept) / 2);
    }
    EXPECT_EQ(whole.tokens, tokens);
    EXPECT_EQ(whole.usage.context_shifts, shifts);
    EXPECT_GE(shifts, 4);
  }
}

TEST(ContextShift, GrammarsAndStopStringsGoOn) {
  Engine& engine = engine_for(kShift | kJump);
  Request request = base_request(engine);
  request.context_shift = true;
  request.sampling.max_tokens = 4000;
  request.grammar = {.kind = "regex", .text = "([a-f]{3}[0-9]{2};){60}end"};
  const Choice answer = run_alone(engine, request);
  EXPECT_THAT(answer.text, ::testing::MatchesRegex("(...[0-9][0-9];)+end"));
  EXPECT_EQ(answer.text.size(), 60u * 6 + 3) << answer.text;
  EXPECT_EQ(answer.finish->reason, FinishReason::kStop);
  EXPECT_GT(answer.usage.context_shifts, 1);
  request.sampling.stop = std::vector<std::string>{answer.text.substr(200, 14)};
  const Choice stopped = run_alone(engine, request);
  EXPECT_EQ(stopped.finish->reason, FinishReason::kStop);
  EXPECT_EQ(stopped.text, answer.text.substr(0, answer.text.find(answer.text.substr(200, 14))));
}

TEST(ContextShift, IsRefusedWhereItCannotBe) {
  const auto refused = [](unsigned place, const char* what, auto&& change) {
    Engine& engine = engine_for(place);
    Request request = base_request(engine);
    change(request);
    EXPECT_THAT([&] { engine.submit(request, [](const Event&) {}); },
                ::testing::ThrowsMessage<Error>(::testing::HasSubstr(what)));
  };
  refused(kAlone, "--context-shift", [](Request& r) { r.context_shift = true; });
  refused(kAlone, "'n_keep'", [](Request& r) { r.context_keep = 1; });
  refused(kShift, "'n_keep'", [](Request& r) { r.context_keep = -2; });
  refused(kShift, "'n_keep': expected at most 92", [](Request& r) { r.context_keep = 93; });
  refused(kShift, "maximum context length", [](Request& r) { r.context_shift = false, r.sampling.max_tokens = 96; });
  refused(kShift, "beam search", [](Request& r) { r.context_shift = true, r.beams = {.width = 2}; });
}

TEST(ContrastiveSearch, IsRefusedAtLoadWhereItCannotBe) {
  const auto refused = [](auto&& change, const char* why) {
    EngineOptions o;
    o.model = demo_model();
    o.contrastive_search_tokens = 100;
    change(o);
    EXPECT_THAT([&] { Engine::load(o); },
                ::testing::ThrowsMessage<Error>(
                    ::testing::AllOf(::testing::HasSubstr("--contrastive-search-tokens"), ::testing::HasSubstr(why))));
  };
  refused([](EngineOptions& o) { o.contrastive_search_tokens = -1; }, "out of range");
  refused([](EngineOptions& o) { o.task = "embed"; }, "expected generate");
}

TEST(Drafts, AreRefusedWhereTheyCannotBe) {
  EngineOptions o;
  o.model = demo_model();
  o.task = "embed";
  o.speculative_config = R"({"method": "ngram", "num_speculative_tokens": 4})";
  EXPECT_THAT([&] { Engine::load(o); }, ::testing::ThrowsMessage<Error>(::testing::HasSubstr("--speculative-config")));
}

}  // namespace
}  // namespace sluice::features_test
