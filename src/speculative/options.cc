// Reads --speculative-config. Which keys there are depends on the method.
#include "speculative/options.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "base/json.h"
#include "sluice/error.h"
#include "speculative/drafter.h"

namespace sluice {

void refuse_speculative_config(const std::string& message) {
  constexpr const char* kOption = "speculative-config";
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--{}: {}", kOption, message), kOption, "");
}

void check_least_tokens(const SpeculativeOptions& o) {
  if (o.least_tokens <= o.tokens) return;
  refuse_speculative_config(fmt::format("draft_n_min {} is above num_speculative_tokens {}", o.least_tokens, o.tokens));
}

namespace {

constexpr int kMostTokens = 32;   // of a draft: a step computes all of them, and most are wrong if there are many
constexpr int kMostLookup = 256;  // tokens that must match
constexpr int kMostRanks = 64;

int read_integer(const std::string& key, const Json& value, int least, int most) {
  if (!value.is_number_integer() || value < least || value > most) {
    refuse_speculative_config(
        fmt::format("{}: expected an integer from {} to {}, not {}", key, least, most, dump_json(value)));
  }
  return value.get<int>();
}

double read_probability(const std::string& key, const Json& value) {
  if (!value.is_number() || value < 0 || value > 1) {
    refuse_speculative_config(fmt::format("{}: expected a number from 0 to 1, not {}", key, dump_json(value)));
  }
  return value.get<double>();
}

std::string read_name(const std::string& key, const Json& value) {
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    refuse_speculative_config(fmt::format("{}: expected a name, not {}", key, dump_json(value)));
  }
  return value.get<std::string>();
}

using Text = const std::string&;
using Value = const Json&;
struct Key {
  std::string_view name;
  void (*read)(Text key, Value value, SpeculativeOptions& options);
};
constexpr Key kKeys[] = {
    {"num_speculative_tokens", [](Text k, Value v, auto& o) { o.tokens = read_integer(k, v, 1, kMostTokens); }},
    {"prompt_lookup_min", [](Text k, Value v, auto& o) { o.shortest = read_integer(k, v, 1, kMostLookup); }},
    {"prompt_lookup_max", [](Text k, Value v, auto& o) { o.longest = read_integer(k, v, 1, kMostLookup); }},
    {"model", [](Text k, Value v, auto& o) { o.model = read_name(k, v); }},
    {"draft_p_min", [](Text k, Value v, auto& o) { o.least_probability = read_probability(k, v); }},
    {"draft_n_min", [](Text k, Value v, auto& o) { o.least_tokens = read_integer(k, v, 0, kMostTokens); }},
    {"draft_tensor_parallel_size", [](Text k, Value v, auto& o) { o.ranks = read_integer(k, v, 1, kMostRanks); }},
};

Json read_object(const std::string& text) {
  try {
    Json values = parse_json(text);
    if (values.is_object()) return values;
  } catch (const Error& e) {
    refuse_speculative_config(e.what());
  }
  refuse_speculative_config("expected a JSON object");
}

const DraftMethod& find_method(const Json& values) {
  std::vector<std::string> known;
  for (const DraftMethod* method : Registry<DraftMethod>::all()) known.push_back(fmt::format("\"{}\"", method->name));
  const auto given = values.find("method");
  if (given == values.end()) {
    if (values.contains("model")) return *Registry<DraftMethod>::find("draft_model");
    refuse_speculative_config(fmt::format("method is missing (expected one of: {})", fmt::join(known, ", ")));
  }
  for (const DraftMethod* method : Registry<DraftMethod>::all()) {
    if (!given->is_string()) break;
    const std::string& name = given->get_ref<const std::string&>();
    if (name == method->name || std::ranges::find(method->aliases, name) != method->aliases.end()) return *method;
  }
  refuse_speculative_config(
      fmt::format("method: unknown value {} (expected one of: {})", dump_json(*given), fmt::join(known, ", ")));
}

}  // namespace

std::optional<SpeculativeOptions> parse_speculative_config(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const Json values = read_object(text);
  const DraftMethod& method = find_method(values);
  std::vector<std::string_view> known = {"method", "num_speculative_tokens"};
  known.insert(known.end(), method.keys.begin(), method.keys.end());
  SpeculativeOptions out{.method = std::string(method.name)};
  for (const auto& [key, value] : values.items()) {
    if (key == "method") continue;
    const auto reader = std::ranges::find(kKeys, key, &Key::name);
    if (std::ranges::find(known, key) == known.end() || reader == std::end(kKeys)) {
      refuse_speculative_config(
          fmt::format("unknown key '{}' (method {} has: {})", key, method.name, fmt::join(known, ", ")));
    }
    reader->read(key, value, out);
  }
  method.complete(out);
  return out;
}

std::unique_ptr<Drafter> make_drafter(const SpeculativeOptions& options, const DraftModelRunner& model) {
  return Registry<DraftMethod>::find(options.method)->make(options, model);
}

}  // namespace sluice
