// Looks options of other servers up, and prints their tables; see foreign_options.h.
#include "cli/foreign_options.h"

#include <fmt/core.h>

#include <charconv>

#include "cli/markdown.h"

namespace sluice::cli {
namespace {

bool lists(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const size_t space = std::min(words.find(' '), words.size());
    if (words.substr(0, space) == word) return true;
    words.remove_prefix(std::min(space + 1, words.size()));
  }
  return false;
}

const ForeignOption* find_in(std::span<const ForeignOption> rows, std::string_view word) {
  for (const ForeignOption& row : rows) {
    if ((word.starts_with("--") && word.substr(2) == row.name) || lists(row.aliases, word)) return &row;
  }
  return nullptr;
}

// "`--tensor-parallel-size`, `-tp`"
std::string names_of(const ForeignOption& row) {
  std::string out = fmt::format("`--{}`", row.name);
  for (std::string_view rest = row.aliases; !rest.empty();) {
    const size_t space = std::min(rest.find(' '), rest.size());
    out += fmt::format(", `{}`", rest.substr(0, space));
    rest.remove_prefix(std::min(space + 1, rest.size()));
  }
  return out;
}

std::string values_text(const ForeignOption& row) {
  if (row.takes == ForeignOption::Takes::kFlag) return row.neutral == "on" ? "`--" : "`--no-";
  std::string out;
  for (std::string_view rest = row.neutral; !rest.empty();) {
    const size_t space = std::min(rest.find(' '), rest.size());
    out += fmt::format("{}`{}`", out.empty() ? "" : ", ", rest.substr(0, space));
    rest.remove_prefix(std::min(space + 1, rest.size()));
  }
  return out;
}

std::string bullet(const ForeignOption& row) {
  std::string out = "- " + names_of(row);
  const std::string text(row.text);
  if (row.kind == ForeignOption::Kind::kWorks) {
    if (row.to != row.name) out += fmt::format(" is `{}`", row.to == "model" ? "MODEL" : "--" + std::string(row.to));
    return text.empty() ? out : out + ": " + text;
  }
  out += ": " + text;
  if (row.kind != ForeignOption::Kind::kRefused || row.neutral.empty()) return out;
  const std::string values = values_text(row);
  if (row.takes == ForeignOption::Takes::kFlag) return out + fmt::format(" (accepted: {}{}`)", values, row.name);
  return out + fmt::format(" (accepted: {})", values);
}

std::string variables_markdown() {
  std::string out =
      "\n## Variables\n\n`sluice serve` also reads these variables of other servers, unless an option or a "
      "variable of ours says otherwise:\n\n";
  for (const ForeignVariable& variable : foreign_variables()) {
    out += fmt::format("- `{}`: {}{}\n", variable.name, variable.to,
                       variable.text.empty() ? "" : fmt::format(" ({})", variable.text));
  }
  return out;
}

}  // namespace

const ForeignOption* find_foreign(std::string_view word) {
  const ForeignOption* found = find_in(vllm_options(), word);
  return found != nullptr ? found : find_in(llama_options(), word);
}

bool is_neutral(const ForeignOption& option, std::string_view value) {
  if (lists(option.neutral, value)) return true;
  // 1.0 is 1
  double number = 0, other = 0;
  const auto parse = [](std::string_view text, double& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
  };
  const std::string_view first = option.neutral.substr(0, option.neutral.find(' '));
  return parse(value, number) && parse(first, other) && number == other;
}

std::string foreign_markdown(std::string_view page) {
  const bool vllm = page == "vllm-options";
  const std::span<const ForeignOption> rows = vllm ? vllm_options() : llama_options();
  std::string out = fmt::format(
      "# Options of {0}\n\nMade by `sluice docs {1}`. `sluice serve` takes every option of {0}. Underscores may stand "
      "for dashes. Each option works, needs nothing, or is refused with exit status 2.\n",
      vllm ? "`vllm serve`" : "`llama-server`", page);
  if (vllm) {
    out +=
        "\nA JSON option can be given in parts: `--name.key value`, `--name.list+ item`. `--config FILE` reads "
        "options from YAML. Whole numbers take units: 8k is 8,000, 8K is 8,192.\n";
  }
  const std::pair<ForeignOption::Kind, const char*> kinds[] = {
      {ForeignOption::Kind::kWorks, "## Works\n"},
      {ForeignOption::Kind::kNothing, "## Needs nothing\n\nA line on standard error says why.\n"},
      {ForeignOption::Kind::kRefused, "## Is refused\n\nThe error says what to do instead.\n"}};
  for (const auto& [kind, heading] : kinds) {
    out += fmt::format("\n{}\n", heading);
    for (const ForeignOption& row : rows) {
      if (row.kind == kind) out += bullet(row) + "\n";
    }
  }
  if (!vllm) out += variables_markdown();
  return wrap_markdown(out);
}

}  // namespace sluice::cli
