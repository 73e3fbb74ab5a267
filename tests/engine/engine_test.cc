// The real engine on the demo model. A request's result must not depend on other requests.
#include "sluice/engine.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "base/json.h"
#include "engine/collect.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::engine_test {
namespace {

using namespace testing;  // engine/collect.h

EngineOptions options(int kv_mib = 64) {
  EngineOptions o;
  o.model = testing::demo_model();
  o.kv_cache_memory_bytes = int64_t{kv_mib} << 20;
  o.threads = 2;
  o.deterministic = true;  // batch-invariant even if a GPU is the default backend
  return o;
}

Engine& shared_engine() {
  static const std::unique_ptr<Engine> engine = Engine::load(options());
  return *engine;
}

TEST(EngineLoad, TellsHowMuchOfTheWeightsIsDone) {
  std::vector<double> shares;
  const auto engine = Engine::load(options(), [&](double share) { shares.push_back(share); });
  ASSERT_GT(shares.size(), 4u);  // GPUs take weights in larger pieces than CPUs
  EXPECT_TRUE(std::ranges::is_sorted(shares));
  EXPECT_GT(shares.front(), 0);
  EXPECT_EQ(shares.back(), 1);
}

TEST(EngineLoad, AMissingTokenizerIsToldBeforeTheWeightsAreRead) {
  EngineOptions o = options();
  o.tokenizer = ::testing::TempDir() + "nothing";
  double most = 0;
  EXPECT_THROW(Engine::load(o,
                            [&](double share) {
                              most = share;
                              std::this_thread::sleep_for(std::chrono::milliseconds(50));  // simulates a slow load
                            }),
               Error);
  EXPECT_LT(most, 1);
}

// The file of packed weights is cut while the engine serves. The next step would compute with lost pages.
TEST(EngineFiles, AFileThatShrinksEndsTheEngineWithErrors) {
  const TempFolder folder;
  EngineOptions o = options();
  o.backend = "reference";
  o.packed_cache = folder / "packed";
  const auto engine = Engine::load(o);
  Request request{.prompt = engine->tokenize("Once upon a time")};
  request.sampling.max_tokens = 2;
  EXPECT_EQ(run_alone(*engine, request).finish->reason, FinishReason::kLength);
  EXPECT_FALSE(engine->health().failed);
  for (const auto& file : std::filesystem::directory_iterator(o.packed_cache)) {
    std::filesystem::resize_file(file.path(), 4096);
  }
  ::testing::internal::CaptureStderr();
  const Choice answer = run_alone(*engine, request);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(answer.finish->reason, FinishReason::kError);
  EXPECT_NE(answer.finish->message.find(".packed: the file became shorter"), std::string::npos)
      << answer.finish->message;
  EXPECT_TRUE(answer.tokens.empty()) << "tokens from lost pages";
  EXPECT_NE(log.find(o.packed_cache), std::string::npos) << log;
  EXPECT_TRUE(engine->health().failed);
  EXPECT_FALSE(engine->health().alive);
  EXPECT_FALSE(shared_engine().health().failed) << "another engine is not concerned";
}

const char* const kQuestions[] = {"What is 17 + 25?",
                                  "Name five jobs.",
                                  "Sort these words alphabetically: pear, apple, fig, melon",
                                  "Repeat this word three times: river",
                                  "What is the capital of France?",
                                  "Count from 3 to 12.",
                                  "Write the word house backwards.",
                                  "Subtract 46 from 95.",
                                  "Tell me about a boat.",
                                  "Who are you?"};

Request question(const Engine& engine, const std::string& text, int max_tokens = 40) {
  Request request;
  request.prompt = engine.tokenize(engine.render_chat(ChatPrompt::user(text)), false);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  return request;
}

// Long and short prompts that share prefixes.
std::vector<Request> mixed_requests(const Engine& engine) {
  std::vector<Request> requests;
  std::string story = "Read this. ";
  for (int i = 0; i < 30; ++i) {
    const std::string ask = kQuestions[i % std::size(kQuestions)];
    story += "The " + std::to_string(i) + "th day was sunny and Finn baked bread. ";
    requests.push_back(question(engine, i % 3 == 0 ? story + ask : ask, 20 + i % 15));
    requests.back().sampling.ignore_eos = i % 4 == 0;
  }
  return requests;
}

std::vector<std::vector<TokenId>> tokens_alone(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::vector<TokenId>> out;
  for (const Request& request : requests) out.push_back(run_alone(engine, request).tokens);
  return out;
}

void expect_same_in_batch(const EngineOptions& o, const std::vector<Request>& requests,
                          const std::vector<std::vector<TokenId>>& expected, const std::string& what) {
  const auto engine = Engine::load(o);
  {
    Collector collector(*engine);
    for (const Request& request : requests) collector.submit(request);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(collector.answer(i)[0].tokens, expected[i]) << what << ", request " << i;
  }
  EXPECT_TRUE(settles(*engine, "vllm:kv_cache_usage_perc", 0)) << what;
}

TEST(Engine, GreedyTokensDoNotDependOnBatchChunksPrefixesOrPreemption) {
  EngineOptions alone = options();
  alone.enable_prefix_caching = false;
  const auto engine = Engine::load(alone);
  const std::vector<Request> requests = mixed_requests(*engine);
  const auto expected = tokens_alone(*engine, requests);

  expect_same_in_batch(options(), requests, expected, "all at once");
  for (const int budget : {7, 33, 100}) {
    EngineOptions o = options();
    o.max_num_batched_tokens = budget;
    o.enable_prefix_caching = budget != 33;
    expect_same_in_batch(o, requests, expected, "token budget " + std::to_string(budget));
  }
  EngineOptions small = options();
  small.max_model_len = 640;
  small.block_size = 8;
  small.kv_cache_memory_bytes = 700 * 2048;  // 700 tokens, little more than one context: sequences must be preempted
  {
    const auto tight = Engine::load(small);
    Collector collector(*tight);
    for (const Request& request : requests) collector.submit(request);
    for (size_t i = 0; i < requests.size(); ++i)
      EXPECT_EQ(collector.answer(i)[0].tokens, expected[i]) << "tight, request " << i;
    EXPECT_TRUE(settles(*tight, "vllm:num_requests_running", 0));
    EXPECT_GT(metric(*tight, "vllm:num_preemptions"), 0);
    for (const MetricFamily& family : tight->metrics()) {
      if (family.name != "vllm:request_num_preemptions") continue;
      EXPECT_EQ(family.samples.at(0).histogram.sum, metric(*tight, "vllm:num_preemptions"));
    }
    EXPECT_EQ(metric(*tight, "vllm:num_requests_waiting_by_reason"), 0);
  }
  EngineOptions threads = options();
  threads.threads = 1;
  expect_same_in_batch(threads, requests, expected, "one thread");
  for (const char* parts : {"off", "2", "3"}) {  // this machine may have fewer NUMA nodes
    EngineOptions divided = options();
    divided.threads = 4;
    divided.numa = parts;
    expect_same_in_batch(divided, requests, expected, std::string("numa ") + parts);
  }
}

// Renders, tokenizes and answers a conversation, or returns the error.
TEST(Engine, SubmitsChats) {
  Engine& engine = shared_engine();
  const auto chat = [](int max_tokens) {
    ChatRequest request{.request = {}, .chat = ChatPrompt::user(kQuestions[0])};
    request.request.prompt_param = "messages";
    request.request.sampling.temperature = 0;
    request.request.sampling.max_tokens = max_tokens;
    return request;
  };
  const auto answer = [&](ChatRequest request) {
    std::promise<std::string> promise;
    std::string text;
    engine.submit_chat(std::move(request), [&](const Event& event) {
      text += event_text(event);
      if (event.last) promise.set_value(text);
    });
    return promise.get_future().get();
  };
  const std::string expected = run_alone(engine, question(engine, kQuestions[0])).text;
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(answer(chat(40)), expected);
  const int context = engine.model().max_model_len;
  ChatRequest by_default = chat(context);
  by_default.request.max_tokens_is_default = true;
  EXPECT_EQ(answer(by_default), expected);
  const auto error = [&](ChatRequest request) {
    try {
      engine.submit_chat(std::move(request), [](const Event&) { ADD_FAILURE() << "an event of a refused request"; });
    } catch (const Error& e) {
      return e.param + "/" + e.reason;
    }
    return std::string("accepted");
  };
  EXPECT_EQ(error(chat(context)), "max_tokens/context_length_exceeded");
  ChatRequest longer = chat(1);
  longer.chat = ChatPrompt::user(std::string(static_cast<size_t>(context) * 20, 'a'));
  EXPECT_EQ(error(longer), "messages/context_length_exceeded");
}

TEST(Engine, SeededSamplesDoNotDependOnTheBatch) {
  Engine& engine = shared_engine();
  Request seeded = question(engine, "Tell me about a boat.", 30);
  seeded.sampling.temperature = 1.0;
  seeded.sampling.top_p = 0.95;
  seeded.sampling.seed = 1234;
  seeded.n = 3;
  Collector first(engine);
  const std::vector<Choice> alone = first.answer(first.submit(seeded));
  Collector crowd(engine);
  for (int i = 0; i < 8; ++i) crowd.submit(question(engine, kQuestions[i], 30));
  const size_t at = crowd.submit(seeded);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(crowd.answer(at)[i].tokens, alone[i].tokens);
  EXPECT_NE(alone[0].tokens, alone[1].tokens);
  seeded.n = 1;
  int others = 0;  // a small model may generate the same text twice
  for (int seed = 1235; seed < 1240; ++seed) {
    seeded.sampling.seed = seed;
    others += run_alone(engine, seeded).tokens != alone[0].tokens ? 1 : 0;
  }
  EXPECT_GT(others, 0);
}

TEST(Engine, PrefixReuseIsReportedAndSeparatedBySalt) {
  const auto engine = Engine::load(options());
  std::string text = "Read the text. ";
  for (int i = 0; i < 20; ++i) text += "Lily lives in Ottawa and works as a baker. ";
  Request request = question(*engine, text, 8);
  EXPECT_EQ(run_alone(*engine, request).usage.cached_tokens, 0);
  const Choice again = run_alone(*engine, request);
  EXPECT_GE(again.usage.cached_tokens, again.usage.prompt_tokens - 16);
  request.cache_salt = "another tenant";
  EXPECT_EQ(run_alone(*engine, request).usage.cached_tokens, 0);
}

TEST(Engine, PrefixesAreForgottenOnRequest) {
  const auto engine = Engine::load(options());
  std::string text = "Read the text. ";
  for (int i = 0; i < 20; ++i) text += "Lily lives in Ottawa and works as a baker. ";
  Request request = question(*engine, text, 8);
  const Choice first = run_alone(*engine, request);
  engine->reset_prefix_cache();
  const Choice again = run_alone(*engine, request);
  EXPECT_EQ(again.usage.cached_tokens, 0);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_GT(run_alone(*engine, request).usage.cached_tokens, 0) << "later prefixes are kept";
}

// Requests that run keep what they hold, and answer as ever.
TEST(Engine, PrefixesAreForgottenWhileRequestsRun) {
  const auto engine = Engine::load(options());
  std::string text = "Read the text. ";
  for (int i = 0; i < 20; ++i) text += "Lily lives in Ottawa and works as a baker. ";
  const Request request = question(*engine, text, 40);
  const Choice alone = run_alone(*engine, request);
  Collector crowd(*engine);
  std::vector<size_t> running;
  for (int i = 0; i < 24; ++i) {
    running.push_back(crowd.submit(request));
    engine->reset_prefix_cache();
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  for (const size_t at : running) EXPECT_EQ(crowd.answer(at)[0].tokens, alone.tokens);
  EXPECT_TRUE(settles(*engine, "vllm:kv_cache_usage_perc", 0));
}

TEST(Engine, TokenizerConfigHasTheTemplateInUse) {
  EXPECT_TRUE(parse_json(shared_engine().tokenizer_config())["chat_template"].is_string());
  EngineOptions other = options();
  other.chat_template = "{{ messages[0].content }}!";
  EXPECT_EQ(parse_json(Engine::load(other)->tokenizer_config())["chat_template"], other.chat_template);
}

// A template of the checkpoint writes the token that begins texts. With one of ours, it comes from the tokenizer.
TEST(Engine, NamedTemplatesBeginAsTheTokenizerDoes) {
  EngineOptions named = options();
  named.chat_template = "chatml";
  const std::string text = Engine::load(named)->render_chat(ChatPrompt::user("Hi"));
  EXPECT_EQ(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  const testing::TempFolder folder;
  std::filesystem::copy(testing::demo_model(), folder.path(), std::filesystem::copy_options::recursive);
  Json tokenizer = read_json_file(folder / "tokenizer.json");
  const Json first = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}};
  Json& single = tokenizer["post_processor"]["single"];
  single.insert(single.begin(), first);
  tokenizer["post_processor"]["special_tokens"]["<|endoftext|>"] = {
      {"id", "<|endoftext|>"}, {"ids", {8177}}, {"tokens", {"<|endoftext|>"}}};
  folder.write("tokenizer.json", dump_json(tokenizer));
  named.model = folder.path();
  EXPECT_EQ(Engine::load(named)->render_chat(ChatPrompt::user("Hi")), "<|endoftext|>" + text);
}

TEST(Engine, StopStringsSpanTokens) {
  Engine& engine = shared_engine();
  Request request = question(engine, "Name five jobs.", 60);
  const Choice whole = run_alone(engine, request);
  ASSERT_GT(whole.text.size(), 20u);
  for (size_t begin = 5; begin + 4 < std::min<size_t>(whole.text.size(), 30); begin += 3) {
    request.sampling.stop = {"never there", whole.text.substr(begin, 4)};
    const Choice cut = run_alone(engine, request);
    EXPECT_EQ(cut.text, whole.text.substr(0, whole.text.find(request.sampling.stop[1])));
    EXPECT_EQ(cut.finish->reason, FinishReason::kStop);
    EXPECT_EQ(cut.finish->stop_string, request.sampling.stop[1]);
  }
  EXPECT_TRUE(settles(engine, "vllm:kv_cache_usage_perc", 0));
}

TEST(Engine, StopTokensMinTokensAndIgnoreEos) {
  Engine& engine = shared_engine();
  Request request = question(engine, "What is 17 + 25?", 30);
  const Choice plain = run_alone(engine, request);
  ASSERT_EQ(plain.finish->reason, FinishReason::kStop);
  EXPECT_EQ(plain.tokens.back(), engine.model().eos_token_ids.front());

  request.sampling.stop_token_ids = {plain.tokens[2]};
  const Choice stopped = run_alone(engine, request);
  EXPECT_EQ(stopped.finish->stop_token, plain.tokens[2]);
  EXPECT_LE(stopped.tokens.size(), 3u);
  EXPECT_EQ(plain.text.find(stopped.text), 0u);

  request.sampling.min_tokens = 12;
  EXPECT_GE(run_alone(engine, request).tokens.size(), 12u);

  request = question(engine, "What is 17 + 25?", 25);
  request.sampling.ignore_eos = true;
  const Choice on = run_alone(engine, request);
  EXPECT_EQ(on.tokens.size(), 25u);
  EXPECT_EQ(on.finish->reason, FinishReason::kLength);
}

TEST(Engine, LogitBiasAndLogprobs) {
  Engine& engine = shared_engine();
  Request request = question(engine, "What is 17 + 25?", 5);
  request.sampling.logprobs = 3;
  request.sampling.prompt_logprobs = 0;
  const Choice plain = run_alone(engine, request);
  ASSERT_EQ(plain.logprobs.size(), plain.tokens.size());
  for (size_t i = 0; i < plain.tokens.size(); ++i) {
    EXPECT_EQ(plain.logprobs[i].token.id, plain.tokens[i]);
    EXPECT_EQ(plain.logprobs[i].token.rank, 1);
    ASSERT_EQ(plain.logprobs[i].top.size(), 3u);
    EXPECT_EQ(plain.logprobs[i].top[0].id, plain.tokens[i]);
    EXPECT_GE(plain.logprobs[i].top[0].logprob, plain.logprobs[i].top[1].logprob);
    EXPECT_LE(plain.logprobs[i].token.logprob, 0.0f);
  }
  ASSERT_EQ(plain.prompt_logprobs.size(), request.prompt.size());
  EXPECT_EQ(plain.prompt_logprobs[0].token.rank, 0);
  for (size_t i = 1; i < request.prompt.size(); ++i) EXPECT_EQ(plain.prompt_logprobs[i].token.id, request.prompt[i]);

  request.sampling.logit_bias = {{plain.tokens[0], -100.0f}};
  EXPECT_NE(run_alone(engine, request).tokens[0], plain.tokens[0]);
}

TEST(Engine, CancelFreesBlocks) {
  Engine& engine = shared_engine();
  Collector collector(engine);
  std::vector<size_t> at;
  for (int i = 0; i < 12; ++i) {
    Request request = question(engine, kQuestions[i % 10], 1500);
    request.sampling.ignore_eos = true;
    request.n = 1 + i % 2;
    at.push_back(collector.submit(std::move(request)));
  }
  collector.wait_tokens(at[3], 5);
  for (const size_t i : at) engine.cancel(collector.id(i));
  collector.wait();
  for (const size_t i : at) EXPECT_EQ(collector.answer(i)[0].finish->reason, FinishReason::kAbort);
  EXPECT_TRUE(settles(engine, "vllm:kv_cache_usage_perc", 0));
  EXPECT_TRUE(settles(engine, "vllm:num_requests_running", 0));
}

TEST(Engine, DeadlinesEndRequests) {
  Engine& engine = shared_engine();
  Request request = question(engine, "Name five jobs.", 1800);
  request.sampling.ignore_eos = true;
  request.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  const Choice choice = run_alone(engine, request);
  EXPECT_EQ(choice.finish->reason, FinishReason::kAbort);
  EXPECT_LT(choice.tokens.size(), 1800u);
}

TEST(Engine, FullQueueRefusesAtOnce) {
  EngineOptions o = options();
  o.max_num_seqs = 1;
  o.max_num_queued_reqs = 2;
  const auto engine = Engine::load(o);
  Collector collector(*engine);
  int refused = 0;
  std::vector<size_t> at;
  for (int i = 0; i < 8; ++i) {
    Request request = question(*engine, "Name five jobs.", 200);
    request.sampling.ignore_eos = true;
    try {
      at.push_back(collector.submit(std::move(request)));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kOverloaded);
      ++refused;
    }
  }
  EXPECT_GE(refused, 5);
  EXPECT_EQ(metric(*engine, "vllm:admission_rejections"), refused);
  for (const size_t i : at) EXPECT_EQ(collector.answer(i)[0].tokens.size(), 200u);
  EXPECT_FALSE(engine->overloaded());
}

TEST(Engine, RefusesWhatCannotBeServed) {
  Engine& engine = shared_engine();
  const auto error_of = [&](const std::function<void(Request&)>& spoil) {
    Request request = question(engine, "Hello");
    spoil(request);
    try {
      engine.submit(request, [](const Event&) { ADD_FAILURE() << "an event of a refused request"; });
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest) << e.what();
      return e.param + "/" + e.reason;
    }
    return std::string("accepted");
  };
  const int vocab = engine.model().vocab_size;
  EXPECT_EQ(error_of([&](Request& r) { r.prompt[1] = vocab; }), "prompt[1]/invalid_value");
  EXPECT_EQ(error_of([&](Request& r) { r.prompt[0] = -1; }), "prompt[0]/invalid_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.stop_token_ids = {vocab}; }), "stop_token_ids/invalid_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.logit_bias = {{vocab, 1.0f}}; }), "logit_bias/invalid_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.allowed_token_ids = std::vector<TokenId>(vocab + 1, 5); }),
            "allowed_token_ids/array_above_max_length");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.stop = std::vector<std::string>(kMaxStopStrings + 1, "a"); }),
            "stop/array_above_max_length");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.stop = {std::string(kMaxStopBytes + 1, 'a')}; }),
            "stop/array_above_max_size");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.temperature = -0.5; }), "temperature/decimal_below_min_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.temperature = NAN; }), "temperature/decimal_below_min_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.top_p = 0; }), "top_p/decimal_below_min_value");
  EXPECT_EQ(error_of([&](Request& r) { r.sampling.max_tokens = 5000; }), "max_tokens/context_length_exceeded");
  EXPECT_EQ(error_of([&](Request& r) { r.prompt.assign(3000, 5); }), "prompt/context_length_exceeded");
  EXPECT_NE(error_of([&](Request& r) { r.prompt.clear(); }), "accepted");
  EXPECT_NE(error_of([&](Request& r) { r.n = 0; }), "accepted");
  EXPECT_EQ(run_alone(engine, question(engine, "What is 17 + 25?")).finish->reason, FinishReason::kStop);
}

TEST(Engine, IdleCostsNothing) {
  Engine& engine = shared_engine();
  run_alone(engine, question(engine, "Hello", 4));
  while (engine.health().preparing) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto cpu = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  const double before = cpu();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  EXPECT_LT(cpu() - before, 0.01);
  EXPECT_TRUE(engine.health().alive);
}

TEST(Engine, EndsRunningRequestsWhenItIsDestroyed) {
  auto engine = Engine::load(options());
  Request request = question(*engine, "Name five jobs.", 1500);
  request.sampling.ignore_eos = true;
  std::mutex mutex;
  std::vector<FinishReason> ends;
  for (int i = 0; i < 4; ++i) {
    engine->submit(request, [&](const Event& event) {
      const std::scoped_lock lock(mutex);
      if (event.last) ends.push_back(event.finish->reason);
    });
  }
  engine.reset();
  EXPECT_EQ(ends, std::vector<FinishReason>(4, FinishReason::kAbort));
}

TEST(Engine, LoadingSaysWhatIsWrong) {
  const auto error_of = [](const std::function<void(EngineOptions&)>& spoil) {
    EngineOptions o = options();
    spoil(o);
    try {
      Engine::load(o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("loaded");
  };
  EXPECT_NE(error_of([](EngineOptions& o) { o.model = "/nonexistent/model"; }).find("/nonexistent/model"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.dtype = "int3"; }).find("--dtype"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.kv_cache_dtype = "int9"; })
                .find("--kv-cache-dtype: unknown value 'int9' (expected one of: auto, float32, bfloat16, float16, fp8, "
                      "fp8_e5m2, int8)"),
            std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.max_model_len = 4096; }).find("--max-model-len"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.block_size = 12; }).find("--block-size"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.numa = "both"; }).find("--numa"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) { o.backend = "cpu-z80"; }).find("cpu-z80"), std::string::npos);
  EXPECT_NE(error_of([](EngineOptions& o) {
              o.max_model_len = 2048;
              o.kv_cache_memory_bytes = 4096;
            }).find("KV cache"),
            std::string::npos);
}

// Scales stay with blocks that are shared or recomputed.
TEST(Engine, AnswersOverInt8CachesDoNotDependOnTheBatch) {
  EngineOptions o = options();
  o.kv_cache_dtype = "int8";
  const auto roomy = Engine::load(o);
  o.max_model_len = 640;
  o.block_size = 8;
  o.kv_cache_memory_bytes = 700 * 1100;  // little more than one context: sequences are preempted
  const auto tight = Engine::load(o);
  std::vector<Request> requests;
  for (const char* text : kQuestions) {
    requests.push_back(question(*roomy, text, 80));
    requests.back().sampling.ignore_eos = true;
  }
  Collector crowd(*tight);  // both engines serve at once
  for (const Request& request : requests) crowd.submit(request);
  std::vector<std::vector<TokenId>> expected;
  for (const Request& request : requests) expected.push_back(run_alone(*roomy, request).tokens);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(crowd.answer(i)[0].tokens, expected[i]) << "request " << i;
    EXPECT_EQ(run_alone(*roomy, requests[i]).tokens, expected[i]) << "request " << i;
  }
  EXPECT_GT(metric(*tight, "vllm:num_preemptions"), 0);
}

}  // namespace
}  // namespace sluice::engine_test
