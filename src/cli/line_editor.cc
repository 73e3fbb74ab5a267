// Implements LineEditor with libedit (BSD).
#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace sluice::cli {
namespace {

constexpr int kHistoryLines = 1000;

}  // namespace

struct LineEditor::Terminal {
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  std::string file;
};

LineEditor::LineEditor(const std::string& history_file) {
  if (::isatty(STDIN_FILENO) == 0) return;
  terminal_ = std::make_unique<Terminal>();
  Terminal& t = *terminal_;
  t.file = history_file;
  t.editor = el_init("sluice", stdin, stdout, stderr);
  t.history = history_init();
  HistEvent event;
  history(t.history, &event, H_SETSIZE, kHistoryLines);
  history(t.history, &event, H_SETUNIQUE, 1);
  if (!t.file.empty()) history(t.history, &event, H_LOAD, t.file.c_str());
  el_set(t.editor, EL_CLIENTDATA, &t);
  el_set(
      t.editor, EL_PROMPT, +[](EditLine* e) {
        Terminal* self = nullptr;
        el_get(e, EL_CLIENTDATA, &self);
        return self->prompt.data();
      });
  el_set(t.editor, EL_EDITOR, "emacs");
  el_set(t.editor, EL_SIGNAL, 0);
  el_set(t.editor, EL_HIST, history, t.history);
}

LineEditor::~LineEditor() {
  if (terminal_ == nullptr) return;
  HistEvent event;
  if (!terminal_->file.empty()) history(terminal_->history, &event, H_SAVE, terminal_->file.c_str());
  history_end(terminal_->history);
  el_end(terminal_->editor);
}

std::optional<std::string> LineEditor::read(const std::string& prompt) {
  std::string line;
  if (terminal_ == nullptr) return std::getline(std::cin, line) ? std::optional(line) : std::nullopt;
  Terminal& t = *terminal_;
  t.prompt = prompt;
  int count = 0;
  const char* text = el_gets(t.editor, &count);
  if (text == nullptr) return count < 0 && errno == EINTR ? std::optional<std::string>("") : std::nullopt;
  line.assign(text, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(t.history, &event, H_ENTER, line.c_str());
  return line;
}

std::string state_file(const std::string& name) {
  namespace fs = std::filesystem;
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (state != nullptr && *state != '\0') {
    folder = fs::path(state) / "sluice";
  } else if (home != nullptr && *home != '\0') {
    folder = fs::path(home) / ".local/state/sluice";
  } else {
    return {};
  }
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? std::string() : (folder / name).string();
}

}  // namespace sluice::cli
