#include "speculative/options.h"

#include <fmt/core.h>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kMostTokens = 32;   // of a draft: a step computes all of them, and most are wrong if there are many
constexpr int kMostLookup = 256;  // tokens that must match
constexpr int kUsualLookup = 5;   // vLLM's default

[[noreturn]] void fail(const std::string& message) {
  constexpr const char* kOption = "speculative-config";
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--{}: {}", kOption, message), kOption, "");
}

int read_integer(const std::string& key, const Json& value, int most) {
  if (!value.is_number_integer() || value < 1 || value > most) {
    fail(fmt::format("{}: expected an integer from 1 to {}, not {}", key, most, dump_json(value)));
  }
  return value.get<int>();
}

Json read_object(const std::string& text) {
  try {
    Json values = parse_json(text);
    if (values.is_object()) return values;
  } catch (const Error& e) {
    fail(e.what());
  }
  fail("expected a JSON object");
}

}  // namespace

std::optional<SpeculativeOptions> parse_speculative_config(const std::string& text) {
  if (text.empty()) return std::nullopt;
  SpeculativeOptions out;
  bool named = false;
  const Json values = read_object(text);
  for (const auto& [key, value] : values.items()) {
    if (key == "method") {
      if (value != "ngram")
        fail(fmt::format("method: unknown value {} (expected one of: \"ngram\")", dump_json(value)));
      named = true;
    } else if (key == "num_speculative_tokens") {
      out.tokens = read_integer(key, value, kMostTokens);
    } else if (key == "prompt_lookup_min") {
      out.shortest = read_integer(key, value, kMostLookup);
    } else if (key == "prompt_lookup_max") {
      out.longest = read_integer(key, value, kMostLookup);
    } else {
      fail(
          fmt::format("unknown key '{}' (expected one of: method, num_speculative_tokens, prompt_lookup_min, "
                      "prompt_lookup_max)",
                      key));
    }
  }
  if (!named) fail("method is missing (expected \"ngram\")");
  if (out.tokens == 0) fail("num_speculative_tokens is missing (expected an integer)");
  if (out.shortest == 0) out.shortest = out.longest > 0 ? out.longest : kUsualLookup;
  if (out.longest == 0) out.longest = out.shortest;
  if (out.shortest > out.longest) {
    fail(fmt::format("prompt_lookup_min {} is above prompt_lookup_max {}", out.shortest, out.longest));
  }
  return out;
}

}  // namespace sluice
