// sluice template: renders conversations to prompt text, line by line.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/json.h"
#include "chat/chat_template.h"
#include "cli/command.h"
#include "cli/json_lines.h"
#include "sluice/error.h"

namespace sluice::cli::template_command {
namespace {

struct Arguments {
  std::string model;
  std::string now;
  bool jsonl = false;
};

// Parses "2026-01-15" or "2026-01-15T12:30:00" as local time.
std::chrono::system_clock::time_point parse_time(const std::string& text) {
  std::tm tm{};
  tm.tm_isdst = -1;
  const char* end = strptime(text.c_str(), "%Y-%m-%d", &tm);
  if (end != nullptr && (*end == 'T' || *end == ' ')) end = strptime(end + 1, "%H:%M:%S", &tm);
  if (end != nullptr && *end == 'Z' && end[1] == '\0') return std::chrono::system_clock::from_time_t(timegm(&tm));
  if (end == nullptr || *end != '\0') {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--now: invalid time '{}' (expected e.g. 2026-01-15 or 2026-01-15T12:30:00)", text));
  }
  return std::chrono::system_clock::from_time_t(std::mktime(&tm));
}

ChatTemplate open_template(std::string place) {
  place = local_text(place);
  if (std::filesystem::is_directory(place)) {
    std::optional<ChatTemplate> found = ChatTemplate::from_folder(place);
    if (!found) throw Error(ErrorCode::kNotFound, fmt::format("{}: has no chat template", place));
    return std::move(*found);
  }
  std::ifstream in(place, std::ios::binary);
  if (!in) throw Error(ErrorCode::kNotFound, fmt::format("{}: cannot open the file", place));
  std::ostringstream source;
  source << in.rdbuf();
  return ChatTemplate::from_source(source.str(), Json::object());
}

int render(const Arguments& a) {
  const ChatTemplate chat_template = open_template(a.model);
  const auto now = a.now.empty() ? std::chrono::system_clock::now() : parse_time(a.now);
  if (!a.jsonl) throw Error(ErrorCode::kInvalidRequest, "give --jsonl and write conversations to standard input");
  return filter_json_lines([&](const Json& line) -> Json {
    return {{"text", chat_template.render_variables(line, now)}};
  });
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  app.add_option("model", a->model, "model folder or Jinja file; without one, the bundled demo model")
      ->type_name("MODEL_OR_FILE");
  app.add_flag(
      "--jsonl", a->jsonl,
      "lines of template variables in ({\"messages\": ..., ...}), lines {\"text\": ...} or {\"error\": ...} out");
  app.add_option("--now", a->now, "time that strftime_now returns (default: the current time)")->type_name("ISO-TIME");
  return [a] { return render(*a); };
}

const Command command{"template", "render conversations with a chat template", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::template_command
