// Lines from a person: libedit with history on a terminal, plain lines from a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sluice::cli {

class LineEditor {
 public:
  // History is kept in `history_file` between runs, when it can be written; empty: not at all.
  explicit LineEditor(const std::string& history_file);
  ~LineEditor();

  // The next line without its end; nullopt at the end of input (Ctrl-D). Ctrl-C gives an empty line.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null when standard input is no terminal
};

// $XDG_STATE_HOME/sluice/NAME (default ~/.local/state), its folder made; empty when there is no home.
std::string state_file(const std::string& name);

}  // namespace sluice::cli
