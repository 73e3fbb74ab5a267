// Turns the option structs into flags, environment variables and documentation.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <type_traits>

#include "cli/command.h"

namespace sluice::cli {
namespace {

std::string environment_name(std::string name) {
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return "SLUICE_" + name;
}

struct FlagAdder {
  CLI::App& app;

  template <class T>
  void operator()(const std::string& name, T& value, const char* help,
                  const std::vector<std::string>& choices = {}) const {
    CLI::Option* option = nullptr;
    if constexpr (std::is_same_v<T, bool>) {
      option = app.add_flag(fmt::format("--{},!--no-{}", name, name), value, help);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      option = app.add_option("--" + name, value, help)->allow_extra_args(false)->delimiter(',');
    } else {
      option = app.add_option("--" + name, value, help)->capture_default_str();
    }
    if (!choices.empty()) option->check(CLI::IsMember(choices));
    option->envname(environment_name(name));
  }
};

// Refuses values outside the ranges of integer options, in flags and in the environment.
struct RangeAdder {
  CLI::App& app;

  template <class T>
  void operator()(const std::string& name, T, int64_t least, int64_t most) const {
    const auto check = [least, most](const std::string& text) -> std::string {
      T value{};
      if (!CLI::detail::lexical_cast(text, value)) return {};  // CLI11 reports what is not a number
      if (value >= least && value <= most) return {};
      return fmt::format("{} is out of range (expected {} to {})", text, least, most);
    };
    app.get_option("--" + name)->check(check, "");
  }
};

struct TableWriter {
  std::string& out;

  template <class T>
  void operator()(const std::string& name, T& value, const char* help,
                  const std::vector<std::string>& choices = {}) const {
    std::string initial, type;
    if constexpr (std::is_same_v<T, bool>) {
      initial = value ? "on" : "off";
      type = fmt::format("flag (`--no-{}`)", name);
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      type = "list";
    } else if constexpr (std::is_same_v<T, std::string>) {
      initial = value;
      type = "text";
    } else if constexpr (std::is_floating_point_v<T>) {
      initial = fmt::format("{}", value);
      type = "number";
    } else {
      initial = std::to_string(value);
      type = "integer";
    }
    if (!choices.empty()) {
      type.clear();
      for (const std::string& c : choices) type += (type.empty() ? "" : ", ") + c;
    }
    out += fmt::format("| `--{}` | {} | {} | {} |\n", name, type, initial.empty() ? "" : "`" + initial + "`", help);
  }
};

}  // namespace

void add_engine_options(CLI::App& app, EngineOptions& options) {
  visit(FlagAdder{app}, options);
  visit_ranges(RangeAdder{app}, options);
}

void add_server_options(CLI::App& app, ServerOptions& options) {
  visit(FlagAdder{app}, options);
  visit_ranges(RangeAdder{app}, options);
  // A key may contain commas. The server itself reads SLUICE_API_KEY, which holds one key.
  app.get_option("--api-key")->delimiter('\0')->envname("");
}

void add_model(CLI::App& app, EngineOptions& options) {
  app.add_option("model", options.model,
                 "folder or file of a checkpoint, or org/name[:revision or GGUF type] on the Hugging Face hub; without "
                 "one, the "
                 "bundled demo model")
      ->type_name("MODEL");
}

std::string options_markdown() {
  std::string out = "## Engine\n\n| option | values | default | meaning |\n| --- | --- | --- | --- |\n";
  EngineOptions engine;
  visit(TableWriter{out}, engine);
  out += "\n## Server (`sluice serve`)\n\n| option | values | default | meaning |\n| --- | --- | --- | --- |\n";
  ServerOptions server;
  visit(TableWriter{out}, server);
  return out;
}

}  // namespace sluice::cli
