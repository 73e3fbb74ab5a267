// Shows the OpenAPI document as one page of HTML, and serves both; see openapi.h.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "server/openapi.h"

namespace sluice::server {
namespace {

constexpr std::string_view kStyle = R"(
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, .path { font-family: ui-monospace, monospace; }
summary { cursor: pointer; padding: .4rem 0; }
details { border-bottom: 1px solid #8884; }
.method { display: inline-block; min-width: 4.5rem; font-weight: bold; }
table { border-collapse: collapse; margin: .5rem 0 1rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-top: 1px solid #8883; }
:root { color-scheme: light dark; }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// "integer", or "string or array" for a choice
std::string type_of(const Json& schema) {
  if (const auto type = schema.find("type"); type != schema.end()) return type->get<std::string>();
  const auto choices = schema.find("anyOf");
  if (choices == schema.end()) return schema.contains("deprecated") ? "" : "any";
  std::string out;
  for (const Json& choice : *choices) {
    const std::string type = type_of(choice);
    if (type != "null") out += (out.empty() ? "" : " or ") + type;
  }
  return out;
}

std::string fields_table(const Json& body) {
  const Json& schema = body.at("content").at("application/json").at("schema");
  std::string out = "<table><tr><th>field</th><th>type</th><th>meaning</th></tr>\n";
  for (const auto& [name, field] : schema.at("properties").items()) {
    out += fmt::format("<tr><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n", escaped(name),
                       escaped(type_of(field)), escaped(field.at("description").get<std::string>()));
  }
  return out + "</table>\n";
}

std::string operation_html(const std::string& path, const std::string& method, const Json& operation) {
  std::string name = method;
  std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::toupper(c)); });
  const auto body = operation.find("requestBody");
  return fmt::format(
      "<details id=\"{}\"><summary><span class=\"method\">{}</span><span class=\"path\">{}</span> {}</summary>\n{}"
      "</details>\n",
      escaped(operation.at("operationId").get<std::string>()), name, escaped(path),
      escaped(operation.at("summary").get<std::string>()),
      body != operation.end() ? fields_table(*body) : "<p>The request has no body.</p>\n");
}

HttpResponse file(std::string_view type, std::string body) {
  return {.content_type = std::string(type),
          .body = std::move(body),
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
                       "frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}}};
}

}  // namespace

std::string openapi_page(const Json& document) {
  std::map<std::string, std::string> sections;  // by tag
  for (const auto& [path, methods] : document.at("paths").items()) {
    for (const auto& [method, operation] : methods.items()) {
      sections[operation.at("tags").at(0).get<std::string>()] += operation_html(path, method, operation);
    }
  }
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Sluice API</title>\n"
      "<meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" "
      "href=\"/docs.css\"></head>\n<body><h1>Sluice {}</h1>\n"
      "<p>{} The same as <a href=\"/openapi.json\">OpenAPI</a>.</p>\n",
      escaped(document.at("info").at("version").get<std::string>()),
      escaped(document.at("info").at("description").get<std::string>()));
  for (const auto& [tag, html] : sections) out += fmt::format("<h2>{}</h2>\n{}", escaped(tag), html);
  return out + "</body></html>\n";
}

std::vector<Route> openapi_routes(const Router& router) {
  struct Texts {
    std::once_flag once;
    std::string json, page;
  };
  const auto texts = [made = std::make_shared<Texts>(), &router]() -> const Texts& {
    std::call_once(made->once, [&] {
      const Json document = openapi_document(router.routes());
      made->json = dump_json(document);
      made->page = openapi_page(document);
    });
    return *made;
  };
  const auto get = [](std::string_view path, std::string_view help, auto answer) {
    return Route{
        .method = "GET",
        .path = path,
        .flags = Route::kPublic,
        .help = help,
        .handle = [answer](HttpRequest, RequestContext, std::shared_ptr<HttpReply> reply) { reply->send(answer()); }};
  };
  return {get("/openapi.json", "this API in OpenAPI 3.1", [texts] { return HttpResponse{.body = texts().json}; }),
          get("/docs", "a page about this API", [texts] { return file("text/html; charset=utf-8", texts().page); }),
          get("/docs.css", "the page's style", [] { return file("text/css; charset=utf-8", std::string(kStyle)); })};
}

}  // namespace sluice::server
