// Prompts of vectors on the real engine: rows of the model's table are answered like ids, and share nothing with them.
#include "sluice/prompt_vectors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/collect.h"
#include "engine/prompt_vectors.h"
#include "engine/table_rows.h"
#include "formats/torch_archive.h"
#include "sluice/context.h"
#include "sluice/error.h"

namespace sluice::prompt_vectors_test {
namespace {

using namespace testing;  // engine/collect.h

EngineOptions options() {
  EngineOptions o;
  o.model = demo_model();
  o.kv_cache_memory_bytes = 64 << 20;
  o.threads = 2;
  o.dtype = "float32";
  o.deterministic = true;
  o.enable_prompt_embeds = true;
  return o;
}

Engine& shared_engine() {
  static const std::unique_ptr<Engine> engine = Engine::load(options());
  return *engine;
}

constexpr int kWidth = kDemoWidth;

Request by_ids(std::vector<TokenId> prompt, int max_tokens = 24) {
  Request request{.prompt = std::move(prompt)};
  request.sampling.temperature = 0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

// The same request with the table's rows in place of its ids.
Request with_vectors(Request request, std::vector<float> values) {
  give_vectors(request, std::move(values));
  request.prompt_param = "prompt_embeds";
  return request;
}
Request by_vectors(const Request& request) { return with_vectors(request, table_rows(request.prompt)); }

std::vector<TokenId> story(const Engine& engine, int sentences) {
  std::string text;
  for (int i = 0; i < sentences; ++i) text += "The " + std::to_string(i) + "th day was sunny and Finn baked bread. ";
  return engine.tokenize(text);
}

std::vector<TokenId> tokens_of(Engine& engine, const Request& request) { return run_alone(engine, request).tokens; }

TEST(PromptVectors, AreAnsweredLikeTheirIds) {
  Engine& engine = shared_engine();
  EXPECT_EQ(engine.model().prompt_vector_width, kWidth);
  for (const char* text : {"Once upon a time", "What is the capital of France?", "a"}) {
    Request request = by_ids(engine.tokenize(text));
    request.sampling.logprobs = 3;
    const Choice expected = run_alone(engine, request), given = run_alone(engine, by_vectors(request));
    EXPECT_EQ(given.tokens, expected.tokens) << text;
    EXPECT_EQ(given.text, expected.text);
    EXPECT_EQ(given.usage.prompt_tokens, static_cast<int>(request.prompt.size()));
    ASSERT_EQ(given.logprobs.size(), expected.logprobs.size());
    for (size_t i = 0; i < given.logprobs.size(); ++i) {
      EXPECT_EQ(given.logprobs[i].token.logprob, expected.logprobs[i].token.logprob) << text << ", token " << i;
    }
  }
}

TEST(PromptVectors, DoNotDependOnChunksBatchesOrPreemption) {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request = by_ids(story(shared_engine(), 2 + 3 * i), 20 + i);
    requests.push_back(i % 3 == 2 ? request : by_vectors(request));
    if (i % 4 == 0) requests.back().n = 2;
  }
  std::vector<std::vector<TokenId>> expected;
  for (Request request : requests) {
    request.n = 1;
    expected.push_back(tokens_of(shared_engine(), request));
  }
  EngineOptions chunks = options();
  chunks.max_num_batched_tokens = 7;
  EngineOptions small = options();
  small.max_model_len = 600;
  small.kv_cache_memory_bytes = 3 << 20;
  for (const EngineOptions& o : {options(), chunks, small}) {
    const auto engine = Engine::load(o);
    Collector collector(*engine);
    for (const Request& request : requests) collector.submit(request);
    for (size_t i = 0; i < requests.size(); ++i) {
      for (const Choice& choice : collector.answer(i)) EXPECT_EQ(choice.tokens, expected[i]) << "request " << i;
    }
    const bool is_small = o.max_model_len == 600;
    EXPECT_EQ(metric(*engine, "vllm:num_preemptions") > 0, is_small) << "preemptions";
  }
}

TEST(PromptVectors, ShareCachedBlocksWithEqualVectorsOnly) {
  const auto engine = Engine::load(options());
  const Request ids = by_ids(story(*engine, 10)), vectors = by_vectors(ids);
  const auto cached = [&](const Request& request) { return run_alone(*engine, request).usage.cached_tokens; };
  const int whole = (static_cast<int>(ids.prompt.size()) - 1) / 16 * 16;
  ASSERT_GT(whole, 64);
  EXPECT_EQ(cached(ids), 0);
  EXPECT_EQ(cached(vectors), 0) << "ids are not vectors";
  EXPECT_EQ(cached(vectors), whole);
  EXPECT_EQ(cached(ids), whole);
  EXPECT_EQ(cached(by_ids(vectors.prompt)), 0) << "zeros that stand for vectors are not ids";
  EXPECT_EQ(cached(vectors), whole);

  std::vector<float> values = table_rows(ids.prompt);
  values[40 * kWidth + 7] += 0.25f;  // in the third block
  const Request other = with_vectors(ids, values);
  EXPECT_EQ(cached(other), 32) << "rows before the changed one are shared";
  EXPECT_EQ(tokens_of(*engine, other), tokens_of(shared_engine(), other));
  Request tenant = vectors;
  tenant.cache_salt = "another";
  EXPECT_EQ(cached(tenant), 0);

  // A prompt that goes on where another one was answered shares no block that has an answer's ids.
  std::vector<float> longer = table_rows(ids.prompt);
  const std::vector<TokenId> answer = tokens_of(*engine, vectors);
  const std::vector<float> rest = table_rows(answer);
  longer.insert(longer.end(), rest.begin(), rest.end());
  EXPECT_EQ(cached(with_vectors(ids, longer)), static_cast<int>(ids.prompt.size()) / 16 * 16);
}

TEST(PromptVectors, AreNotTextForSamplers) {
  Engine& engine = shared_engine();
  const Request ids = by_ids(engine.tokenize("Once upon a time there was a boat. The boat was red. The boat"), 30);
  // What samplers make of an answer alone: a prompt of ids that cannot come up again.
  std::vector<std::pair<const char*, void (*)(SamplingParams&)>> cases = {
      {"repetition", [](SamplingParams& p) { p.repetition_penalty = 1.5; }},
      {"window",
       [](SamplingParams& p) {
         p.repetition_penalty = 1.5;
         p.repeat_last_n = 4;
       }},
      {"ngram", [](SamplingParams& p) { p.no_repeat_ngram_size = 2; }},
      {"dry", [](SamplingParams& p) { p.dry_multiplier = 2; }}};
  for (const auto& [name, set] : cases) {
    Request request = by_vectors(ids);
    set(request.sampling);
    // A processor sees what the samplers see.
    std::vector<size_t> lengths;
    bool zeros = false;
    request.sampling.logit_processors = SharedList<LogitProcessor>(
        {[&](std::span<const TokenId> text, int prompt_length, std::vector<std::pair<TokenId, float>>&) {
          lengths.push_back(text.size());
          zeros |= prompt_length != 0;
        }});
    const Choice choice = run_alone(engine, request);
    ASSERT_EQ(choice.tokens.size(), 30u) << name << ": " << (choice.finish ? choice.finish->message : "");
    std::vector<size_t> expected(lengths.size());
    std::iota(expected.begin(), expected.end(), size_t{0});
    EXPECT_EQ(lengths, expected) << name;
    EXPECT_FALSE(zeros) << name << ": the prompt has no text";
  }
  // Token 0 is no part of the prompt, so that a penalty leaves it alone.
  Request request = by_vectors(ids);
  request.sampling.presence_penalty = 2;
  request.sampling.repetition_penalty = 2;
  request.sampling.allowed_token_ids = SharedList<TokenId>({0});
  request.sampling.logprobs = 0;
  request.sampling.max_tokens = 1;
  EXPECT_EQ(tokens_of(engine, request), std::vector<TokenId>{0});
}

TEST(PromptVectors, WorkWithBeamsAndGrammars) {
  Engine& engine = shared_engine();
  Request beams = by_ids(engine.tokenize("Once upon a time"), 12);
  beams.sampling.ignore_eos = false;
  beams.beams = BeamParams{.width = 3};
  EXPECT_EQ(tokens_of(engine, by_vectors(beams)), tokens_of(engine, beams));
  Request grammar = by_ids(engine.tokenize("A number:"), 12);
  grammar.sampling.ignore_eos = false;
  grammar.grammar = GrammarSpec{.kind = "regex", .text = "(12345|67890)x{4}"};
  const std::string text = run_alone(engine, by_vectors(grammar)).text;
  EXPECT_TRUE(text == "12345xxxx" || text == "67890xxxx") << text;
}

TEST(PromptVectors, AreNotReadByDrafts) {
  for (const char* config : {R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_min":1})", "model"}) {
    EngineOptions o = options();
    o.speculative_config =
        config == std::string("model") ? R"({"model":")" + draft_model() + R"(","num_speculative_tokens":3})" : config;
    const auto engine = Engine::load(o);
    const Request ids = by_ids(story(*engine, 4), 40);
    Collector collector(*engine);
    for (int i = 0; i < 4; ++i) collector.submit(i % 2 == 0 ? by_vectors(ids) : ids);
    const std::vector<TokenId> expected = tokens_of(shared_engine(), ids);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(collector.answer(i)[0].tokens, expected) << config << ", request " << i;
  }
}

TEST(PromptVectors, GoToRanksAndReplicas) {
  EngineOptions replicas = options();
  replicas.data_parallel_size = 2;
  const auto engine = Engine::load(replicas);
  EXPECT_EQ(engine->model().prompt_vector_width, kWidth);
  const Request ids = by_ids(story(*engine, 6));
  const Choice first = run_alone(*engine, by_vectors(ids)), second = run_alone(*engine, by_vectors(ids));
  EXPECT_EQ(first.tokens, tokens_of(shared_engine(), ids));
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_GT(second.usage.cached_tokens, 0) << "the second one went where the first one is cached";
}

std::string error_of(const Engine& engine, Request request, const std::string& param) {
  try {
    const_cast<Engine&>(engine).submit(std::move(request), [](const Event&) {});
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    EXPECT_EQ(e.param, param) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "a request that should be refused for " << param;
  return {};
}

TEST(PromptVectors, RefuseWhatNeedsTokens) {
  Engine& engine = shared_engine();
  const Request plain = by_vectors(by_ids(engine.tokenize("Once upon a time")));
  const auto changed = [&](auto&& change) {
    Request request = plain;
    change(request);
    return request;
  };
  error_of(engine, changed([](Request& r) { r.sampling.prompt_logprobs = 1; }), "prompt_logprobs");
  error_of(engine, changed([](Request& r) { r.truncate_prompt = 2; }), "truncate_prompt_tokens");
  error_of(engine, changed([](Request& r) { r.context_shift = true; }), "context_shift");
  error_of(engine, changed([](Request& r) { r.kv_transfer = KvTransfer{.id = "a"}; }), "kv_transfer_params");
  error_of(engine, changed([](Request& r) { r.prompt.pop_back(); }), "prompt_embeds");
  error_of(engine, changed([](Request& r) { r.prompt[1] = 5; }), "prompt_embeds");
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    std::vector<float> values(3 * kWidth, 0.5f);
    values[2 * kWidth + 5] = bad;
    Request request = with_vectors(plain, values);
    request.prompt_param = "prompt_embeds[2]";
    EXPECT_NE(error_of(engine, request, "prompt_embeds[2]").find("row 2"), std::string::npos);
  }
  Request narrow = plain;
  narrow.prompt_vectors = std::make_shared<const PromptVectors>(kWidth / 2, std::vector<float>(kWidth));
  narrow.prompt = {0, 0};
  EXPECT_NE(error_of(engine, narrow, "prompt_embeds").find("256"), std::string::npos);
  EXPECT_THROW(PromptVectors(kWidth, std::vector<float>(kWidth + 1)), Error);
  EXPECT_THROW(PromptVectors(kWidth, {}), Error);
  EXPECT_THROW(PromptVectors(0, {}), Error);

  EngineOptions off = options();
  off.enable_prompt_embeds = false;
  const auto without = Engine::load(off);
  EXPECT_EQ(without->model().prompt_vector_width, 0);
  EXPECT_NE(error_of(*without, plain, "prompt_embeds").find("--enable-prompt-embeds"), std::string::npos);
  EXPECT_THROW(without->read_prompt_vectors("", "prompt_embeds"), Error);
}

TEST(PromptVectors, HaveTheirMemoryLimited) {
  const auto rows = [](int count) {
    return std::make_shared<const PromptVectors>(25, std::vector<float>(25 * static_cast<size_t>(count), 0.5f));
  };
  VectorMemory memory(500);
  auto large = memory.hold(rows(9));  // 900 bytes, alone
  EXPECT_EQ(large->rows(), 9);
  EXPECT_THROW(memory.hold(rows(1)), Error);
  EXPECT_EQ(memory.held(), 900u);
  large.reset();
  const auto first = memory.hold(rows(2)), second = memory.hold(rows(3));
  EXPECT_EQ(memory.held(), 500u);
  try {
    memory.hold(rows(1));
    ADD_FAILURE() << "more than the limit";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kOverloaded);
  }
  EXPECT_EQ(memory.held(), 500u);
}

TEST(PromptVectors, KeepWithinTheContextWhereItIsShiftedByDefault) {
  EngineOptions o = options();
  o.context_shift = true;
  o.max_model_len = 64;
  const auto engine = Engine::load(o);
  Request request = by_vectors(by_ids(engine->tokenize("Once upon a time"), 30));
  EXPECT_EQ(run_alone(*engine, request).tokens.size(), 30u);
  request.sampling.max_tokens = 100;
  error_of(*engine, request, "max_tokens");
}

std::string tensor_file(const std::string& kind, const std::vector<int64_t>& shape, const std::string& bytes,
                        int64_t elements) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  const std::string pickled = pickle::kBegin + pickle::tensor(pickle::storage(kind, "0", elements), 0, shape, strides);
  return zip(torch_files(pickled + pickle::kStop, {{"0", bytes}}));
}
std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(PromptVectors, AreReadFromFilesOfTorch) {
  const Engine& engine = shared_engine();
  const std::vector<float> values = table_rows(std::vector<TokenId>{5, 6, 7});
  const auto expect_same = [&](const std::string& file) {
    const auto vectors = engine.read_prompt_vectors(file, "prompt_embeds");
    EXPECT_EQ(vectors->rows(), 3);
    EXPECT_TRUE(std::ranges::equal(vectors->values(), values));
  };
  expect_same(tensor_file("FloatStorage", {3, kWidth}, bytes_of(values), 3 * kWidth));
  expect_same(tensor_file("FloatStorage", {1, 3, kWidth}, bytes_of(values), 3 * kWidth));
  std::string halves;  // the table has bfloat16 values
  for (const float value : values) halves += little_endian(float_to_bf16(value));
  expect_same(tensor_file("BFloat16Storage", {3, kWidth}, halves, 3 * kWidth));
  std::string doubles;
  for (const float value : values) doubles += little_endian(static_cast<double>(value));
  expect_same(tensor_file("DoubleStorage", {3, kWidth}, doubles, 3 * kWidth));

  const auto error = [&](const std::string& file) {
    try {
      engine.read_prompt_vectors(file, "prompt_embeds[1]");
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      EXPECT_EQ(e.param, "prompt_embeds[1]");
      return std::string(e.what());
    }
    return std::string("nothing");
  };
  const auto expect_error = [&](const std::string& file, const char* what) {
    const std::string said = error(file);
    EXPECT_NE(said.find(what), std::string::npos) << said;
    EXPECT_EQ(said.find("Invalid 'prompt_embeds[1]'") == 0 || said.find("maximum context") != std::string::npos, true)
        << said;
  };
  expect_error("", "not a torch.save file");
  expect_error("hello", "not a torch.save file");
  expect_error(tensor_file("FloatStorage", {2, 3}, bytes_of(values), 6), "256");
  expect_error(tensor_file("FloatStorage", {3 * kWidth}, bytes_of(values), 3 * kWidth), "shape");
  expect_error(tensor_file("FloatStorage", {3, 1, kWidth}, bytes_of(values), 3 * kWidth), "shape");
  expect_error(tensor_file("FloatStorage", {0, kWidth}, bytes_of(values), 3 * kWidth), "no rows");
  expect_error(tensor_file("IntStorage", {3, kWidth}, bytes_of(values), 3 * kWidth), "int32");
  expect_error(tensor_file("FloatStorage", {4, kWidth}, bytes_of(values), 3 * kWidth), "exceeds its storage");
  expect_error(zip(torch_files(pickle::state_dict({}), {})), "expected a tensor");
  const std::string calls = pickle::kBegin + pickle::global("os", "system") + pickle::text("true") + pickle::kTuple1 +
                            pickle::kReduce + pickle::kStop;
  expect_error(zip(torch_files(calls, {})), "os.system");
  const std::string sparse = pickle::kBegin + pickle::global("torch._utils", "_rebuild_sparse_tensor") +
                             pickle::kEmptyTuple + pickle::kReduce + pickle::kStop;
  expect_error(zip(torch_files(sparse, {})), "_rebuild_sparse_tensor");
  const std::vector<float> many(static_cast<size_t>(engine.model().max_model_len + 1) * kWidth);
  expect_error(tensor_file("FloatStorage", {engine.model().max_model_len + 1, kWidth}, bytes_of(many),
                           static_cast<int64_t>(many.size())),
               "maximum context length");
}

}  // namespace
}  // namespace sluice::prompt_vectors_test
