// Looks options of other servers up, and prints their tables; see foreign_options.h.
#include "cli/foreign_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>

#include "chat/builtin_templates.h"
#include "cli/markdown.h"
#include "cli/usage_error.h"
#include "sluice/sampling_parameters.h"

namespace sluice::cli {
namespace {

// Calls use(word) for each word of a list until it returns true. Returns whether it did.
template <class Use>
bool any_word(std::string_view words, Use use) {
  while (!words.empty()) {
    const size_t space = std::min(words.find(' '), words.size());
    if (use(words.substr(0, space))) return true;
    words.remove_prefix(std::min(space + 1, words.size()));
  }
  return false;
}

bool lists(std::string_view words, std::string_view word) {
  return any_word(words, [=](std::string_view other) { return other == word; });
}

const ForeignOption* find_in(std::span<const ForeignOption> rows, std::string_view word) {
  for (const ForeignOption& row : rows) {
    if ((word.starts_with("--") && word.substr(2) == row.name) || lists(row.aliases, word)) return &row;
  }
  return nullptr;
}

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "`--tensor-parallel-size`, `-tp`"
std::string names_of(const ForeignOption& row) {
  std::string out = fmt::format("`--{}`", row.name);
  any_word(row.aliases, [&](std::string_view word) {
    out += fmt::format(", `{}`", word.substr(word.starts_with('!') ? 1 : 0));
    return false;
  });
  return out;
}

std::string values_text(const ForeignOption& row) {
  if (row.takes == ForeignOption::Takes::kFlag) return row.neutral == "on" ? "`--" : "`--no-";
  std::string out;
  any_word(row.neutral, [&](std::string_view word) {
    out += fmt::format("{}`{}`", out.empty() ? "" : ", ", word);
    return false;
  });
  return out;
}

std::string bullet(const ForeignOption& row) {
  std::string out = "- " + names_of(row);
  std::string text(row.text);
  if (row.kind == ForeignOption::Kind::kWorks) {
    if (!row.difference.empty()) text += fmt::format("{}{}", text.empty() ? "" : "; ", row.difference);
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
      "\n## Variables\n\nNames above that begin with `LLAMA_` are variables of the environment. `sluice serve` reads "
      "them, and those of other servers below, unless an option or a variable of ours says otherwise. Flags take 1, "
      "on, true or enabled, and 0, off, false or disabled. `LLAMA_ARG_NO_MMAP` turns off what `LLAMA_ARG_MMAP` turns "
      "on, and so for each flag.\n\n";
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

const ForeignOption* find_negated(std::string_view word) {
  if (const ForeignOption* row = find_foreign(fmt::format("!{}", word))) return row;
  if (!word.starts_with("--no-")) return nullptr;
  const ForeignOption* row = find_foreign(fmt::format("--{}", word.substr(5)));
  return row != nullptr && row->takes == ForeignOption::Takes::kFlag ? row : nullptr;
}

std::string_view variable_of(const ForeignOption& option) {
  std::string_view found;
  any_word(option.aliases, [&](std::string_view word) {
    if (word.front() < 'A' || word.front() > 'Z') return false;
    found = word;
    return true;
  });
  return found;
}

std::string sampling_value(std::string_view key, const std::string& text) {
  const auto row = std::ranges::find(kSamplingParameters, key, &SamplingParameter::name);
  if (row == kSamplingParameters.end()) return text;
  const double number = parse_number(text).value_or(std::nan(""));
  const bool whole = number == std::floor(number);
  if (!(number >= row->min && number <= row->max) || (row->above_min && number == row->min) ||
      (row->is_integer() && !whole)) {
    throw UsageError(fmt::format("expected {} {} {} and at most {}, but got {}",
                                 row->is_integer() ? "an integer" : "a number",
                                 row->above_min ? "above" : "of at least", row->min, row->max, text));
  }
  return whole ? std::to_string(static_cast<int64_t>(number)) : fmt::format("{}", number);
}

std::string template_source(const std::string& text) {
  const bool in_line = text.find("{{") != std::string::npos || text.find("{%") != std::string::npos;
  std::error_code ignored;
  if (in_line || text.empty() || builtin_template(text) || std::filesystem::exists(text, ignored)) return text;
  throw UsageError(fmt::format("there is no file '{}' (expected a Jinja file, a template in one line, or one of: {})",
                               text, builtin_template_names()));
}

bool is_neutral(const ForeignOption& option, std::string_view value) {
  if (lists(option.neutral, value)) return true;
  // 1.0 is 1
  const std::optional<double> number = parse_number(value);
  return number && any_word(option.neutral, [&](std::string_view word) { return parse_number(word) == number; });
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
      {ForeignOption::Kind::kWorks,
       vllm ? "## Works\n" : "## Works\n\nWhere a meaning differs, a line on standard error says how.\n"},
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
