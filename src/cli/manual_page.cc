// The manual page, made from the commands and their options; see command_tree.h.
#include <fmt/core.h>

#include "cli/command_tree.h"
#include "sluice/version.h"

namespace sluice::cli {
namespace {

// Text for roff: dashes are minus signs that can be searched for, and no line begins with a control character.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + c;
    } else {
      out += c;
    }
  }
  return out;
}

std::string option_text(const OptionEntry& option) {
  std::string head;
  for (const std::string& name : option.names) {
    head += fmt::format("{}\\fB{}\\fR", head.empty() ? "" : ", ", roff(name));
  }
  if (!option.value.empty()) head += fmt::format("{}\\fI{}\\fR", head.empty() ? "" : " ", roff(option.value));
  std::string text = roff(option.help);
  if (!option.choices.empty()) {
    std::string list;
    for (const std::string& choice : option.choices) list += (list.empty() ? "" : ", ") + choice;
    text += fmt::format("\n.br\nOne of: {}.", roff(list));
  }
  if (!option.fallback.empty()) text += fmt::format("\n.br\nDefault: {}.", roff(option.fallback));
  if (!option.variable.empty()) text += fmt::format("\n.br\nVariable: {}.", roff(option.variable));
  return fmt::format(".TP\n{}\n{}\n", head, text);
}

constexpr const char* kEnd = R"(.SH CONFIGURATION
\fB\-\-config\fR \fIFILE\fR reads options from YAML, one option per key.
An option of the command line goes before a variable, a variable before the file, and the file before defaults.
Commands that load a model also take the options of
.B vllm serve
and
.BR llama\-server ;
.B sluice docs vllm\-options
and
.B sluice docs llama\-options
print what becomes of each.
.SH EXIT STATUS
.TP
.B 0
Success.
.TP
.B 1
The command failed: a model cannot be loaded, a port is taken, output cannot be written.
.TP
.B 2
The options cannot be used.
.SH FILES
.TP
.I /etc/sluice/config.yaml
Options of the system's service.
.TP
.I ~/.cache/huggingface/hub
Downloaded models; HF_HOME and HF_HUB_CACHE name other folders.
)";

}  // namespace

std::string manual_page(const std::vector<CommandEntry>& tree) {
  std::string out = fmt::format(
      ".\\\" Made by `sluice man`.\n.TH SLUICE 1 \"\" \"sluice {}\" \"User Commands\"\n.SH NAME\n"
      "sluice \\- run and serve large language models\n.SH SYNOPSIS\n.B sluice\n.I COMMAND\n.RI [ OPTIONS ]\n"
      ".SH DESCRIPTION\n{}\n.SH COMMANDS\n",
      kVersion, roff(tree.front().help));
  for (const CommandEntry& command : tree) {
    if (command.path.empty()) continue;
    out += fmt::format(".SS sluice {}\n{}\n", roff(command.path), roff(command.help));
    for (const OptionEntry& option : command.options) {
      if (option.names.empty() || option.names.front() != "--help") out += option_text(option);
    }
  }
  return out + kEnd;
}

}  // namespace sluice::cli
