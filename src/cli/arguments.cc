// Walks over command lines, configuration files and variables; see arguments.h.
#include "cli/arguments.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>

#include "base/json.h"
#include "cli/config_file.h"
#include "cli/foreign_options.h"
#include "cli/suggest.h"
#include "cli/usage_error.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

using Words = std::vector<std::string>;

bool is_number(const std::string& word) {
  return word.size() > 1 && (std::isdigit(static_cast<unsigned char>(word[1])) != 0 || word[1] == '.');
}

// "-" is a value by itself, for standard input.
bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-' && !is_number(word); }

bool is_flag(const CLI::Option& option) { return option.get_expected_max() == 0; }
bool is_list(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

bool is_set(const std::string& variable) {
  const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

// Our --device is a number. vLLM's names a kind of device, llama-server's is a name as "CUDA0".
bool names_kind(const std::string& device) { return device == "auto" || device == "cpu" || device == "cuda"; }
bool names_device(const std::string& device) { return device.find_first_not_of("+-0123456789") == 0; }

// What is before and after the first `mark`.
std::pair<std::string, std::string> split(std::string_view text, char mark) {
  const size_t at = std::min(text.find(mark), text.size());
  return {std::string(text.substr(0, at)), std::string(text.substr(std::min(at + 1, text.size())))};
}

// The option and the key in "override-generation-config.top_k".
std::pair<std::string, std::string> split_key(const ForeignOption& row) { return split(row.to, '.'); }

// An option that was given, under our name.
struct Given {
  CLI::Option* option = nullptr;
  Words words;                // for CLI11
  bool took_several = false;  // values without an option's name before them
  const ForeignOption* row = nullptr;
};

// An option of another server that was given, as the word that named it.
struct ForeignGiven {
  const ForeignOption* row = nullptr;
  std::string word, value;
};

// Options from one source: the command line, a file, or variables.
class Source {
 public:
  Source(CLI::App& command, CommandLine& out) : command_(command), out_(out) {}

  // `place` names the source in errors; empty for the command line.
  void read(const Words& words, const std::string& place = {}) {
    place_ = place;
    for (size_t i = 0; i < words.size();) {
      if (words[i] == "--") {
        positionals.insert(positionals.end(), words.begin() + static_cast<std::ptrdiff_t>(i) + 1, words.end());
        return;
      }
      if (!is_option(words[i])) {
        positionals.push_back(words[i++]);
        continue;
      }
      i = read_option(words, i);
    }
  }

  // One variable that means an option of another server.
  void read_variable(const ForeignOption& row, const std::string& variable, const std::string& value) {
    word_ = variable;
    inline_ = value;
    path_.clear();
    read_foreign(row, false, {});
  }

  // Adds the objects that were built of dotted options.
  void finish() {
    check_equals();
    add_fallbacks();
    for (auto& [option, value] : objects_)
      given.push_back({option, {"--" + option->get_lnames()[0], dump_json(value)}});
    objects_.clear();
  }

  // Moves the keys that `other` lacks from an object to the same object of `other`, if that has one.
  void lend_keys(const CLI::Option* option, Source& other) {
    const auto mine = find_object(option), theirs = other.find_object(option);
    if (mine == objects_.end() || theirs == other.objects_.end()) return;
    add_fallbacks();
    for (auto& [key, value] : mine->second.items()) {
      if (!theirs->second.contains(key)) theirs->second[key] = std::move(value);
    }
    objects_.erase(mine);
  }

  bool has(const CLI::Option* option) const {
    return std::ranges::any_of(given, [&](const Given& g) { return g.option == option; }) ||
           std::ranges::find(objects_, option, &Object::first) != objects_.end();
  }
  bool has_key(const CLI::Option* option, const std::string& key) const {
    const auto found = std::ranges::find(objects_, option, &Object::first);
    return found != objects_.end() && found->second.contains(key);
  }
  bool has_row(const ForeignOption& row) const {
    return std::ranges::any_of(rows_, [&](const ForeignGiven& g) { return g.row == &row; });
  }
  // How many options and keys are set.
  size_t settings() const {
    size_t count = given.size();
    for (const auto& [option, object] : objects_) count += object.size();
    return count;
  }

  std::vector<Given> given;
  Words positionals;
  Words models;
  std::string revision, config;

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw UsageError(place_.empty() ? message : fmt::format("{}: {}", place_, message));
  }

  bool knows_foreign() const { return command_.get_option_no_throw("--max-model-len") != nullptr; }
  CLI::Option* own(const std::string& name) const { return command_.get_option_no_throw(name); }

  // Returns the index after the option at words[at] and its values.
  size_t read_option(const Words& words, size_t at) {
    word_ = words[at];
    inline_.reset();
    path_.clear();
    if (const size_t equals = word_.find('='); equals != std::string::npos) {
      inline_ = word_.substr(equals + 1);
      word_.resize(equals);
    }
    std::string name = word_;
    if (name.starts_with("--")) std::ranges::replace(name, '_', '-');
    const size_t dot = find_foreign(name) == nullptr ? name.find('.') : std::string::npos;
    if (dot != std::string::npos && name.starts_with("--")) {
      path_ = word_.substr(dot + 1);  // its underscores count
      name.resize(dot);
    }
    next_ = at + 1;
    CLI::Option* option = own(name);
    const ForeignOption* foreign = knows_foreign() ? find_foreign(name) : nullptr;
    if (name == "--device" && foreign != nullptr) {
      const std::string device = value_ahead(words);
      if (names_kind(device) || names_device(device)) option = nullptr;
      if (option == nullptr && !names_kind(device)) foreign = find_foreign("-dev");
    }
    if (option != nullptr && (foreign == nullptr || foreign->kind != ForeignOption::Kind::kWorks || is_flag(*option) ||
                              "--" + std::string(foreign->to) != name)) {
      read_own(*option, name, words);
    } else if (foreign != nullptr) {
      read_foreign(*foreign, false, words);
    } else if (const ForeignOption* flag = knows_foreign() ? find_negated(name) : nullptr) {
      read_foreign(*flag, true, words);
    } else if (const std::string attached = name.substr(0, 2);
               !name.starts_with("--") && knows_foreign() && attached == "-O") {
      inline_ = name.substr(2);
      word_ = attached;
      read_foreign(*find_foreign("-O"), false, words);
    } else if (!name.starts_with("--") && own(attached) != nullptr) {
      given.push_back({own(attached), {words[at]}});
    } else {
      fail(unknown(name));
    }
    return next_;
  }

  std::string unknown(const std::string& name) const {
    Words names;
    for (const CLI::Option* option : std::as_const(command_).get_options()) {
      for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
    }
    if (knows_foreign()) {
      for (const ForeignOption& row : vllm_options()) names.push_back("--" + std::string(row.name));
      for (const ForeignOption& row : llama_options()) names.push_back("--" + std::string(row.name));
    }
    std::string path = command_.get_name();
    for (const CLI::App* app = command_.get_parent(); app != nullptr; app = app->get_parent()) {
      path = (app->get_name().empty() ? "sluice" : app->get_name()) + " " + path;
    }
    return fmt::format("unknown option '{}'{} (`{} --help` lists all)", name, suggestion(name, names), path);
  }

  std::string value_ahead(const Words& words) const {
    return inline_ ? *inline_ : next_ < words.size() ? words[next_] : std::string();
  }

  std::string take_value(const Words& words) {
    if (inline_) return *inline_;
    const bool missing =
        next_ >= words.size() || words[next_] == "--" ||
        (words[next_].starts_with("--") && (own(words[next_]) != nullptr || find_foreign(words[next_]) != nullptr));
    if (missing) fail(fmt::format("{}: needs a value", word_));
    return words[next_++];
  }

  // One value, or all words up to the next option.
  Words take_values(const Words& words) {
    Words values{take_value(words)};
    if (inline_) return values;
    while (next_ < words.size() && !is_option(words[next_]) && words[next_] != "--") values.push_back(words[next_++]);
    return values;
  }

  void read_own(CLI::Option& option, const std::string& name, const Words& words) {
    if (!path_.empty()) fail(fmt::format("{}.{}: the option is not a JSON object", name, path_));
    if (is_flag(option)) {
      given.push_back({&option, {inline_ ? fmt::format("{}={}", name, *inline_) : name}});
    } else {
      add(option, name, take_value(words));
    }
  }

  void add(CLI::Option& option, const std::string& name, std::string value) {
    if (name == "--config") {
      config = std::move(value);
      return;
    }
    if (name == "--api-key") {
      out_.secrets.push_back(value);
      const bool comma = value.find(',') != std::string::npos;  // llama-server splits there
      if (comma) out_.notes.push_back("--api-key: the comma is a part of the key; repeat the option for several keys");
    }
    if (is_list(option) && value.starts_with('[') && name != "--api-key") {
      for (std::string& item : json_list(value)) given.push_back({&option, {name, std::move(item)}});
      return;
    }
    given.push_back({&option, {name, std::move(value)}});
  }

  Words json_list(const std::string& text) const {
    try {
      return parse_json(text).get<Words>();
    } catch (const std::exception&) {
      fail(fmt::format("{}: '{}' is not a JSON array of strings", word_, text));
    }
  }

  void read_foreign(const ForeignOption& row, bool negative, const Words& words) {
    using enum ForeignOption::Takes;
    if (!path_.empty() && row.takes != kJson) fail(fmt::format("{}: the option is not a JSON object", word_));
    Words values;
    switch (row.takes) {
      case kFlag:
        values = {flag_value(negative)};
        break;
      case kList:
        values = take_values(words);
        break;
      case kOptional:
        values = {optional_value(words)};
        break;
      default:
        values = {take_value(words)};
    }
    remember(row, values[0]);
    if (row.kind != ForeignOption::Kind::kWorks) return settle(row, values);
    if (!row.difference.empty() && !is_neutral(row, values[0])) {
      out_.notes.push_back(fmt::format("{}: {}", shown(row, values), row.difference));
    }
    apply(row, values);
  }

  std::string flag_value(bool negative) const {
    constexpr std::string_view kOn[] = {"true", "True", "1", "on", "enabled"};
    constexpr std::string_view kOff[] = {"false", "False", "0", "off", "disabled"};
    const std::string given = inline_.value_or("true");
    const bool on = std::ranges::find(kOn, given) != std::end(kOn);
    if (!on && std::ranges::find(kOff, given) == std::end(kOff)) {
      fail(fmt::format("{}: '{}' is not a value of a flag (expected true or false)", word_, given));
    }
    return on != negative ? "on" : "off";
  }

  std::string optional_value(const Words& words) {
    constexpr std::string_view kKnown[] = {"on", "off", "auto", "true", "false", "0", "1"};
    const std::string ahead = value_ahead(words);
    const bool known = std::ranges::find(kKnown, ahead) != std::end(kKnown) || ahead.starts_with("hf_");
    if (!inline_ && !known) return {};
    return take_value(words);
  }

  // Of several values the last one counts.
  void remember(const ForeignOption& row, const std::string& value) {
    std::erase_if(rows_, [&](const ForeignGiven& g) { return g.row == &row; });
    rows_.push_back({&row, word_, value});
  }

  // The option and its values as they were given.
  std::string shown(const ForeignOption& row, const Words& values) const {
    std::string out = word_;
    if (path_.empty() && row.takes == ForeignOption::Takes::kFlag) return out;
    for (const std::string& value : values) out += (value.empty() ? "" : " ") + value;
    return out;
  }

  // An option that changes nothing, or that cannot be had.
  void settle(const ForeignOption& row, const Words& values) {
    for (const std::string& value : values) converted(row, value);
    const std::string given = shown(row, values);
    const bool neutral = std::ranges::all_of(values, [&](const std::string& v) { return is_neutral(row, v); });
    if (row.kind == ForeignOption::Kind::kRefused && !(neutral && path_.empty())) {
      fail(fmt::format("{}: not supported: {}", given, row.text));
    }
    out_.notes.push_back(row.kind == ForeignOption::Kind::kRefused
                             ? fmt::format("{}: nothing to do, it is always so", given)
                             : fmt::format("{}: nothing to do: {}", given, row.text));
  }

  // Runs a function of a row. Its errors get the option's name.
  template <class Function>
  auto named(const Function& function) const {
    try {
      return function();
    } catch (const UsageError& e) {
      fail(fmt::format("{}: {}", word_, e.what()));
    }
  }
  std::string converted(const ForeignOption& row, const std::string& value) const {
    return row.convert == nullptr ? value : named([&] { return row.convert(value); });
  }

  // Checks a value as CLI11 will, so that the error has the name that was given.
  void check_value(CLI::Option& option, std::string value) const {
    for (int i = 0;; ++i) {
      CLI::Validator* validator = nullptr;
      try {
        validator = option.get_validator(i);
      } catch (const CLI::OptionNotFound&) {
        return;  // that was the last one
      }
      if (const std::string error = (*validator)(value); !error.empty()) fail(fmt::format("{}: {}", word_, error));
    }
  }

  void apply(const ForeignOption& row, Words& values) {
    if (row.to == "hf-token" || row.to == "download-dir" || row.to == "offline") return set_variable(row, values[0]);
    if (row.to == "model") {
      if (row.name == "revision") {
        revision = values[0];
      } else {
        models.push_back(values[0]);
      }
      return;
    }
    if (row.expand != nullptr) return read_expanded(row, values[0]);
    const std::string to(row.to.substr(0, row.to.find_first_of("=.")));
    CLI::Option* option = own("--" + to);
    if (option == nullptr) fail(fmt::format("{}: `sluice {}` has no --{}", word_, command_.get_name(), to));
    if (row.to.find('=') != std::string_view::npos) {
      if (values[0] == "on") given.push_back({option, {"--" + to, std::string(row.to.substr(to.size() + 1))}});
      return;
    }
    if (row.to.find('.') != std::string_view::npos) return add_key(row, *option, values[0]);
    if (row.takes == ForeignOption::Takes::kJson) return add_json(*option, values[0]);
    const size_t before = given.size();
    for (std::string& value : values) {
      const bool given_empty = value.empty();
      value = converted(row, value);
      if (value.empty() && !given_empty) {  // the default
        std::erase_if(given, [&](const Given& g) { return g.row == &row; });
        continue;
      }
      if (!is_list(*option)) check_value(*option, value);
      if (is_flag(*option)) {
        given.push_back({option,
                         {fmt::format("--{}={}", to,
                                      value == "on"    ? "true"
                                      : value == "off" ? "false"
                                                       : value)}});
      } else {
        add(*option, "--" + to, value);
      }
      if (given.size() > before) given.back().row = &row;
    }
    if (values.size() > 1) given.back().took_several = true;
    // Of several values the last one counts, and --runner says less than --convert and --task.
    if (row.name == "runner" && given.size() > before) std::rotate(given.begin(), given.end() - 1, given.end());
  }

  void read_expanded(const ForeignOption& row, const std::string& value) {
    const size_t next = next_;
    for (const std::string& word : named([&] { return row.expand(value); })) read_option({word}, 0);
    next_ = next;
  }

  // A value that is a key of a JSON object.
  void add_key(const ForeignOption& row, CLI::Option& option, const std::string& given) {
    const std::string value = converted(row, given);
    path_ = split_key(row).second;
    if (value.empty() && !given.empty()) {  // the default
      const auto found = find_object(&option);
      if (found != objects_.end() && found->second.erase(path_) > 0 && found->second.empty()) objects_.erase(found);
      return;
    }
    add_json(option, named([&] { return sampling_value(path_, value); }));
    if (!row.also.empty()) fallbacks_.emplace_back(&option, row.also);
  }

  void add_fallbacks() {
    for (const auto& [option, text] : fallbacks_) {
      const auto [key, value] = split(text, '=');
      Json& object = find_object(option)->second;
      if (!object.contains(key)) object[key] = parse_json(value);
    }
    fallbacks_.clear();
  }

  // Options that are one of ours must agree.
  void check_equals() const {
    for (const auto& [row, word, value] : rows_) {
      if (row->equals.empty()) continue;
      const auto [name, fallback] = split(row->equals, '=');
      const auto other = std::ranges::find(rows_, name, [](const ForeignGiven& g) { return g.row->name; });
      if (value == (other != rows_.end() ? other->value : fallback)) continue;
      fail(fmt::format("{} {}: not supported unless --{} is {}, too: {}", word, value, name, value, row->text));
    }
  }

  void set_variable(const ForeignOption& row, const std::string& value) {
    if (row.to == "offline") {
      if (value == "on") out_.environment.emplace_back("HF_HUB_OFFLINE", "1");
      return;
    }
    if (value.empty() || value == "true") return;  // --hf-token alone: the token of the environment or of the cache
    if (row.to == "hf-token") out_.secrets.push_back(value);
    out_.environment.emplace_back(row.to == "hf-token" ? "HF_TOKEN" : "HF_HUB_CACHE", value);
  }

  // --name '{"a": 1}' or --name.a 1; a '+' after the last key appends to a list.
  void add_json(CLI::Option& option, const std::string& text) {
    Json value;
    try {
      value = parse_json(text);
    } catch (const Error& e) {
      if (path_.empty()) fail(fmt::format("{}: expected a JSON object: {}", word_, e.what()));
      value = text;
    }
    auto found = find_object(&option);
    if (found == objects_.end()) found = objects_.insert(found, {&option, Json::object()});
    if (path_.empty()) {
      if (!value.is_object()) fail(fmt::format("{}: expected a JSON object", word_));
      for (const auto& [key, item] : value.items()) found->second[key] = item;
      return;
    }
    Json* at = &found->second;
    std::string rest = path_;
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      at = &(*at)[rest.substr(0, dot)];
      if (!at->is_null() && !at->is_object()) fail(fmt::format("{}: a part of the name is not an object", word_));
      rest.erase(0, dot + 1);
    }
    if (!rest.ends_with('+')) {
      (*at)[rest] = std::move(value);
      return;
    }
    Json& list = (*at)[rest.substr(0, rest.size() - 1)];
    if (!list.is_null() && !list.is_array()) fail(fmt::format("{}: is not a list", word_));
    list.push_back(std::move(value));
  }

  using Object = std::pair<CLI::Option*, Json>;
  std::vector<Object>::iterator find_object(const CLI::Option* option) {
    return std::ranges::find(objects_, option, &Object::first);
  }

  CLI::App& command_;
  CommandLine& out_;
  std::string place_;
  std::vector<Object> objects_;
  std::vector<std::pair<CLI::Option*, std::string_view>> fallbacks_;  // keys for those of objects_, see `also`
  std::vector<ForeignGiven> rows_;
  // The option that is being read.
  std::string word_, path_;
  std::optional<std::string> inline_;
  size_t next_ = 0;
};

// Puts the sources of one command together.
class Assembly {
 public:
  Assembly(CLI::App& command, CommandLine& out) : command_(command), out_(out), line_(command, out) {}

  void read(const Words& words, bool from_words_alone = false) {
    line_.read(words);
    Source file(command_, out_), variables(command_, out_);
    if (!from_words_alone) {
      read_file(file);
      if (command_.get_name() == "serve") read_variables(variables, file);
    }
    line_.finish();
    choose_model(file, variables);
    for (const Source* lower : {&variables, &file}) {
      for (const Given& given : lower->given) {
        const bool stands = !line_.has(given.option) && !is_set(given.option->get_envname()) &&
                            !(lower == &variables && file.has(given.option));
        if (stands) append(given.words);
      }
    }
    for (const Given& given : line_.given) append(given.words);
    if (!line_.positionals.empty()) out_.words.emplace_back("--");
    append(line_.positionals);
  }

 private:
  void append(const Words& words) { out_.words.insert(out_.words.end(), words.begin(), words.end()); }

  void read_file(Source& file) {
    std::string path = line_.config;
    if (path.empty() && command_.get_option_no_throw("--config") != nullptr && is_set("SLUICE_CONFIG")) {
      path = std::getenv("SLUICE_CONFIG");
    }
    if (path.empty()) return;
    for (const ConfigEntry& entry : read_config_file(path)) {
      file.read({entry.word}, entry.place);
      if (!file.config.empty()) throw UsageError(entry.place + ": a configuration file cannot name another one");
    }
    file.finish();
  }

  void read_variables(Source& variables, const Source& file) {
    for (const ForeignVariable& variable : foreign_variables()) {
      const std::string name(variable.name);
      if (!is_set(name)) continue;
      const std::string value = std::getenv(name.c_str());
      const Words words =
          variable.convert != nullptr ? variable.convert(value) : Words{fmt::format("--{}={}", variable.to, value)};
      const size_t before = variables.given.size();
      variables.read(words, name);
      const bool used = std::any_of(
          variables.given.begin() + static_cast<std::ptrdiff_t>(before), variables.given.end(), [&](const Given& g) {
            return !line_.has(g.option) && !file.has(g.option) && !is_set(g.option->get_envname());
          });
      if (used) out_.notes.push_back(fmt::format("{} sets --{}", name, variable.to));
    }
    for (const ForeignOption& row : llama_options()) read_llama_variable(row, variables, file);
    for (const char* name : {"--override-generation-config", "--default-chat-template-kwargs"}) {
      const CLI::Option* option = command_.get_option_no_throw(name);
      if (option != nullptr && !is_decided(*option, file)) variables.lend_keys(option, line_);
    }
    variables.finish();
  }

  bool is_decided(const CLI::Option& option, const Source& file) const {
    return file.has(&option) || is_set(option.get_envname());
  }

  // Whether something that goes before llama-server's variables sets what the row would set.
  bool is_decided(const ForeignOption& row, const Source& file) const {
    if (line_.has_row(row) || file.has_row(row)) return true;
    const auto [to, key] = split_key(row);
    const CLI::Option* option = command_.get_option_no_throw("--" + to.substr(0, to.find('=')));
    if (row.kind != ForeignOption::Kind::kWorks || option == nullptr) return false;
    return is_decided(*option, file) || (key.empty() ? line_.has(option) : line_.has_key(option, key));
  }

  void read_llama_variable(const ForeignOption& row, Source& variables, const Source& file) {
    constexpr std::string_view kPrefix = "LLAMA_ARG_";
    std::string name(variable_of(row));
    if (name.empty()) return;
    std::string value;
    if (const char* found = std::getenv(name.c_str())) value = found;
    const std::string opposite = "LLAMA_ARG_NO_" + name.substr(std::min(name.size(), kPrefix.size()));
    if (row.takes == ForeignOption::Takes::kFlag && is_set(opposite)) {
      name = opposite;
      value = "off";
    }
    if (value.empty() || is_decided(row, file)) return;
    const size_t before = variables.settings();
    variables.read_variable(row, name, value);
    if (variables.settings() > before) out_.notes.push_back(fmt::format("{} sets --{}", name, row.to));
  }

  // Models are the positional arguments, --model or, where neither is given, in the file or in a variable. Where a
  // command takes one model, the last --model counts.
  void choose_model(const Source& file, const Source& variables) {
    const CLI::Option* const argument = command_.get_option_no_throw("model");
    const bool takes_model = argument != nullptr, takes_several = takes_model && is_list(*argument);
    Words& positionals = line_.positionals;
    Words models = line_.models;
    if (takes_model && positionals.empty() && models.empty() && file.models.empty()) take_last_word();
    if (takes_model && !models.empty() && !positionals.empty()) {
      throw UsageError(fmt::format("the model is given twice: '{}' and '{}'", positionals[0], models[0]));
    }
    if (models.empty() && positionals.size() < (takes_model ? 1u : 2u)) {
      models = file.models;
      if (models.empty() && !variables.models.empty()) models = {variables.models.back()};
    }
    if (!takes_several && models.size() > 1) models = {models.back()};
    positionals.insert(positionals.begin(), models.begin(), models.end());
    const std::string revision = line_.revision.empty() ? file.revision : line_.revision;
    if (revision.empty()) return;
    if (positionals.empty()) throw UsageError("--revision: needs a model, org/name");
    if (takes_several && positionals.size() > 1) {
      throw UsageError("--revision: there are several models; write org/name:REVISION");
    }
    if (positionals[0].find(':') != std::string::npos) {
      throw UsageError(fmt::format("--revision: the model '{}' names a revision or a type itself", positionals[0]));
    }
    positionals[0] += ":" + revision;
  }

  // `--served-model-name NAME MODEL`: the last word after a list of several is the model.
  void take_last_word() {
    const auto last = std::ranges::find_if(line_.given, &Given::took_several);
    if (last == line_.given.end()) return;
    line_.positionals.push_back(last->words.back());
    line_.given.erase(last);
  }

  CLI::App& command_;
  CommandLine& out_;
  Source line_;
};

}  // namespace

CommandLine read_arguments(CLI::App& program, const std::vector<std::string>& words) {
  CommandLine out;
  CLI::App* command = &program;
  size_t at = 0;
  std::string path = "sluice";
  for (; at < words.size() && !is_option(words[at]); ++at) {
    const auto below = command->get_subcommands([](CLI::App*) { return true; });
    if (below.empty()) break;
    const auto found = std::ranges::find_if(below, [&](const CLI::App* app) { return app->get_name() == words[at]; });
    if (found == below.end()) {
      Words names;
      for (const CLI::App* app : below) names.push_back(app->get_name());
      throw UsageError(fmt::format("unknown command '{} {}'{} (`{} --help` lists all)", path, words[at],
                                   suggestion(words[at], names), path));
    }
    command = *found;
    path += " " + words[at];
    out.words.push_back(words[at]);
  }
  Assembly(*command, out).read(Words(words.begin() + static_cast<std::ptrdiff_t>(at), words.end()));
  std::set<std::string> seen;
  std::erase_if(out.notes, [&](const std::string& note) { return !seen.insert(note).second; });
  return out;
}

CommandLine read_words(CLI::App& command, const std::vector<std::string>& words) {
  CommandLine out;
  Assembly(command, out).read(words, /*from_words_alone=*/true);
  return out;
}

}  // namespace sluice::cli
