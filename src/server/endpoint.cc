// What a call does for its endpoint, and the documentation of all fields.
#include "server/endpoint.h"

#include <fmt/core.h>

#include <algorithm>

#include "server/auth.h"

namespace sluice::server {

Headers Call::warnings() const {
  if (unknown.empty()) return {};
  if (strict) {
    throw ApiError{.message = fmt::format("Unrecognized request argument supplied: {}", unknown.names()[0])};
  }
  // Names are the client's: only harmless characters go into a header.
  std::string names;
  for (const std::string& name : unknown.names()) {
    names += names.empty() ? "" : ", ";
    for (const char c : name.substr(0, 64)) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         std::string_view("._[]-").find(c) != std::string_view::npos;
      names += plain ? c : '?';
    }
  }
  if (unknown.more()) names += ", ...";
  return {{"X-Sluice-Warning", "unknown fields ignored: " + names}};
}

void Call::generate(GenerationJob job) {
  if (log) job.log.emplace(request_id, model.name, arrived);
  Generation::start(model.engine, std::move(job), reply, running);
}

void Call::embed(PoolingJob job) {
  job.dialect = endpoint.dialect;
  job.request.cache_salt = cache_salt(tenant, {});
  job.request.tenant = tenant;
  if (log) job.log.emplace(request_id, model.name, arrived);
  PoolingCall::start(model.engine, std::move(job), reply, running);
}

const EndpointInfo& PathEndpoints::of(const Json& body, Task task) const {
  for (const auto& [endpoint, shared] : others) {
    if (shared->takes(body, task)) return *endpoint;
  }
  return *owner;
}

PathEndpoints endpoints_at(std::string_view method, std::string_view path) {
  PathEndpoints found;
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    if (endpoint->method != method) continue;
    if (std::ranges::find(endpoint->paths, path) != endpoint->paths.end()) found.owner = endpoint;
    for (const SharedPath& shared : endpoint->shared) {
      if (shared.path == path) found.others.emplace_back(endpoint, &shared);
    }
  }
  return found;
}

const Parameter* find_parameter(const EndpointInfo& endpoint, std::string_view name) {
  for (const std::span<const Parameter> group : endpoint.parameters) {
    for (const Parameter& row : group) {
      if (row.name == name) return &row;
    }
  }
  return nullptr;
}

namespace {

// A row and the endpoints that have it, which share one object.
struct DocumentedRow {
  const Parameter* row;
  std::string endpoints;
};

std::vector<DocumentedRow> documented_rows() {
  std::vector<DocumentedRow> rows;
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    for (const std::span<const Parameter> group : endpoint->parameters) {
      for (const Parameter& row : group) {
        const auto known = std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.row == &row; });
        if (known == rows.end()) {
          rows.push_back({&row, std::string(endpoint->name)});
        } else {
          known->endpoints += fmt::format(", {}", endpoint->name);
        }
      }
    }
  }
  return rows;
}

// A part of a field's description, or nothing if there is nothing to say.
std::string labelled(std::string_view label, std::string_view text) {
  return text.empty() ? std::string() : fmt::format("; {}{}", label, text);
}

}  // namespace

std::string parameters_markdown() {
  std::string out =
      "# Request parameters\n\nMade by `sluice docs parameters`, from the rows that validate requests. A bullet is a "
      "field: its type, its limits and default, its meaning, and the endpoints that have it. Fields of the same name "
      "differ between endpoints.\n\n";
  const std::vector<DocumentedRow> rows = documented_rows();
  for (const auto& [row, endpoints] : rows) {
    if (row->type == Parameter::Type::kUnsupported) continue;
    out += fmt::format("- `{}` ({}{}{}{}{}): {} [{}]\n", row->name, type_text(*row), labelled("", range_text(*row)),
                       labelled("most items ", items_text(*row)), labelled("most bytes ", size_text(*row)),
                       labelled("default ", row->fallback), row->help, endpoints);
  }
  out +=
      "\n## Refused fields\n\nThe following fields are known, and refused with the code `unsupported_parameter` unless "
      "their value asks for nothing:\n\n";
  for (const auto& [row, endpoints] : rows) {
    if (row->type != Parameter::Type::kUnsupported) continue;
    out += fmt::format("- `{}`{}{} [{}]\n", row->name, labelled(" accepted: ", accepted_text(*row)),
                       row->help.empty() ? "" : fmt::format(". {}.", row->help), endpoints);
  }
  out += "\n## Endpoints\n\n";
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    std::string paths;
    const auto add = [&](std::string_view path) { paths += fmt::format("{}`{}`", paths.empty() ? "" : ", ", path); };
    for (const std::string_view path : endpoint->paths) add(path);
    for (const SharedPath& shared : endpoint->shared) add(shared.path);
    out += fmt::format("- {}: {} {}: {}\n", endpoint->name, endpoint->method, paths, endpoint->help);
  }
  return out;
}

}  // namespace sluice::server
