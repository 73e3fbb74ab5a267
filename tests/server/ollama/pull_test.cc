// /api/pull: downloads that a fake source controls, what clients read of them, and how they end.
#include <gmock/gmock.h>

#include "server/models.h"
#include "server/pulls.h"
#include "server/server_fixture.h"

namespace sluice::server::pull_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// A server of the model "one" whose source knows the models that begin with "org/".
class PullTest : public ServerTest {
 protected:
  ~PullTest() override {
    held = false;
    stop();
  }

  static ModelSource source(const std::string& name) {
    ModelSource out{.name = name, .info = FakeEngine().model(), .load = {}, .at_start = false};
    out.load = [name](double, const std::function<void(double)>&) -> std::unique_ptr<Engine> {
      auto loaded = std::make_unique<FakeEngine>();
      loaded->info().name = name;
      return loaded;
    };
    return out;
  }

  ModelSource download(const std::string& name, PullProgress& progress) {
    ++gets;
    ++running;
    struct Leave {
      std::atomic<int>& count;
      ~Leave() { --count; }
    } leave{running};
    progress.files({{"sha256:" + std::string(64, 'a'), 100, 40}, {"sha1:" + std::string(40, 'b'), 7, 0}});
    while (held) {
      progress.check();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    progress.files({{"sha256:" + std::string(64, 'a'), 100, 100}, {"sha1:" + std::string(40, 'b'), 7, 7}});
    progress.step("writing manifest");
    if (failure) throw *failure;
    return source(name);
  }

  void serve(bool allow = true) {
    const auto host = std::make_shared<ModelHost>(std::vector{source("one")}, ModelHostOptions{.grows = true});
    models = Models::of(host);
    models->add_hosted("one", 0);
    PullSource from{.name = [](std::string_view text) -> std::optional<std::string> {
                      return text.starts_with("org/") ? std::optional(std::string(text)) : std::nullopt;
                    },
                    .get = [this](const std::string& name, PullProgress& p) { return download(name, p); }};
    const auto pulls = allow ? std::make_shared<Pulls>(models, std::move(from)) : nullptr;
    server = std::make_unique<Server>(models, options, std::vector<int>(), pulls);
    port = server->port();
    thread = std::thread([this] { server->run(); });
  }

  TestResponse pull(const std::string& model, bool stream = false, std::string_view headers = "") {
    return post("/api/pull", dump_json({{"model", model}, {"stream", stream}}), headers);
  }
  TestResponse chat_with(const std::string& model) {
    return post(
        "/api/chat",
        dump_json({{"model", model}, {"stream", false}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}}));
  }
  static std::vector<std::string> lines(const TestResponse& response) {
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.headers.at("content-type"), "application/x-ndjson");
    std::vector<std::string> out;
    for (size_t at = 0; at < response.body.size();) {
      const size_t end = response.body.find('\n', at);
      out.push_back(response.body.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }
  static bool ends_well(const TestResponse& response) {
    return response.status == 200 && response.body.find(R"({"status":"success"})") != std::string::npos;
  }
  static void expect_refused(const TestResponse& response, int status, const std::string& part) {
    EXPECT_EQ(response.status, status) << response.body;
    const Json body = response.json();
    ASSERT_EQ(body.size(), 1u) << response.body;
    EXPECT_THAT(body.at("error").get<std::string>(), HasSubstr(part));
  }

  std::shared_ptr<Models> models;
  std::atomic<int> gets{0}, running{0};
  std::atomic<bool> held{false};
  std::optional<Error> failure;
};

TEST_F(PullTest, AStreamTellsEachFileAndThenTheModelAnswers) {
  serve();
  EXPECT_EQ(chat_with("org/new").status, 404);
  const std::string a(64, 'a'), b(40, 'b');
  const auto file = [](const std::string& kind, const std::string& digits, int total, int completed) {
    return fmt::format(R"({{"status":"pulling {}","digest":"{}:{}","total":{},"completed":{}}})", digits.substr(0, 12),
                       kind, digits, total, completed);
  };
  EXPECT_THAT(lines(pull("org/new:latest", true)),
              ElementsAre(R"({"status":"pulling manifest"})", file("sha256", a, 100, 40), file("sha256", a, 100, 100),
                          file("sha1", b, 7, 7), R"({"status":"writing manifest"})", R"({"status":"success"})"));
  EXPECT_EQ(chat_with("org/new").status, 200);
  EXPECT_EQ(chat_with("hf.co/org/new:latest").json()["model"], "org/new");
  EXPECT_THAT(get("/api/tags").body, HasSubstr("org/new"));
  EXPECT_EQ(pull("huggingface.co/org/new").body, R"({"status":"success"})");
  EXPECT_EQ(gets, 1) << "it is served";
}

TEST_F(PullTest, TheOlderFieldAndWholeAnswers) {
  serve();
  EXPECT_EQ(post("/api/pull", R"({"name":"hf.co/org/new:Q4_K_M","stream":false})").body, R"({"status":"success"})");
  EXPECT_EQ(chat_with("hf.co/org/new:Q4_K_M").status, 200);
  expect_refused(post("/api/pull", R"({"stream":false})"), 400, "model");
}

TEST_F(PullTest, RequestsWithoutAModelStillGetTheOneOfTheStart) {
  serve();
  EXPECT_EQ(pull("org/new").status, 200);
  const TestResponse answer = post("/v1/completions", R"({"prompt":"abc"})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["model"], "one");
}

TEST_F(PullTest, WithoutTheOptionNothingIsDownloaded) {
  serve(/*allow=*/false);
  expect_refused(pull("org/new"), 403, "--allow-pull");
  expect_refused(pull("org/new", true), 403, "Served: `one`");
  EXPECT_EQ(pull("one").status, 200);
  EXPECT_EQ(gets, 0);
}

TEST_F(PullTest, KeysAreNeeded) {
  options.api_key = {"key"};
  serve();
  expect_refused(pull("org/new"), 401, "API key");
  EXPECT_EQ(pull("org/new", false, "Authorization: Bearer key\r\n").status, 200);
}

TEST_F(PullTest, NamesAreChecked) {
  serve();
  for (const std::string name : {"new", "/etc/passwd", "../org/new", "http://other/org/new", "org\n/new"}) {
    expect_refused(pull(name), 400, "org/name[:tag]");
  }
  expect_refused(post("/api/pull", R"({"model":7})"), 400, "model");
  expect_refused(post("/api/pull", R"({"model":"org/new","insecure":true})"), 400, "insecure");
  EXPECT_EQ(gets, 0);
}

TEST_F(PullTest, ErrorsAreAnswers) {
  serve();
  failure = Error(ErrorCode::kNotFound, "org/new (revision main): HTTP status 404: not found");
  expect_refused(pull("org/new"), 404, "not found");
  const auto told = lines(pull("org/new", true));
  EXPECT_EQ(told.front(), R"({"status":"pulling manifest"})");
  EXPECT_EQ(told.back(), R"({"error":"org/new (revision main): HTTP status 404: not found"})");
  failure = Error(ErrorCode::kInternal, "/secret/folder: no space left");
  const TestResponse hidden = pull("org/new");
  expect_refused(hidden, 500, "see the server's log");
  EXPECT_THAT(hidden.body, Not(HasSubstr("secret")));
  failure = Error(ErrorCode::kUnsupportedModel, "no family has this architecture\n  a table");
  expect_refused(pull("org/new"), 500, "cannot be served: no family has this architecture.");
  EXPECT_EQ(chat_with("org/new").status, 404);
  failure.reset();
  EXPECT_EQ(pull("org/new").status, 200) << "the next request tries again";
}

TEST_F(PullTest, RequestsForAModelShareItsDownload) {
  serve();
  held = true;
  std::vector<std::thread> clients;
  std::atomic<int> good{0};
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] { good += ends_well(pull("org/new", i % 2 == 0)); });
  }
  ASSERT_TRUE(eventually([&] { return running == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(chat_with("one").status, 200) << "others are served meanwhile";
  held = false;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 6);
  EXPECT_LE(gets, 2) << "a client that came after the end found it served";
  EXPECT_EQ(models->names().size(), 2u);
}

TEST_F(PullTest, TheLastClientThatLeavesEndsIt) {
  serve();
  held = true;
  const std::string request = post_text("/api/pull", R"({"model":"org/new"})");
  TestClient one(port), two(port);
  one.send(request);
  ASSERT_TRUE(eventually([&] { return running == 1; }));
  two.send(request);
  EXPECT_TRUE(two.fill());
  one.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(running, 1) << "another client waits";
  two.reset();
  EXPECT_TRUE(eventually([&] { return running == 0; }));
  EXPECT_EQ(models->names().size(), 1u);
  held = false;
  EXPECT_EQ(pull("org/new").status, 200);
}

TEST_F(PullTest, DeadlinesEndIt) {
  serve();
  held = true;
  expect_refused(pull("org/new", false, "X-Request-Timeout: 0.1\r\n"), 504, "deadline");
  EXPECT_TRUE(eventually([&] { return running == 0; }));
}

TEST_F(PullTest, FewAtATime) {
  serve();
  held = true;
  std::vector<std::unique_ptr<TestClient>> clients;
  for (size_t i = 0; i < Pulls::kMost; ++i) {
    clients.push_back(std::make_unique<TestClient>(port));
    clients.back()->send(post_text("/api/pull", fmt::format(R"({{"model":"org/{}"}})", i)));
  }
  ASSERT_TRUE(eventually([&] { return running == static_cast<int>(Pulls::kMost); }));
  const TestResponse refused = pull("org/more");
  expect_refused(refused, 503, "downloads 4 models already");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  expect_refused(pull("org/more", true), 503, "downloads 4 models already");
}

TEST_F(PullTest, TheEndOfTheServerEndsIt) {
  serve();
  held = true;
  TestClient client(port);
  client.send(post_text("/api/pull", R"({"model":"org/new"})"));
  ASSERT_TRUE(eventually([&] { return running == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  server->shutdown();
  const TestResponse response = client.read_response();
  join();
  EXPECT_EQ(lines(response).back(), R"({"error":"The server is shutting down."})");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "not after --shutdown-timeout-ms";
  server.reset();
  EXPECT_TRUE(eventually([&] { return running == 0; }));
}

}  // namespace
}  // namespace sluice::server::pull_test
