// The files of the web page, their headers, and the table that its settings are made from.
#include "server/page/page.h"

#include <fmt/core.h>

#include "server/loading.h"
#include "server/server_fixture.h"

namespace sluice::page_test {
namespace {

using server::page_files;
using server::PageFile;

class PageTest : public ServerTest {};

TEST_F(PageTest, EveryFileNeedsNoKeyAndIsKeptToItself) {
  options.api_key = {"secret"};
  for (const PageFile& file : page_files()) {
    SCOPED_TRACE(file.path);
    const TestResponse response = get(file.path);
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, file.content);
    EXPECT_EQ(response.headers.at("x-content-type-options"), "nosniff");
    const std::string& policy = response.headers.at("content-security-policy");
    EXPECT_TRUE(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"));
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  }
  EXPECT_EQ(get("/").headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(get("/dashboard").status, 200);
  EXPECT_EQ(get("/ui/chat.js").headers.at("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(get("/ui/none.js").status, 401);
  EXPECT_EQ(get("/v1/models").status, 401);
}

TEST_F(PageTest, AnUnchangedFileIsNotSentAgain) {
  const TestResponse first = get("/");
  const std::string& etag = first.headers.at("etag");
  const TestResponse again = get("/", fmt::format("If-None-Match: {}\r\n", etag));
  EXPECT_EQ(again.status, 304);
  EXPECT_TRUE(again.body.empty());
  EXPECT_EQ(again.headers.at("etag"), etag);
  EXPECT_EQ(get("/", "If-None-Match: \"other\"\r\n").status, 200);
  EXPECT_NE(get("/dashboard").headers.at("etag"), etag);
}

TEST_F(PageTest, CanBeTurnedOff) {
  options.web_page = false;
  for (const PageFile& file : page_files()) {
    EXPECT_EQ(get(file.path).status, file.path == "/" ? 405 : 404) << file.path;  // POST / is TGI's
  }
  EXPECT_EQ(get("/dashboard").status, 404);
  EXPECT_EQ(get("/v1/models").status, 200);
}

TEST_F(PageTest, FitsItsBudget) {
  size_t bytes = 0;
  for (const PageFile& file : page_files()) bytes += file.path.ends_with("license.txt") ? 0 : file.content.size();
  EXPECT_LT(bytes, 500'000u);
}

TEST_F(PageTest, SettingsAreTheChatsParameters) {
  const Json table = get("/ui/parameters.json").json()["parameters"];
  const auto row = [&](std::string_view name) {
    for (const Json& one : table) {
      if (one["name"] == name) return one;
    }
    return Json();
  };
  EXPECT_EQ(row("temperature")["type"], "number");
  EXPECT_EQ(row("temperature")["max"], 2);
  EXPECT_EQ(row("top_p")["above_min"], true);
  EXPECT_FALSE(row("stop")["help"].get<std::string>().empty());
  EXPECT_FALSE(row("stop").contains("min"));
  EXPECT_TRUE(row("user").is_null()) << "a label changes nothing";
  EXPECT_TRUE(row("best_of").is_null()) << "not a field of chat completions";
}

TEST_F(PageTest, IsServedWhileTheModelLoads) {
  const LoadingServer loading(options);
  const auto ask = [&](std::string_view path) {
    TestClient client(loading.port());
    client.send(get_text(path));
    return client.read_response();
  };
  for (const PageFile& file : page_files()) EXPECT_EQ(ask(file.path).body, file.content) << file.path;
  EXPECT_EQ(ask("/").headers.at("connection"), "close");
  EXPECT_EQ(ask("/ui/parameters.json").status, 503);
}

}  // namespace
}  // namespace sluice::page_test
