// What completions and the manual page say about the program: its commands and their options, as CLI11 knows them.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::cli {

struct OptionEntry {
  std::vector<std::string> names;  // with dashes, the long ones first; empty for a positional argument
  std::string value;               // what the value is ("TEXT"); empty for a flag
  std::vector<std::string> choices;
  std::string fallback;  // the default; may be empty
  std::string variable;  // of the environment; may be empty
  std::string help;
};

struct CommandEntry {
  std::string path;  // "serve", "bench latency"
  std::string help;
  std::vector<OptionEntry> options;
  std::vector<std::string> below;  // names of the commands below it
};

// All commands, each before those below it. The program itself comes first; its path is empty.
std::vector<CommandEntry> command_tree(const CLI::App& program);

// The script that completes the program's words in a shell: bash, zsh or fish.
std::string completion_script(const std::vector<CommandEntry>& tree, const std::string& shell);

// The manual page sluice(1), in roff.
std::string manual_page(const std::vector<CommandEntry>& tree);

}  // namespace sluice::cli
