// Leaves special tokens out of text that a parser has read with them.
#pragma once

#include <string>
#include <vector>

#include "sluice/request.h"

namespace sluice {

// One filter serves one choice. Marks of a syntax may be special tokens, so that a parser gets the text of all of them.
// Those that it did not use end up in its text; there they are removed.
class SpecialTextFilter {
 public:
  void add(const std::string& text);  // a token of this text came: it is not shown from here on
  void apply(std::vector<Delta>& deltas);
  void finish(std::vector<Delta>& deltas);  // appends what was held back

 private:
  std::string filter(std::string text);
  void flush(std::vector<Delta>& into);

  std::vector<std::string> hidden_;
  std::string held_;      // text that may be the begin of a hidden one
  bool thought_ = false;  // held_ is thought
};

}  // namespace sluice
