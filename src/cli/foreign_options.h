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
  // option with a value: "task=embed". A value can become a key of a JSON object: "override-generation-config.top_k".
  std::string_view to;
  std::string_view text;  // why nothing is needed; what to do instead; how the value is read
  // Further names, separated by spaces: "-tp" with its dashes, "!-nocb" turns a flag off, "LLAMA_ARG_THREADS" is a
  // variable of the environment.
  std::string_view aliases = {};
  // The values that ask for nothing, separated by spaces; "on" and "off" for a flag. kRefused: they are accepted.
  // kWorks: they have no `difference`.
  std::string_view neutral = {};
  // Returns the value for `to`; empty: the default. Throws UsageError without the option's name. kNothing: it only
  // checks.
  std::string (*convert)(const std::string& value) = nullptr;
  // kWorks: how the meaning differs from the other server's. It is printed when the option is given.
  std::string_view difference = {};
  // kWorks, for a key of a JSON object: a further key and its value, unless another option sets it: "repeat_last_n=64".
  std::string_view also = {};
  // kWorks: another option that must have the same value, and what it has if it is not given: "threads=-1".
  std::string_view equals = {};
  // kWorks: returns words of the command line, for a value that sets several options. Throws like `convert`.
  std::vector<std::string> (*expand)(const std::string& value) = nullptr;
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
// Finds a flag by a name that turns it off ("--no-mmap", "-nocb").
const ForeignOption* find_negated(std::string_view word);

// The variable among an option's names; empty: none.
std::string_view variable_of(const ForeignOption& option);

// Returns the value of a sampling parameter as JSON. Throws UsageError, without the option's name, for what is no
// number in the parameter's range. Keys that name no number among the sampling parameters have their text returned.
std::string sampling_value(std::string_view key, const std::string& text);

// Returns a chat template's source: a file that exists, or a template in one line. Throws UsageError for what is
// neither, without the option's name.
std::string template_source(const std::string& text);

// Whether a value is one of `neutral`.
bool is_neutral(const ForeignOption& option, std::string_view value);

// The pages docs/vllm-options.md and docs/llama-options.md.
std::string foreign_markdown(std::string_view page);

}  // namespace sluice::cli
