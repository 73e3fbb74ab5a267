// Serves the embedded files with the headers that keep the page from loading or sending anything elsewhere.
#include "server/page/page.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "base/json.h"
#include "base/sha256.h"
#include "page_files.h"
#include "server/endpoint.h"

namespace sluice::server {
namespace {

constexpr std::string_view kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view content_type(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kTypes[] = {{".html", "text/html; charset=utf-8"},
                                                                      {".css", "text/css; charset=utf-8"},
                                                                      {".js", "text/javascript; charset=utf-8"},
                                                                      {".svg", "image/svg+xml"},
                                                                      {".txt", "text/plain; charset=utf-8"}};
  for (const auto& [ending, type] : kTypes) {
    if (name.ends_with(ending)) return type;
  }
  CHECK(false, "no content type for {}", name);
  return {};
}

std::string url_path(std::string_view name) {
  if (name == "index.html") return "/";
  if (name == "dashboard.html") return "/dashboard";
  return fmt::format("/ui/{}", name);
}

PageFile page_file(const EmbeddedFile& file) {
  const std::string_view content = file.content();
  return {url_path(file.name), content, content_type(file.name),
          fmt::format("\"{}\"", hex(sha256(content)).substr(0, 32))};
}

// A row as the page's settings need it. Numbers have bounds only if the row has a range.
Json setting(const Parameter& row) {
  Json out = {{"name", row.name}, {"type", type_text(row)}, {"default", row.fallback}, {"help", row.help}};
  if (row.min != row.max) {
    out["min"] = row.min;
    out["max"] = row.max;
    out["above_min"] = row.above_min;
  }
  return out;
}

// The fields of chat completions that change something.
HttpResponse settings(const HttpRequest&) {
  const EndpointInfo* chat = Registry<EndpointInfo>::find("chat");
  CHECK(chat != nullptr, "the chat endpoint is not linked");
  Json rows = Json::array();
  for (const std::span<const Parameter> group : chat->parameters) {
    for (const Parameter& row : group) {
      if (row.set != nullptr && row.type != Parameter::Type::kUnsupported) rows.push_back(setting(row));
    }
  }
  return {.body = dump_json({{"parameters", std::move(rows)}})};
}

template <class Answer>
Route public_route(std::string_view path, std::string_view help, Answer answer) {
  return {.method = "GET",
          .path = path,
          .flags = Route::kPublic | Route::kQuick,
          .help = help,
          .handle = [answer](HttpRequest request, RequestContext, std::shared_ptr<HttpReply> reply) {
            reply->send(answer(request));
          }};
}

}  // namespace

const std::vector<PageFile>& page_files() {
  static const std::vector<PageFile> files = [] {
    std::vector<PageFile> out;
    for (const EmbeddedFile& file : embedded::page_files) out.push_back(page_file(file));
    return out;
  }();
  return files;
}

const PageFile* find_page_file(std::string_view path) {
  const auto& files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const PageFile& file) { return file.path == path; });
  return found != files.end() ? &*found : nullptr;
}

HttpResponse page_response(const PageFile& file, const HttpRequest& request) {
  HttpResponse response{.content_type = std::string(file.content_type),
                        .headers = {{"Content-Security-Policy", std::string(kPolicy)},
                                    {"X-Content-Type-Options", "nosniff"},
                                    {"Referrer-Policy", "no-referrer"},
                                    {"Cross-Origin-Opener-Policy", "same-origin"},
                                    {"Cache-Control", "no-cache"},
                                    {"ETag", file.etag}}};
  if (request.header("If-None-Match") == file.etag) {
    response.status = 304;
  } else {
    response.body = file.content;
  }
  return response;
}

std::vector<Route> page_routes() {
  std::vector<Route> routes;
  for (const PageFile& file : page_files()) {
    routes.push_back(public_route(file.path, "a file of the web page",
                                  [&file](const HttpRequest& request) { return page_response(file, request); }));
  }
  routes.push_back(public_route("/ui/parameters.json", "the web page's settings", settings));
  return routes;
}

}  // namespace sluice::server
