// Reads lines from the user: libedit with history on a terminal, plain lines from a pipe.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace sluice::cli {

class LineEditor {
 public:
  // Keeps history in `history_file` between runs if it can be written; empty: no history file.
  explicit LineEditor(const std::string& history_file);
  ~LineEditor();

  // Returns the next line without its end; nullopt at the end of input (Ctrl-D). Ctrl-C returns an empty line.
  std::optional<std::string> read(const std::string& prompt);

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null if standard input is not a terminal
};

// Returns $XDG_STATE_HOME/sluice/NAME (default ~/.local/state) and creates its folder; empty if there is no home.
std::string state_file(const std::string& name);

}  // namespace sluice::cli
