// Fuzzes JSON schemas: compiles them under small limits, and walks over texts that the masks allow. Every token of a
// mask must be one that a copy of the matcher accepts byte by byte, and no other token.
#include <random>

#include "base/check.h"
#include "grammar/source.h"

namespace {

using namespace sluice;
using namespace sluice::grammar;

std::vector<std::string> tokens() {
  std::vector<std::string> out;
  for (int byte = 0; byte < 256; ++byte) out.emplace_back(1, static_cast<char>(byte));
  for (const char* token : {"{\"",
                            "\":",
                            "\": \"",
                            "\",\"",
                            "\"}",
                            "},",
                            "],",
                            "[[",
                            "{}",
                            "[]",
                            "null",
                            "true",
                            "false",
                            "10",
                            "0.5",
                            "-1",
                            "e+2",
                            "\\n",
                            "\\u00",
                            "\\ud83d",
                            "ab",
                            "abc",
                            "a1",
                            "  ",
                            "\n  ",
                            "é",
                            "漢字",
                            "😀",
                            "\xc3\xa9\"",
                            "\xe6\xbc",
                            "xxxxxxxxxxxxxxxxxxxx",
                            "aaaaaaaaaaaaaaaaaaaa\"",
                            "                    "}) {
    out.emplace_back(token);
  }
  return out;
}

// Compares a mask with the tokens that are accepted, and returns those.
std::vector<TokenId> check(const Matcher& m, const std::vector<std::string>& list) {
  std::vector<uint32_t> mask((list.size() + 31) / 32);
  m.fill_mask(mask);
  std::string forced;
  m.forced(forced, 8);
  std::vector<TokenId> next;
  for (size_t i = 0; i < list.size(); ++i) {
    Matcher copy(m);
    bool accepted = true;
    for (const char c : list[i]) accepted = accepted && copy.accept(std::string_view(&c, 1));
    const bool allowed = (mask[i / 32] >> (i % 32) & 1) != 0;
    CHECK(allowed == accepted, "token {}: the mask says {}, the text {}", i, allowed, accepted);
    const size_t common = std::min(forced.size(), list[i].size());
    CHECK(!accepted || list[i].compare(0, common, forced, 0, common) == 0, "token {} is not '{}'", i, forced);
    if (accepted) next.push_back(static_cast<TokenId>(i));
  }
  CHECK(!next.empty() || m.complete(), "a dead end");
  return next;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::string> list = tokens();
  static const auto vocabulary = std::make_shared<const Vocabulary>(
      list, Vocabulary::Options{.width = static_cast<int>(list.size()), .end_tokens = {}});
  if (size == 0) return 0;
  std::mt19937 random(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    Budget budget({.fuel = 300'000, .bytes = 8 << 20, .time = std::chrono::seconds(20)});
    Matcher m(compile("json_schema", text, {.budget = budget}), vocabulary);
    for (int step = 0; step < 10; ++step) {
      const std::vector<TokenId> next = check(m, list);
      if (next.empty()) break;
      CHECK(m.accept(next[random() % next.size()]), "a token of the mask is not accepted");
    }
  } catch (const GrammarError& e) {
    CHECK(e.what()[0] != '\0', "an error without message");
  }
  return 0;
}
