// Reads CLI11's tables; see command_tree.h.
#include "cli/command_tree.h"

#include <CLI/CLI.hpp>

namespace sluice::cli {
namespace {

// CLI11 shows choices as "TEXT:{a,b}".
std::vector<std::string> choices_of(const std::string& type) {
  const size_t open = type.find('{'), close = type.rfind('}');
  std::vector<std::string> out;
  if (open == std::string::npos || close == std::string::npos) return out;
  for (size_t at = open + 1; at < close;) {
    const size_t comma = std::min(type.find(',', at), close);
    out.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return out;
}

OptionEntry entry_of(const CLI::Option& option) {
  OptionEntry out;
  for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
  const std::string type = option.get_type_name();
  out.choices = choices_of(type);
  if (option.get_expected_max() != 0) out.value = out.choices.empty() ? type : "CHOICE";
  if (option.get_positional()) out.value = out.choices.empty() ? type : option.get_name(true);
  out.fallback = option.get_default_str();
  out.variable = option.get_envname();
  out.help = option.get_description();
  return out;
}

void add(const CLI::App& app, const std::string& path, std::vector<CommandEntry>& out) {
  CommandEntry entry{.path = path, .help = app.get_description(), .options = {}, .below = {}};
  for (const CLI::Option* option : app.get_options()) entry.options.push_back(entry_of(*option));
  const auto below = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* sub : below) entry.below.push_back(sub->get_name());
  out.push_back(std::move(entry));
  for (const CLI::App* sub : below) add(*sub, path.empty() ? sub->get_name() : path + " " + sub->get_name(), out);
}

}  // namespace

std::vector<CommandEntry> command_tree(const CLI::App& program) {
  std::vector<CommandEntry> out;
  add(program, "", out);
  return out;
}

}  // namespace sluice::cli
