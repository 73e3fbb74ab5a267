// Options from a YAML file: one option per key, as on the command line.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

struct ConfigEntry {
  std::string word;   // "--port=8000"
  std::string place;  // "sluice.yaml:3", for messages
};

// Reads a mapping of option names, with dashes or underscores, to values. true and false switch a flag on and off, a
// list is an option given several times, and a mapping is JSON. Throws UsageError that names file and line.
std::vector<ConfigEntry> read_config_file(const std::string& path);

}  // namespace sluice::cli
