// Turns the text of an answer into deltas: text, reasoning, tool calls. One parser serves one choice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sluice/request.h"

namespace sluice {

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Takes the next piece of the text, which is whole UTF-8 characters and may be empty. Appends what it has become. May
  // hold back text whose meaning is not decided yet.
  virtual void push(std::string text, std::vector<Delta>& deltas) = 0;
  // The text has ended: appends what was held back.
  virtual void finish(std::vector<Delta>& deltas) = 0;
};

// All of the text is text.
std::unique_ptr<OutputParser> make_text_parser();

}  // namespace sluice
