// sluice chat: a conversation in the terminal.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/line_editor.h"
#include "cli/load_engine.h"

namespace sluice::cli::chat_command {
namespace {

constexpr const char* kHelp =
    "  /system TEXT   set the system message and start over\n"
    "  /clear         forget the conversation\n"
    "  /retry         answer the last question again\n"
    "  /save FILE     write the conversation as JSON\n"
    "  /help          show this list\n"
    "  /quit          leave (or Ctrl-D); Ctrl-C stops an answer\n";

struct Arguments {
  EngineOptions engine;
  SamplingArguments sampling;
  std::string system;
  bool stats = false;
};

class Conversation {
 public:
  Conversation(Engine& engine, const Arguments& arguments) : engine_(engine), arguments_(arguments) {
    set_system(arguments.system);
  }

  // Returns false if the user wants to leave.
  bool handle(const std::string& line) {
    if (line.empty()) return true;
    if (line[0] != '/') {
      messages_.push_back({{"role", "user"}, {"content", line}});
      answer();
      return true;
    }
    const size_t space = line.find(' ');
    const std::string name = line.substr(1, space - 1);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "quit" || name == "exit") return false;
    if (name == "clear") {
      set_system(system_);
    } else if (name == "system") {
      set_system(rest);
    } else if (name == "retry") {
      retry();
    } else if (name == "save") {
      save(rest);
    } else {
      fmt::print("{}", kHelp);
    }
    return true;
  }

 private:
  void set_system(const std::string& text) {
    system_ = text;
    messages_ = Json::array();
    if (!text.empty()) messages_.push_back({{"role", "system"}, {"content", text}});
  }

  void answer() {
    Request request;
    try {
      request.prompt = engine_.tokenize(
          engine_.render_chat({.messages = dump_json(messages_), .tools = {}, .template_kwargs = {}}), false);
      request.sampling = arguments_.sampling.resolve(engine_.model());
      const Answer a = generate(engine_, std::move(request), [](const std::string& text) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
      fmt::print("{}\n", a.finish.reason == FinishReason::kAbort ? " [stopped]" : "");
      if (a.finish.reason == FinishReason::kLength) fmt::print("[cut: the answer reached the maximum length]\n");
      if (a.finish.reason == FinishReason::kError) fmt::print("[error: {}]\n", a.finish.message);
      if (arguments_.stats) print_stats(a);
      messages_.push_back({{"role", "assistant"}, {"content", a.text}});
    } catch (const Error& e) {
      fmt::print("[error: {}]\n", e.what());
      if (!messages_.empty()) messages_.erase(messages_.size() - 1);
    }
  }

  static void print_stats(const Answer& a) {
    const double decode = a.seconds - a.seconds_to_first;
    fmt::print("[{} prompt tokens, {} cached; first token after {:.0f} ms; {} tokens, {:.1f} per second]\n",
               a.usage.prompt_tokens, a.usage.cached_tokens, a.seconds_to_first * 1e3, a.usage.completion_tokens,
               decode > 0 ? (a.usage.completion_tokens - 1) / decode : 0.0);
  }

  void retry() {
    if (messages_.empty() || messages_.back()["role"] != "assistant") {
      fmt::print("[nothing to retry]\n");
      return;
    }
    messages_.erase(messages_.size() - 1);
    answer();
  }

  void save(const std::string& file) {
    std::ofstream out(file);
    out << messages_.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    out.close();
    fmt::print("{}\n", out ? "[saved]" : fmt::format("[error: cannot write {}]", file));
  }

  Engine& engine_;
  const Arguments& arguments_;
  std::string system_;
  Json messages_;
};

int chat(Arguments a) {
  make_local(a.engine);
  const auto engine = load_engine(a.engine);
  if (!engine->model().has_chat_template) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{} has no chat template; set one with --chat-template", engine->model().name));
  }
  LineEditor editor(state_file("chat_history"));
  fmt::print("{} ({}, context {} tokens). /help lists commands.\n", engine->model().name, engine->model().dtype,
             engine->model().max_model_len);
  Conversation conversation(*engine, a);
  while (const std::optional<std::string> line = editor.read("> ")) {
    if (!conversation.handle(*line)) break;
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_model(app, a->engine);
  add_engine_options(app, a->engine);
  add_sampling_options(app, a->sampling);
  app.add_option("--system", a->system, "system message");
  app.add_flag("--stats", a->stats, "print tokens and times after each answer");
  return [a] { return chat(*a); };
}

const Command command{"chat", "talk to a model in the terminal", declare};
const Registry<Command> registered{command};

}  // namespace
}  // namespace sluice::cli::chat_command
