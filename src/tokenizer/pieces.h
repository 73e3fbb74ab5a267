// A text split into pieces, which pre-tokenizers refine and models turn into tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/threads.h"

namespace sluice::tokenizer {

struct Span {
  size_t begin = 0;  // byte offsets
  size_t end = 0;
};

struct Pieces {
  std::string text;
  std::vector<Span> spans;  // ascending, without overlap, none empty; text in the gaps is dropped
  // Whether spans[0] begins at the start of the request's text (used by Metaspace's prepend_scheme "first").
  bool from_the_start = false;
  Threads threads{};  // threads that may process it

  std::string_view view(Span span) const { return std::string_view(text).substr(span.begin, span.end - span.begin); }
};

}  // namespace sluice::tokenizer
