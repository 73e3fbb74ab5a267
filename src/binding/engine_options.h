// Options of the engine by name, for programs that embed it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sluice/options.h"

namespace sluice::binding {

struct NamedOption {
  std::string name;   // without dashes in front; '_' counts as '-'
  std::string value;  // as on the command line; flags take true and false, lists and objects are JSON
};

// Reads the options of the command line, and those of vLLM and llama-server that it knows. Variables of the environment
// (SLUICE_MAX_MODEL_LEN) count for options that are not given. A model on the hub is downloaded if it is not in the
// cache. `notes` gets a line for each option that needs nothing.
//
// Throws Error(kInvalidRequest): its `param` is the option's name, its `reason` "unknown_option" or "invalid_option".
EngineOptions read_engine_options(const std::string& model, std::span<const NamedOption> options,
                                  std::vector<std::string>& notes);

// An option that read_engine_options() takes: one of ours, or one of vLLM's.
struct OptionName {
  std::vector<std::string> words;  // with their dashes: "--tensor-parallel-size", "-tp"
  enum class Takes { kFlag, kValue, kOptional, kList } takes = Takes::kValue;
  std::string help;
};

// All of them but the model, for parsers of command lines.
std::vector<OptionName> list_engine_options();

}  // namespace sluice::binding
