// Adapters in the engine: several in one batch, with every way in which sequences share, wait and end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "engine/collect.h"
#include "support/temp_folder.h"

namespace sluice::adapters_test {
namespace {

using namespace testing;  // engine/collect.h
using namespace std::chrono_literals;

std::string folder_of(const std::string& name) { return demo_model() + "-lora-" + name; }

std::unique_ptr<Engine> engine_with(const std::function<void(EngineOptions&)>& change = {}) {
  EngineOptions o;
  o.model = demo_model();
  o.threads = 2;
  o.max_model_len = 512;
  o.kv_cache_memory_bytes = int64_t{32} << 20;
  o.max_loras = 2;
  o.lora_modules = {"pirate=" + folder_of("pirate"), "json=" + folder_of("json")};
  if (change) change(o);
  return Engine::load(o);
}

struct Golden {
  std::string adapter;
  std::string messages;
  std::vector<TokenId> tokens;
};

// What transformers and peft generate.
std::vector<Golden> goldens(const std::string& adapter, const std::string& file) {
  std::vector<Golden> out;
  std::ifstream in(std::string(SLUICE_SOURCE_DIR) + "/tests/goldens/minnow/" + file);
  for (std::string line; std::getline(in, line);) {
    const Json row = parse_json(line);
    out.push_back({adapter, row.at("messages").dump(), row.at("greedy_ids").get<std::vector<TokenId>>()});
  }
  EXPECT_FALSE(out.empty()) << file;
  return out;
}

std::vector<Golden> all_goldens() {
  std::vector<Golden> out;
  const std::vector<Golden> lists[] = {goldens("", "minnow-6m-greedy.jsonl"),
                                       goldens("pirate", "lora-pirate-greedy.jsonl"),
                                       goldens("json", "lora-json-greedy.jsonl")};
  for (size_t i = 0; i < 64; ++i) {  // in turns, so that each batch has all of them
    for (const auto& list : lists) {
      if (i < list.size()) out.push_back(list[i]);
    }
  }
  return out;
}

Request request_for(const Engine& engine, const Golden& golden) {
  Request request;
  request.prompt = engine.tokenize(engine.render_chat({.messages = golden.messages}), false);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = static_cast<int>(golden.tokens.size());
  request.adapter = golden.adapter;
  return request;
}

void expect_goldens(Engine& engine) {
  const std::vector<Golden> all = all_goldens();
  Collector collector(engine);
  std::vector<size_t> answers;
  for (const Golden& golden : all) answers.push_back(collector.submit(request_for(engine, golden)));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(collector.answer(answers[i])[0].tokens, all[i].tokens) << all[i].adapter << ": " << all[i].messages;
  }
}

TEST(Adapters, InOneBatchAreExact) { expect_goldens(*engine_with()); }

TEST(Adapters, TakeTurnsWhereOnlyOneFits) {
  expect_goldens(*engine_with([](EngineOptions& o) { o.max_loras = 1, o.max_cpu_loras = 1; }));
}

TEST(Adapters, InSmallChunksAndPreemptedAreExact) {
  expect_goldens(*engine_with([](EngineOptions& o) {
    o.max_num_batched_tokens = 8;
    o.kv_cache_memory_bytes = 640 * 2048;
  }));
}

TEST(Adapters, DoNotSharePrefixes) {
  const std::unique_ptr<Engine> engine = engine_with();
  const std::string text(200, 'x');
  const auto cached = [&](const std::string& adapter) {
    Request request;
    request.prompt = engine->tokenize(text, false);
    request.sampling.max_tokens = 1;
    request.adapter = adapter;
    return run_alone(*engine, request).usage.cached_tokens;
  };
  EXPECT_EQ(cached("pirate"), 0);
  EXPECT_EQ(cached("json"), 0);
  EXPECT_EQ(cached(""), 0);
  EXPECT_GT(cached("pirate"), 0);
}

// The demo adapter, beginning at some tokens.
class ActivatedPirate {
 public:
  explicit ActivatedPirate(const std::vector<TokenId>& invocation) {
    const std::string from = folder_of("pirate");
    std::filesystem::copy(from + "/adapter_model.safetensors", folder_.path());
    Json config = read_json_file(from + "/adapter_config.json");
    config["alora_invocation_tokens"] = invocation;
    folder_.write("adapter_config.json", config.dump());
  }
  std::string module() const { return "late=" + folder_.path().string(); }

 private:
  testing::TempFolder folder_;
};

TEST(Adapters, BeginAtTheirInvocation) {
  const std::vector<TokenId> invocation = {300, 301};
  const ActivatedPirate pirate(invocation);
  const auto engine_of = [&](bool caches) {
    return engine_with([&](EngineOptions& o) {
      o.lora_modules = {pirate.module(), "pirate=" + folder_of("pirate")};
      o.enable_prefix_caching = caches;
      o.deterministic = true;  // batch-invariant even if a GPU is the default backend
    });
  };
  const std::unique_ptr<Engine> engine = engine_of(true), plain = engine_of(false);
  const std::vector<TokenId> text =
      engine->tokenize("Tell me a story about the sea and a ship. " + std::string(60, 'x'), false);
  std::vector<TokenId> invoked = text;
  invoked.insert(invoked.end(), invocation.begin(), invocation.end());
  const auto answer = [](Engine& from, const std::vector<TokenId>& prompt, const std::string& adapter) {
    Request request;
    request.prompt = prompt;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 24;
    request.adapter = adapter;
    return run_alone(from, request);
  };
  const auto of_model = answer(*engine, text, "");
  EXPECT_EQ(answer(*engine, text, "late").tokens, of_model.tokens) << "no invocation";
  const auto late = answer(*engine, invoked, "late");
  const int whole = static_cast<int>(text.size()) / 16 * 16;
  EXPECT_EQ(late.usage.cached_tokens, whole) << "the model's blocks";
  EXPECT_EQ(late.tokens, answer(*plain, invoked, "late").tokens);
  EXPECT_NE(late.tokens, answer(*plain, invoked, "").tokens);
  EXPECT_NE(late.tokens, answer(*plain, invoked, "pirate").tokens);
  std::vector<TokenId> at_once = invocation;
  at_once.insert(at_once.end(), text.begin(), text.end());
  EXPECT_EQ(answer(*engine, at_once, "late").tokens, answer(*plain, at_once, "pirate").tokens);
  Request shifted;
  shifted.prompt = invoked;
  shifted.adapter = "late";
  shifted.context_shift = true;
  EXPECT_THROW(run_alone(*engine, shifted), Error);
}

TEST(Adapters, OfAllChoices) {
  const std::unique_ptr<Engine> engine = engine_with();
  const Golden golden = goldens("pirate", "lora-pirate-greedy.jsonl")[0];
  Request request = request_for(*engine, golden);
  request.n = 3;
  Collector collector(*engine);
  for (const Choice& choice : collector.answer(collector.submit(request))) EXPECT_EQ(choice.tokens, golden.tokens);
}

TEST(Adapters, UnloadedOnesStayWithWhatRuns) {
  const std::unique_ptr<Engine> engine = engine_with();
  const Golden golden = goldens("pirate", "lora-pirate-greedy.jsonl")[0];
  Collector collector(*engine);
  std::vector<size_t> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(collector.submit(request_for(*engine, golden)));
  EXPECT_TRUE(engine->unload_adapter("pirate"));
  EXPECT_FALSE(engine->unload_adapter("pirate"));
  EXPECT_THROW(engine->submit(request_for(*engine, golden), [](const Event&) {}), Error);
  for (const size_t at : answers) EXPECT_EQ(collector.answer(at)[0].tokens, golden.tokens);
  engine->load_adapter("pirate", folder_of("pirate"));
  EXPECT_EQ(run_alone(*engine, request_for(*engine, golden)).tokens, golden.tokens);
}

// The labels of vllm:lora_requests_info: max_lora, running and waiting adapters.
std::vector<std::string> adapters_in_use(const Engine& engine) {
  std::vector<std::string> out;
  for (const MetricFamily& family : engine.metrics()) {
    if (family.name != "vllm:lora_requests_info") continue;
    EXPECT_GT(family.samples.at(0).value, 1.7e9) << "the time";
    for (const auto& [name, value] : family.samples.at(0).labels) {
      if (name.find("lora") != std::string::npos) out.push_back(value);
    }
  }
  return out;
}

TEST(Adapters, ThoseInUseAreKnown) {
  const std::unique_ptr<Engine> engine = engine_with([](EngineOptions& o) {
    o.max_loras = 1;
    o.max_num_seqs = 1;  // the engine looks every 100 ms, so requests take turns
  });
  Collector collector(*engine);
  Request request = request_for(*engine, goldens("pirate", "lora-pirate-greedy.jsonl")[0]);
  request.sampling.max_tokens = 400;
  request.sampling.ignore_eos = true;
  const auto submit_eight = [&](const std::string& adapter) {
    std::vector<size_t> at;
    request.adapter = adapter;
    for (int i = 0; i < 8; ++i) at.push_back(collector.submit(request));
    return at;
  };
  const auto cancel = [&](const std::vector<size_t>& all) {
    for (const size_t at : all) engine->cancel(collector.id(at));
  };
  using Names = std::vector<std::string>;
  const auto wait_for = [&](const Names& names) {
    Names seen = adapters_in_use(*engine);
    for (; seen != names && !collector.done(); seen = adapters_in_use(*engine)) std::this_thread::sleep_for(1ms);
    return seen;
  };
  const std::vector<size_t> first = submit_eight("pirate");
  collector.wait_tokens(0, 1);
  const std::vector<size_t> second = submit_eight("json");
  EXPECT_EQ(wait_for({"1", "pirate", "json,pirate"}), (Names{"1", "pirate", "json,pirate"}));
  cancel(first);
  EXPECT_EQ(wait_for({"1", "json", "json"}), (Names{"1", "json", "json"}));
  cancel(second);
  collector.wait();
  EXPECT_TRUE(settles(*engine, "vllm:num_requests_running", 0));
  EXPECT_EQ(adapters_in_use(*engine), (Names{"1", "", ""}));
}

TEST(Adapters, AreRefusedByName) {
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  using ::testing::HasSubstr;
  const std::unique_ptr<Engine> engine = engine_with();
  EXPECT_THAT(message([&] { engine->load_adapter("pirate", folder_of("json")); }), HasSubstr("already been loaded"));
  EXPECT_THAT(message([&] { engine->load_adapter("x", "/nowhere"); }), HasSubstr("/nowhere/adapter_config.json"));
  EXPECT_THAT(message([] { engine_with([](EngineOptions& o) { o.max_lora_rank = 8; }); }),
              HasSubstr("rank 16 is above --max-lora-rank 8"));
  EXPECT_THAT(message([] { engine_with([](EngineOptions& o) { o.lora_modules = {"pirate"}; }); }),
              HasSubstr("'pirate' is not of the form name=path"));
  const std::unique_ptr<Engine> plain = engine_with([](EngineOptions& o) { o.lora_modules.clear(); });
  EXPECT_THAT(message([&] { plain->load_adapter("x", folder_of("json")); }), HasSubstr("--enable-lora"));
}

}  // namespace
}  // namespace sluice::adapters_test
