// Wraps generated Markdown; see markdown.h.
#include "cli/markdown.h"

namespace sluice::cli {
namespace {

constexpr size_t kColumns = 120;

size_t columns(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return count;
}

void wrap_line(std::string_view line, std::string& out) {
  const std::string indent = line.starts_with("- ") ? "  " : "";
  size_t used = 0;
  bool first = true;  // word of its line
  while (!line.empty()) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string_view word = line.substr(0, space);
    if (!first && used + 1 + columns(word) > kColumns) {
      out += "\n" + indent;
      used = indent.size();
    } else if (!first) {
      out += ' ', ++used;
    }
    first = false;
    out += word;
    used += columns(word);
    line.remove_prefix(std::min(space + 1, line.size()));
  }
}

}  // namespace

std::string wrap_markdown(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    wrap_line(text.substr(0, end), out);
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace sluice::cli
