// The name that a user probably meant; see suggest.h.
#include "cli/suggest.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::cli {
namespace {

// Edits between two words (optimal string alignment).
size_t edits(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& names) {
  const std::string* best = nullptr;
  size_t fewest = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    const size_t count = edits(word, name);
    if (count < fewest) fewest = count, best = &name;
  }
  return best != nullptr ? *best : std::string();
}

std::string suggestion(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest(word, names);
  return name.empty() ? std::string() : fmt::format("; did you mean '{}'?", name);
}

}  // namespace sluice::cli
