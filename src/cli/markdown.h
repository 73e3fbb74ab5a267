// Wraps generated Markdown.
#pragma once

#include <string>
#include <string_view>

namespace sluice::cli {

// Breaks paragraphs and bullets of generated text so that no line has more than 120 columns. The lines of a bullet
// after the first are indented. Words are never broken.
std::string wrap_markdown(std::string_view text);

}  // namespace sluice::cli
