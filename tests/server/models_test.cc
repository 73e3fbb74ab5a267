// Names of served models: aliases, what is taken twice, and requests that outlive an unload.
#include "server/models.h"

#include "server/api.h"
#include "server/server_fixture.h"

namespace sluice::server::models_test {
namespace {

TEST(Models, NamesAndAliases) {
  Models models;
  EXPECT_FALSE(models.first());
  const auto a = std::make_shared<FakeEngine>(), b = std::make_shared<FakeEngine>();
  models.load("a", a);
  models.load("b", b);
  models.alias("big", "b");
  EXPECT_EQ(models.first()->name, "a");
  EXPECT_EQ(models.find("big")->engine.get(), b.get());
  EXPECT_EQ(models.find("big")->name, "big");
  EXPECT_FALSE(models.find("c"));
  EXPECT_THROW(models.load("big", a), Error);
  EXPECT_THROW(models.alias("x", "c"), Error);
  EXPECT_EQ(models.all().size(), 3u);
  EXPECT_TRUE(models.unload("b"));
  EXPECT_FALSE(models.find("big"));
  EXPECT_FALSE(models.unload("b"));
  EXPECT_TRUE(eventually([&] { return b.use_count() == 1; }));
}

TEST(Models, AnyName) {
  Models models;
  const auto a = std::make_shared<FakeEngine>(), b = std::make_shared<FakeEngine>();
  models.load("a", a);
  models.load("b", b);
  models.alias("*", "b");
  EXPECT_EQ(models.find("gpt-4")->name, "b");
  EXPECT_EQ(models.find("*")->name, "b");
  EXPECT_EQ(models.find("a")->engine.get(), a.get());
  EXPECT_EQ(models.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(models.all().size(), 2u);
  EXPECT_TRUE(models.unload("b"));
  EXPECT_FALSE(models.find("gpt-4"));
}

TEST(Models, AdaptersComeAndGoByThemselves) {
  Models models;
  const auto a = std::make_shared<FakeEngine>();
  models.load("a", a);
  models.add_adapter("small", "a");
  EXPECT_EQ(models.find("small")->adapter, "small");
  EXPECT_EQ(models.find("small")->engine.get(), a.get());
  EXPECT_EQ(models.only()->name, "a");
  EXPECT_THROW(models.add_adapter("small", "a"), Error);
  EXPECT_THROW(models.add_adapter("other", "b"), Error);
  EXPECT_FALSE(models.unload("small")) << "it is no model";
  EXPECT_FALSE(models.remove_adapter("a")) << "it is no adapter";
  EXPECT_TRUE(models.remove_adapter("small"));
  EXPECT_FALSE(models.find("small"));
  models.add_adapter("small", "a");
  EXPECT_TRUE(models.unload("a"));
  EXPECT_FALSE(models.find("small")) << "it goes with its model";
}

TEST(Models, ADefaultAdapterIsThatOfAllNamesOfItsModel) {
  Models models;
  models.load("a", std::make_shared<FakeEngine>());
  models.load("b", std::make_shared<FakeEngine>());
  models.alias("c", "a");
  models.add_adapter("small", "a");
  models.set_default_adapter(*models.find("small"), {.name = "small", .scale = 0.5f});
  for (const char* name : {"a", "c"}) {
    EXPECT_EQ(models.find(name)->default_adapter.name, "small");
    EXPECT_EQ(models.find(name)->default_adapter.scale, 0.5f);
  }
  EXPECT_EQ(models.find("b")->default_adapter.name, "");
  EXPECT_EQ(models.find("small")->default_adapter.name, "");
  EXPECT_THROW(models.set_default_adapter(*models.find("b"), {.name = "small"}), Error);
  EXPECT_TRUE(models.remove_adapter("small"));
  EXPECT_EQ(models.find("a")->default_adapter.name, "");
  EXPECT_THROW(models.set_default_adapter(*models.find("a"), {.name = "small"}), Error);
}

TEST(Models, RequestsGoToTheModelTheyName) {
  const auto models = std::make_shared<Models>();
  const auto a = std::make_shared<FakeEngine>(), b = std::make_shared<FakeEngine>();
  models->load("a", a);
  models->load("b", b);
  Api api(models, {});
  EXPECT_EQ(api.complete("/v1/completions", {{"model", "b"}, {"prompt", "x"}}).body["model"], "b");
  EXPECT_EQ(a->submitted, 0);
  EXPECT_EQ(b->submitted, 1);
  EXPECT_EQ(api.complete("/tokenize", {{"model", "a"}, {"prompt", "x"}}).status, 200);
  EXPECT_EQ(a->tokenized, 1);
}

// A model may be left out while one is served, under whatever names.
TEST(Models, AModelMayBeLeftOut) {
  const auto models = std::make_shared<Models>();
  models->load("a", std::make_shared<FakeEngine>());
  models->alias("b", "a");
  Api api(models, {});
  EXPECT_EQ(api.complete("/v1/completions", {{"prompt", "x"}}).body["model"], "a");
  EXPECT_EQ(api.complete("/v1/completions", {{"model", nullptr}, {"prompt", "x"}}).status, 200);
  models->load("c", std::make_shared<FakeEngine>());
  const ApiResult two = api.complete("/v1/completions", {{"prompt", "x"}});
  EXPECT_EQ(two.status, 400);
  EXPECT_EQ(two.body["error"]["message"], "Missing required parameter: 'model'. Served: `a`, `b`, `c`.");
  const ApiResult other = api.complete("/v1/completions", {{"model", "d"}, {"prompt", "x"}});
  EXPECT_EQ(other.status, 404);
  EXPECT_EQ(other.body["error"]["message"],
            "The model `d` does not exist or you do not have access to it. Served: `a`, `b`, `c`.");
}

// The engine of an unloaded model lives until its last request has ended, which then is its only owner.
TEST(Models, RequestsOutliveAnUnload) {
  const auto models = std::make_shared<Models>();
  auto engine = std::make_shared<FakeEngine>();
  const std::weak_ptr<FakeEngine> weak = engine;
  engine->stalled = true;
  models->load("a", engine);
  Api api(models, {});
  std::atomic<int> status{0};
  api.complete("/v1/completions", {{"model", "a"}, {"prompt", "x"}}, [&](ApiResult r) { status = r.status; });
  EXPECT_TRUE(models->unload("a"));
  EXPECT_EQ(api.complete("/v1/completions", {{"model", "a"}, {"prompt", "x"}}).status, 404);
  engine->stalled = false;
  engine.reset();
  EXPECT_TRUE(eventually([&] { return status == 200; }));
  EXPECT_TRUE(eventually([&] { return weak.expired(); }));
}

TEST(Models, WithoutAModelRequestsAreAnswered) {
  Api api(std::make_shared<Models>(), {});
  EXPECT_EQ(api.complete("/v1/completions", {{"model", "a"}, {"prompt", "x"}}).status, 404);
  EXPECT_EQ(api.complete("/tokenize", {{"prompt", "x"}}).status, 404);
}

}  // namespace
}  // namespace sluice::server::models_test
