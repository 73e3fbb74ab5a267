// Completions for bash, zsh and fish, made from the commands and their options; see command_tree.h.
#include <fmt/core.h>

#include <algorithm>

#include "cli/command_tree.h"

namespace sluice::cli {
namespace {

std::string joined(const std::vector<std::string>& words, const std::string& between = " ") {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
  return out;
}

// "bench latency" to a name for a function
std::string function_name(const std::string& path) {
  std::string out = path;
  std::ranges::replace_if(
      out, [](char c) { return c == ' ' || c == '-'; }, '_');
  return out;
}

std::vector<std::string> option_names(const CommandEntry& command) {
  std::vector<std::string> out;
  for (const OptionEntry& option : command.options) {
    for (const std::string& name : option.names) out.push_back(name);
  }
  return out;
}

// Choices and values of an option that precede the current word, then options or commands, then files.
std::string bash_case(const CommandEntry& command) {
  std::string values;
  for (const OptionEntry& option : command.options) {
    if (option.names.empty() || option.value.empty()) continue;
    values += fmt::format("        {}) ", joined(option.names, "|"));
    values += option.choices.empty()
                  ? "compopt -o default; COMPREPLY=(); return ;;\n"
                  : fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;\n", joined(option.choices));
  }
  std::string words = joined(command.below);
  for (const OptionEntry& option : command.options) {
    if (option.names.empty() && !option.choices.empty()) words += fmt::format(" {}", joined(option.choices));
  }
  return fmt::format("    '{}')\n      case \"$previous\" in\n{}      esac\n      options='{}'\n      words='{}' ;;\n",
                     command.path, values, joined(option_names(command)), words);
}

std::string bash_script(const std::vector<CommandEntry>& tree) {
  std::string paths, cases;
  for (const CommandEntry& command : tree) {
    if (!command.path.empty()) paths += fmt::format("'{}'|", command.path);
    cases += bash_case(command);
  }
  paths.pop_back();
  return fmt::format(R"(# bash completion of sluice; made by `sluice completion bash`
_sluice() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} path= options= words= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{path:+$path }}$word" in
      {}) path="${{path:+$path }}$word" ;;
      *) break ;;
    esac
  done
  case "$path" in
{}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$current"))
  elif [[ -n $words ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
  else
    compopt -o default
    COMPREPLY=()
  fi
}}
complete -F _sluice sluice
)",
                     paths, cases);
}

std::string escaped(const std::string& text, const std::string& special) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (special.find(c) != std::string::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_options(const CommandEntry& command) {
  std::string out;
  for (const OptionEntry& option : command.options) {
    const std::string help = escaped(option.help, "[]:\\");
    const std::string values = option.choices.empty() ? "_files" : fmt::format("({})", joined(option.choices));
    if (option.names.empty()) {
      out += fmt::format(" \\\n    '*:{}:{}'", escaped(option.help, ":\\"), values);
      continue;
    }
    for (const std::string& name : option.names) {
      out += fmt::format(" \\\n    '{}[{}]{}{}'", name, help,
                         option.value.empty() ? "" : ":value:", option.value.empty() ? "" : values);
    }
  }
  return out;
}

std::string zsh_function(const CommandEntry& command, const std::vector<CommandEntry>& tree) {
  const std::string name = fmt::format("_sluice{}{}", command.path.empty() ? "" : "_", function_name(command.path));
  if (command.below.empty()) return fmt::format("{}() {{\n  _arguments{}\n}}\n\n", name, zsh_options(command));
  std::string list, cases;
  for (const CommandEntry& below : tree) {
    const std::string prefix = command.path.empty() ? "" : command.path + " ";
    if (below.path.empty() || !below.path.starts_with(prefix)) continue;
    const std::string word = below.path.substr(prefix.size());
    if (word.find(' ') != std::string::npos || std::ranges::find(command.below, word) == command.below.end()) continue;
    list += fmt::format("    '{}:{}'\n", word, escaped(below.help, ":\\"));
    cases += fmt::format("    {}) _sluice_{} ;;\n", word, function_name(below.path));
  }
  return fmt::format(R"({}() {{
  local state line
  local -a commands=(
{}  )
  _arguments -C{} \
    '1: :->command' '*:: :->rest'
  case $state in
    command) _describe command commands ;;
    rest) case $line[1] in
{}    esac ;;
  esac
}}

)",
                     name, list, zsh_options(command), cases);
}

std::string zsh_script(const std::vector<CommandEntry>& tree) {
  std::string out = "#compdef sluice\n# zsh completion of sluice; made by `sluice completion zsh`\n\n";
  for (const CommandEntry& command : tree) out += zsh_function(command, tree);
  return out + "if [ \"$funcstack[1]\" = _sluice ]; then\n  _sluice \"$@\"\nelse\n  compdef _sluice sluice\nfi\n";
}

// The condition under which a command's words are completed.
std::string fish_condition(const CommandEntry& command) {
  if (command.path.empty()) return "__fish_use_subcommand";
  std::string out;
  for (size_t at = 0; at < command.path.size();) {
    const size_t space = std::min(command.path.find(' ', at), command.path.size());
    out += fmt::format("{}__fish_seen_subcommand_from {}", out.empty() ? "" : "; and ",
                       command.path.substr(at, space - at));
    at = space + 1;
  }
  if (!command.below.empty()) out += "; and not __fish_seen_subcommand_from " + joined(command.below);
  return out;
}

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_script(const std::vector<CommandEntry>& tree) {
  std::string out = "# fish completion of sluice; made by `sluice completion fish`\n";
  for (const CommandEntry& command : tree) {
    const std::string line = fmt::format("complete -c sluice -n {}", fish_quoted(fish_condition(command)));
    for (const std::string& word : command.below) {
      const std::string path = command.path.empty() ? word : command.path + " " + word;
      const auto below = std::ranges::find(tree, path, &CommandEntry::path);
      out += fmt::format("{} -f -a {} -d {}\n", line, word, fish_quoted(below->help));
    }
    for (const OptionEntry& option : command.options) {
      if (option.names.empty()) {
        if (!option.choices.empty()) out += fmt::format("{} -f -a {}\n", line, fish_quoted(joined(option.choices)));
        continue;
      }
      out += line;
      for (const std::string& name : option.names) {
        out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.value.empty()) {
        out +=
            option.choices.empty() ? std::string(" -r") : fmt::format(" -x -a {}", fish_quoted(joined(option.choices)));
      }
      out += fmt::format(" -d {}\n", fish_quoted(option.help));
    }
  }
  return out;
}

}  // namespace

std::string completion_script(const std::vector<CommandEntry>& tree, const std::string& shell) {
  if (shell == "bash") return bash_script(tree);
  return shell == "zsh" ? zsh_script(tree) : fish_script(tree);
}

}  // namespace sluice::cli
