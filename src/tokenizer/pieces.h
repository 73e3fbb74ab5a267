// A text cut into pieces: what pre-tokenizers refine and models turn into tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/threads.h"

namespace sluice::tokenizer {

struct Span {
  size_t begin = 0;  // bytes
  size_t end = 0;
};

struct Pieces {
  std::string text;
  std::vector<Span> spans;  // ascending, without overlap, none empty; gaps are text that was thrown away
  // Whether spans[0] begins where the request's text begins (Metaspace's prepend_scheme "first" asks).
  bool from_the_start = false;
  Threads threads{};  // that may work on it

  std::string_view view(Span span) const { return std::string_view(text).substr(span.begin, span.end - span.begin); }
};

}  // namespace sluice::tokenizer
