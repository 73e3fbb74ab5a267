// Turns the option structs into flags, environment variables and documentation.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <type_traits>

#include "base/json.h"
#include "cli/command.h"
#include "cli/markdown.h"
#include "cli/sizes.h"
#include "route/options.h"
#include "sluice/error.h"

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
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // scripts append to what others wrote
    }
    if (!choices.empty()) option->check(CLI::IsMember(choices));
    if (name == "default-chat-template-kwargs" || name == "override-generation-config") option->check(json_object, "");
    if (std::is_integral_v<T> && !std::is_same_v<T, bool>) add_units(*option);
    option->envname(environment_name(name));
  }

  // What is no size stays as it is: RangeAdder reports it.
  static void add_units(CLI::Option& option) {
    const auto expand = [](std::string& text) -> std::string {
      if (const std::optional<int64_t> value = parse_size(text)) text = std::to_string(*value);
      return {};
    };
    option.transform(CLI::Validator(expand, ""));
  }

  static std::string json_object(const std::string& text) {
    try {
      if (parse_json(text).is_object()) return {};
    } catch (const Error& e) {
      return fmt::format("expected a JSON object: {}", e.what());
    }
    return "expected a JSON object";
  }
};

// Refuses values outside the ranges of integer options, in flags and in the environment.
struct RangeAdder {
  CLI::App& app;

  template <class T>
  void operator()(const std::string& name, T, int64_t least, int64_t most) const {
    const auto check = [least, most](const std::string& text) -> std::string {
      const std::optional<int64_t> value = parse_size(text);
      if (value && *value >= least && *value <= most) return {};
      const bool number = value || text.find_first_not_of("+-0123456789") == std::string::npos;
      return fmt::format("{} is {} (expected {} to {})", text.empty() ? "an empty text" : text,
                         number && !text.empty() ? "out of range" : "not a whole number", least, most);
    };
    app.get_option("--" + name)->check(check, "");
  }
};

// A bullet for each option: its name, its values, its default and its meaning.
struct ListWriter {
  std::string& out;

  template <class T>
  void operator()(const std::string& name, T& value, const char* help,
                  const std::vector<std::string>& choices = {}) const {
    std::string initial, type;
    if constexpr (std::is_same_v<T, bool>) {
      initial = value ? "on" : "off";
      type = fmt::format("flag, also `--no-{}`", name);
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
    out += fmt::format("- `--{}` ({}{}): {}\n", name, type,
                       initial.empty() ? "" : fmt::format("; default `{}`", initial), help);
  }
};

}  // namespace

void add_engine_options(CLI::App& app, EngineOptions& options) {
  // The reader of arguments uses it up (arguments.h).
  app.add_option_function<std::string>(
         "--config", [](const std::string&) {}, "YAML file of options, one per key")
      ->type_name("FILE")
      ->envname("SLUICE_CONFIG");
  visit(FlagAdder{app}, options);
  visit_ranges(RangeAdder{app}, options);
}

void add_server_options(CLI::App& app, ServerOptions& options) {
  visit(FlagAdder{app}, options);
  visit_ranges(RangeAdder{app}, options);
  // A key may contain commas. The server itself reads SLUICE_API_KEY, which holds one key.
  app.get_option("--api-key")->delimiter('\0')->envname("");
}

void add_route_options(CLI::App& app, route::RouteOptions& options) {
  visit(FlagAdder{app}, options);
  visit_ranges(RangeAdder{app}, options);
}

std::optional<EngineOptions> rank_options(const CLI::App& command) {
  EngineOptions options;
  const auto read = [&command](const char* name, auto& value) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option != nullptr && option->count() > 0) option->results(value);
    return option != nullptr;
  };
  if (!read("--distributed-executor-backend", options.distributed_executor_backend)) return std::nullopt;
  read("--tensor-parallel-size", options.tensor_parallel_size);
  read("--pipeline-parallel-size", options.pipeline_parallel_size);
  read("--data-parallel-size", options.data_parallel_size);
  return options;
}

void add_model(CLI::App& app, EngineOptions& options) {
  app.add_option("model", options.model,
                 "folder or file of a checkpoint, or org/name[:revision or GGUF type] on the Hugging Face hub; without "
                 "one, the bundled demo model")
      ->type_name("MODEL");
}

std::string options_markdown() {
  std::string out =
      "# Options\n\nMade by `sluice docs options`. Every option is also an environment variable (`--max-model-len` is "
      "`SLUICE_MAX_MODEL_LEN`) and a key of a YAML file (`--config FILE`, see [cli.md](cli.md#options)). Integers take "
      "units: 8k is 8,000, 8K is 8,192.\n\n## Engine\n\n";
  EngineOptions engine;
  visit(ListWriter{out}, engine);
  out += "\n## Server (`sluice serve`)\n\n";
  ServerOptions server;
  visit(ListWriter{out}, server);
  out += "\n## Router (`sluice route`)\n\n";
  route::RouteOptions router;
  visit(ListWriter{out}, router);
  return wrap_markdown(out);
}

}  // namespace sluice::cli
