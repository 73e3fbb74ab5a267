// A server of several models: how requests name them, what lists and metrics say, and waits for models that load.
#include <gmock/gmock.h>

#include "server/models.h"
#include "server/server_fixture.h"

namespace sluice::server::several_models_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Models "one" and "two" (also "second") generate text, "vectors" gives embeddings. Nothing is loaded at the start.
class SeveralModelsTest : public ServerTest {
 protected:
  ~SeveralModelsTest() override {
    held = false;
    stop();
  }

  ModelSource source(const std::string& name, Task task) {
    ModelSource out{.name = name, .info = engine.model(), .load = {}, .at_start = false};
    out.info.task = task;
    out.info.max_model_len = 1234;
    out.load = [this, name, task](double, const std::function<void(double)>& progress) -> std::unique_ptr<Engine> {
      ++loads;
      while (held) {
        progress(0.5);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (failing) throw Error(ErrorCode::kCorruptFile, "the file is too short");
      auto loaded = std::make_unique<FakeEngine>();
      loaded->info().name = name;
      loaded->info().task = task;
      if (task == Task::kEmbed) loaded->info().vector_size = 4;
      if (name == "one") loaded->loaded_adapters = {{.name = "pirate", .folder = "/pirate"}};
      loaded->is_overloaded = overloaded.load();
      return loaded;
    };
    return out;
  }

  void serve(ModelHostOptions limits = {}) {
    const auto host = std::make_shared<ModelHost>(
        std::vector{source("one", Task::kGenerate), source("two", Task::kGenerate), source("vectors", Task::kEmbed)},
        limits);
    models = Models::of(host);
    for (const char* name : {"one", "two"}) models->add_hosted(name, name == std::string("two"));
    models->add_hosted("second", 1);
    models->add_hosted("vectors", 2);
    models->add_hosted("pirate", 0, "pirate");
    server = std::make_unique<Server>(models, options);
    port = server->port();
    thread = std::thread([this] { server->run(); });
  }
  bool is_loaded(ModelHost::Id id) const { return models->host()->look(id) != nullptr; }
  TestResponse complete(const std::string& model, std::string_view headers = "") {
    return post("/v1/completions", dump_json({{"model", model}, {"prompt", "abc"}}), headers);
  }
  // The cards of GET `path`, by their field `key`.
  std::map<std::string, Json> cards(std::string_view path, const std::string& list, const std::string& key) {
    std::map<std::string, Json> out;
    const Json body = get(path).json();
    for (const Json& card : body.at(list)) out[card.at(key).get<std::string>()] = card;
    return out;
  }

  std::shared_ptr<Models> models;
  std::atomic<int> loads{0};
  std::atomic<bool> held{false}, failing{false}, overloaded{false};
};

TEST_F(SeveralModelsTest, RequestsLoadTheModelTheyName) {
  serve();
  const TestResponse one = complete("one");
  EXPECT_EQ(one.status, 200) << one.body;
  EXPECT_EQ(one.json()["model"], "one");
  EXPECT_FALSE(is_loaded(1));
  EXPECT_EQ(complete("second").json()["model"], "second");
  EXPECT_TRUE(is_loaded(1));
  const TestResponse vectors = post("/v1/embeddings", R"({"model":"vectors","input":"abc"})");
  EXPECT_EQ(vectors.status, 200) << vectors.body;
  EXPECT_EQ(post("/v1/embeddings", R"({"model":"one","input":"abc"})").status, 400);
  EXPECT_EQ(post("/tokenize", R"({"model":"two","prompt":"abc"})").json()["count"], 4);
  EXPECT_EQ(loads, 3);
}

TEST_F(SeveralModelsTest, SleepAndWakeUp) {
  serve();
  EXPECT_EQ(complete("one").status, 200);
  EXPECT_EQ(complete("two").status, 200);
  const auto sleeps = [&](const std::string& query) { return get("/is_sleeping" + query).json()["is_sleeping"]; };
  EXPECT_EQ(sleeps(""), false);
  EXPECT_EQ(sleeps("?model=vectors"), true);
  EXPECT_EQ(post("/sleep?model=one", "").status, 200);
  EXPECT_TRUE(eventually([&] { return sleeps("?model=one") == true; }));
  EXPECT_EQ(sleeps("?model=two"), false);
  EXPECT_EQ(post("/wake_up?model=one", "").status, 200);
  EXPECT_EQ(sleeps("?model=one"), false) << "it answers when the model is loaded";
  EXPECT_EQ(loads, 3);
  EXPECT_EQ(post("/sleep?level=2", "").status, 200);
  EXPECT_TRUE(eventually([&] { return sleeps("") == true; }));
  expect_error(post("/wake_up", ""), 400, "model", "missing_required_parameter");
  expect_error(post("/sleep?level=0", ""), 400, "level", "unsupported_parameter");
  expect_error(post("/sleep?mode=abort", ""), 400, "mode", "unsupported_parameter");
  EXPECT_EQ(complete("one").status, 200) << "a request wakes its model";
  EXPECT_EQ(get("/tokenizer_info?model=two").status, 200) << "it loads the model";
  expect_error(get("/tokenizer_info"), 400, "model", "missing_required_parameter");
}

TEST_F(SeveralModelsTest, RequestsMustNameAModel) {
  serve();
  const TestResponse none = post("/v1/completions", R"({"prompt":"abc"})");
  expect_error(none, 400, "model", "missing_required_parameter");
  EXPECT_THAT(none.body, HasSubstr("Served: `one`, `two`, `second`, `vectors`, `pirate`."));
  const TestResponse unknown = complete("three");
  expect_error(unknown, 404, "", "model_not_found");
  EXPECT_THAT(unknown.body, HasSubstr("`vectors`"));
  EXPECT_EQ(post("/api/chat", R"({"model":"two:latest","messages":[]})").status, 200);
  for (const char* path : {"/props", "/info"}) {
    EXPECT_THAT(get(path).body, HasSubstr("Served: `one`"));
    EXPECT_EQ(get(std::string(path) + "?model=three").status, 404);
    EXPECT_EQ(get(std::string(path) + "?x=1&model=tw%6f").status, 200);
  }
  EXPECT_EQ(get("/props?model=vectors").json()["model_alias"], "vectors");
  EXPECT_EQ(get("/props?model=vectors").json()["default_generation_settings"]["n_ctx"], 1234) << "it is not loaded";
  EXPECT_EQ(loads, 1);
}

TEST_F(SeveralModelsTest, ListsHaveAllModels) {
  serve();
  EXPECT_EQ(complete("two").status, 200);
  const auto listed = cards("/v1/models", "data", "id");
  EXPECT_EQ(listed.size(), 5u);
  EXPECT_EQ(listed.at("two")["loaded"], true);
  EXPECT_EQ(listed.at("second")["loaded"], true);
  EXPECT_EQ(listed.at("one")["loaded"], false);
  EXPECT_EQ(listed.at("one")["max_model_len"], 1234);
  EXPECT_EQ(listed.at("one")["parent"], nullptr);
  EXPECT_EQ(listed.at("pirate")["parent"], "one");
  EXPECT_EQ(listed.at("vectors")["task"], "embed");
  EXPECT_EQ(get("/v1/models/vectors").json()["loaded"], false);
  EXPECT_EQ(cards("/api/tags", "models", "name").size(), 5u);
  const auto running = cards("/api/ps", "models", "name");
  ASSERT_EQ(running.size(), 2u);
  EXPECT_EQ(running.at("two")["expires_at"], "9999-12-31T23:59:59Z");
  const Json shown = post("/api/show", R"({"model":"vectors"})").json();
  EXPECT_EQ(shown["capabilities"], Json({"embedding"}));
  EXPECT_EQ(post("/api/show", R"({"name":"one:latest"})").status, 200);
  EXPECT_EQ(post("/api/show", "{}").status, 400);
  EXPECT_EQ(loads, 1);
}

TEST_F(SeveralModelsTest, EachEngineHasItsMetrics) {
  serve();
  EXPECT_EQ(complete("one").status, 200);
  EXPECT_EQ(complete("two").status, 200);
  const std::string text = get("/metrics").body;
  for (const char* line :
       {"\nvllm:num_requests_running{model_name=\"one\"} 0\nvllm:num_requests_running{model_name=\"two\"} 0\n",
        "\nvllm:prompt_tokens_total{model_name=\"two\"} 7\n", "\nsluice:model_loaded{model_name=\"one\"} 1\n",
        "\nsluice:model_loaded{model_name=\"vectors\"} 0\n", "\nsluice:model_loads_total{model_name=\"two\"} 1\n",
        "\nsluice:requests_waiting_for_model{model_name=\"two\"} 0\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  const std::string type = "# TYPE vllm:num_requests_running gauge\n";
  EXPECT_EQ(text.find(type), text.rfind(type)) << "once";
  const Json health = get("/health").json();
  EXPECT_EQ(health["status"], "ok");
  EXPECT_EQ(health["models"], 3);
  EXPECT_EQ(health["loaded"], 2);
  EXPECT_EQ(get("/load").json()["server_load"], 0);
  EXPECT_EQ(get("/slots").json().size(), 2u) << "an idle one of each loaded model";
}

TEST_F(SeveralModelsTest, EventsTellOfEachModelAndKeepNoneLoaded) {
  serve();
  EXPECT_EQ(complete("one").status, 200);
  TestClient client(port);
  client.send(get_text("/events?interval_ms=100"));
  client.read_until("\r\n\r\n");
  const auto next = [&] {
    client.read_until("data: ");
    std::map<std::string, Json> models;
    const Json event = parse_json(client.read_until("\n"));
    for (const Json& model : event["models"]) models[model["name"].get<std::string>()] = model["metrics"];
    return models;
  };
  auto models = next();
  ASSERT_EQ(models.size(), 3u);
  EXPECT_EQ(models.at("one")["sluice:model_loaded"], 1);
  EXPECT_EQ(models.at("one")["sluice:model_loads_total"], 1);
  EXPECT_EQ(models.at("one")["vllm:prompt_tokens_total"], 7);
  EXPECT_EQ(models.at("two"), Json({{"sluice:model_loaded", 0},
                                    {"sluice:model_loads_total", 0},
                                    {"sluice:model_load_failures_total", 0},
                                    {"sluice:model_load_seconds", 0},
                                    {"sluice:requests_waiting_for_model", 0}}));
  EXPECT_EQ(complete("two").status, 200);
  for (int i = 0; i < 20 && models.at("two")["sluice:model_loaded"] == 0; ++i) models = next();
  EXPECT_EQ(models.at("two")["vllm:num_requests_running"], 0);
  EXPECT_EQ(post("/api/generate", R"({"model":"one","keep_alive":0})").json()["done_reason"], "unload");
  EXPECT_TRUE(eventually([&] { return !is_loaded(0); })) << "a stream does not hold the engine";
  for (int i = 0; i < 20 && models.at("one")["sluice:model_loaded"] == 1; ++i) models = next();
  EXPECT_FALSE(models.at("one").contains("vllm:prompt_tokens_total"));
}

TEST_F(SeveralModelsTest, KeepAliveUnloads) {
  serve();
  const Json loaded = post("/api/generate", R"({"model":"one"})").json();
  EXPECT_EQ(loaded["done_reason"], "load");
  EXPECT_TRUE(is_loaded(0));
  EXPECT_EQ(post("/api/generate", R"({"model":"one","keep_alive":"1h30m"})").status, 200);
  EXPECT_THAT(cards("/api/ps", "models", "name").at("one")["expires_at"], Not("9999-12-31T23:59:59Z"));
  EXPECT_EQ(post("/api/chat", R"({"model":"one","keep_alive":-1})").status, 200);
  EXPECT_EQ(cards("/api/ps", "models", "name").at("one")["expires_at"], "9999-12-31T23:59:59Z");
  for (const char* wrong : {R"("5 minutes")", R"("m")", R"("")", R"("5")", "true"}) {
    const std::string body = fmt::format(R"({{"model":"one","prompt":"x","keep_alive":{}}})", wrong);
    EXPECT_EQ(post("/api/generate", body).status, 400) << wrong;
  }
  EXPECT_EQ(post("/api/generate", R"({"model":"one","keep_alive":0})").json()["done_reason"], "unload");
  EXPECT_TRUE(eventually([&] { return !is_loaded(0); }));
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(post("/api/chat", R"({"model":"one","keep_alive":"0s"})").json()["done_reason"], "unload");
  EXPECT_EQ(loads, 1) << "it need not be loaded for that";
  const std::string once = R"({"model":"one","prompt":"x","stream":false,"keep_alive":0})";
  EXPECT_EQ(post("/api/generate", once).json()["done_reason"], "stop");
  EXPECT_TRUE(eventually([&] { return !is_loaded(0); }));
}

TEST_F(SeveralModelsTest, ManyRequestsWaitForOneLoad) {
  serve();
  held = true;
  std::vector<std::thread> clients;
  std::atomic<int> answered{0};
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      TestClient client(port);
      client.send(post_text("/v1/completions", R"({"model":"one","prompt":"abc"})"));
      if (client.read_response().status == 200) ++answered;
    });
  }
  const std::string waiting = "sluice:requests_waiting_for_model{model_name=\"one\"} 8\n";
  EXPECT_TRUE(eventually([&] { return get("/metrics").body.find(waiting) != std::string::npos; }));
  held = false;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 8);
  EXPECT_EQ(loads, 1);
}

TEST_F(SeveralModelsTest, OtherModelsAnswerWhileOneLoads) {
  options.worker_threads = 1;
  serve();
  EXPECT_EQ(complete("two").status, 200);
  held = true;
  TestClient client(port);
  client.send(post_text("/v1/completions", R"({"model":"one","prompt":"abc"})"));
  ASSERT_TRUE(eventually([&] { return loads == 2; }));
  EXPECT_EQ(complete("two").status, 200);
  EXPECT_EQ(get("/v1/models").status, 200);
  held = false;
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(SeveralModelsTest, AFailedLoadIsAnswered) {
  serve();
  failing = true;
  const TestResponse failed = complete("one");
  expect_error(failed, 500, "", "model_load_failed", "server_error");
  EXPECT_THAT(failed.body, HasSubstr("The model `one` could not be loaded: the file is too short."));
  EXPECT_THAT(post("/api/generate", R"({"model":"one"})").body, HasSubstr(R"({"error":"The model `one`)"));
  EXPECT_EQ(get("/health").status, 200);
  failing = false;
  EXPECT_EQ(complete("one").status, 200);
  EXPECT_THAT(get("/metrics").body, HasSubstr("\nsluice:model_load_failures_total{model_name=\"one\"} 2\n"));
}

TEST_F(SeveralModelsTest, WaitsAreBounded) {
  serve({.max_waiting = 1, .max_wait = std::chrono::seconds(20)});
  held = true;
  TestClient first(port);
  first.send(post_text("/v1/completions", R"({"model":"one","prompt":"abc"})", "X-Request-Timeout: 1\r\n"));
  ASSERT_TRUE(eventually([&] { return loads == 1; }));
  const TestResponse refused = complete("one");
  expect_error(refused, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  expect_error(first.read_response(), 504, "", "deadline_exceeded", "server_error");
}

TEST_F(SeveralModelsTest, AnOverloadedEngineRefuses) {
  serve();
  EXPECT_EQ(complete("two").status, 200);
  overloaded = true;
  expect_error(complete("one"), 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_EQ(complete("two").status, 200);
}

// Whoever leaves waits no more, and nothing is loaded for him.
TEST_F(SeveralModelsTest, ClientsThatLeaveWaitNoMore) {
  serve();
  held = true;
  TestClient first(port);
  first.send(post_text("/v1/completions", R"({"model":"one","prompt":"abc"})"));
  ASSERT_TRUE(eventually([&] { return loads == 1; }));
  const auto waiting = [&](int count) {
    const std::string line = fmt::format("sluice:requests_waiting_for_model{{model_name=\"two\"}} {}\n", count);
    return eventually([&] { return get("/metrics").body.find(line) != std::string::npos; });
  };
  {
    TestClient second(port);
    second.send(post_text("/v1/completions", R"({"model":"two","prompt":"abc"})"));
    EXPECT_TRUE(waiting(1));
  }
  EXPECT_TRUE(waiting(0));
  held = false;
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(loads, 1);
}

TEST_F(SeveralModelsTest, ShutdownEndsWaits) {
  serve();
  EXPECT_EQ(complete("two").status, 200);
  held = true;
  TestClient client(port);
  client.send(post_text("/v1/completions", R"({"model":"one","prompt":"abc"})"));
  ASSERT_TRUE(eventually([&] { return loads == 2; }));
  server->shutdown();
  const TestResponse ended = client.read_response();
  expect_error(ended, 503, "", "server_is_overloaded", "service_unavailable_error");
  EXPECT_THAT(ended.body, HasSubstr("shutting down"));
  join();
  server.reset();  // while the load still runs
}

TEST_F(SeveralModelsTest, AdaptersOfModelsThatComeAndGo) {
  serve();
  EXPECT_EQ(complete("pirate").status, 200);
  EXPECT_TRUE(is_loaded(0));
  EXPECT_EQ(post("/v1/load_lora_adapter", R"({"lora_name":"x","lora_path":"x"})").status, 400);
  EXPECT_EQ(post("/v1/unload_lora_adapter", R"({"lora_name":"pirate"})").status, 400);
}

TEST_F(SeveralModelsTest, SettingAScaleLoadsTheModel) {
  serve();
  EXPECT_THAT(post("/lora-adapters", "[]").body, HasSubstr("`one`"));
  EXPECT_EQ(loads, 0);
  EXPECT_EQ(post("/lora-adapters?model=one", R"([{"id":0,"scale":0.5}])").status, 200);
  EXPECT_EQ(loads, 1);
  EXPECT_EQ(get("/lora-adapters?model=one").body, R"([{"id":0,"path":"/pirate","scale":0.5}])");
  EXPECT_EQ(models->find("one")->default_adapter.name, "pirate");
  EXPECT_EQ(models->find("two")->default_adapter.name, "");
}

}  // namespace
}  // namespace sluice::server::several_models_test
