// What a call does for its endpoint, and the documentation of all fields.
#include "server/endpoint.h"

#include <fmt/core.h>

#include <algorithm>

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

void Call::generate(GenerationJob job) { Generation::start(model.engine, std::move(job), reply, running); }

void Call::embed(PoolingJob job) {
  job.dialect = endpoint.dialect;
  PoolingCall::start(model.engine, std::move(job), reply, running);
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

}  // namespace

std::string parameters_markdown() {
  std::string out =
      "| field | type | range | most items | most bytes | default | endpoints | meaning |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
  const std::vector<DocumentedRow> rows = documented_rows();
  for (const auto& [row, endpoints] : rows) {
    if (row->type == Parameter::Type::kUnsupported) continue;
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} |\n", row->name, type_text(*row), range_text(*row),
                       items_text(*row), size_text(*row), row->fallback, endpoints, row->help);
  }
  out +=
      "\nThe following fields are known, and refused with the code `unsupported_parameter` unless their value asks for "
      "nothing:\n\n| field | accepted | endpoints | instead |\n| --- | --- | --- | --- |\n";
  for (const auto& [row, endpoints] : rows) {
    if (row->type != Parameter::Type::kUnsupported) continue;
    out += fmt::format("| `{}` | {} | {} | {} |\n", row->name, accepted_text(*row), endpoints, row->help);
  }
  out += "\nEndpoints:\n\n| name | method | paths | what it does |\n| --- | --- | --- | --- |\n";
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    std::string paths;
    for (const std::string_view path : endpoint->paths) paths += fmt::format("{}`{}`", paths.empty() ? "" : ", ", path);
    out += fmt::format("| {} | {} | {} | {} |\n", endpoint->name, endpoint->method, paths, endpoint->help);
  }
  return out;
}

}  // namespace sluice::server
