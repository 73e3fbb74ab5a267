// Options of other servers: vLLM's `vllm serve` and llama.cpp's `llama-server`. Each row of a table says what becomes
// of one option. The parser of arguments and the pages of `sluice docs` are made from the tables.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::cli {

struct ForeignOption {
  enum class Kind {
    kWorks,    // becomes the option `to`
    kNothing,  // accepted with a line that says why nothing is needed
    kRefused,  // an error that says what to do instead, unless the value is one of `neutral`
  };
  enum class Takes { kFlag, kValue, kOptional, kList, kJson };

  std::string_view name;  // without dashes
  Takes takes;
  Kind kind;
  // kWorks: the option that it becomes, without dashes ("model" is the positional argument). A flag can become an
  // option with a value: "task=embed".
  std::string_view to;
  std::string_view text;          // why nothing is needed; what to do instead; how the value is read
  std::string_view aliases = {};  // further names with their dashes, separated by spaces: "-tp"
  // kRefused: the values that ask for nothing, separated by spaces; "on" and "off" for a flag.
  std::string_view neutral = {};
  // kWorks: returns the value for `to`. Throws UsageError.
  std::string (*convert)(const std::string& value) = nullptr;
};

// A variable of the environment of another server, and the option of ours that it sets.
struct ForeignVariable {
  std::string_view name;
  std::string_view to;
  std::string_view text = {};
  // Returns words of the command line, for variables that set several options; null: `to` and the value.
  std::vector<std::string> (*convert)(const std::string& value) = nullptr;
};

std::span<const ForeignOption> vllm_options();
std::span<const ForeignOption> llama_options();
std::span<const ForeignVariable> foreign_variables();

// Finds an option by a name or an alias with its dashes ("--model", "-tp"), first vLLM's. Null: none has it.
const ForeignOption* find_foreign(std::string_view word);

// Whether a refused option's value asks for nothing.
bool is_neutral(const ForeignOption& option, std::string_view value);

// The pages docs/vllm-options.md and docs/llama-options.md.
std::string foreign_markdown(std::string_view page);

}  // namespace sluice::cli
