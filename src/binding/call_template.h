// Chat templates that a call brings along instead of the model's.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "chat/chat_template.h"
#include "sluice/engine.h"

namespace sluice::binding {

// Keeps the templates that were used. Thread-safe.
class CallTemplates {
 public:
  explicit CallTemplates(EngineOptions options) : options_(std::move(options)) {}

  // Renders by a Jinja file, or by a template in one line. Special tokens and default variables are the model's. Throws
  // Error: also what a wrong template throws.
  std::string render(const ChatPrompt& chat, const std::string& chat_template);

 private:
  std::shared_ptr<const ChatTemplate> find(const std::string& chat_template);

  const EngineOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const ChatTemplate>> templates_;
};

}  // namespace sluice::binding
