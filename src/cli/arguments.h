// From the words of a command line, a configuration file and the environment to what CLI11 parses. Options of other
// servers become ours; what cannot be used is refused by name.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sluice::cli {

struct CommandLine {
  std::vector<std::string> words;                                // the command line to parse, options before values
  std::vector<std::string> notes;                                // lines for the user: options that need nothing
  std::vector<std::string> secrets;                              // values that other users of the machine must not read
  std::vector<std::pair<std::string, std::string>> environment;  // variables to set before the command runs
};

// Reads the words after the program's name. Later words go before earlier ones, the command line before our variables,
// these before a configuration file (--config), and that before the variables of other servers. Throws UsageError for
// unknown commands and options, and for options that cannot be had.
CommandLine read_arguments(CLI::App& program, const std::vector<std::string>& words);

// The same for words that belong to a command without subcommands, and without the configuration file and variables.
CommandLine read_words(CLI::App& command, const std::vector<std::string>& words);

}  // namespace sluice::cli
