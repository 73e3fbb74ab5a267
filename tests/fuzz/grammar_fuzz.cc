// Fuzzes the compilers of grammars with arbitrary text: the result is a GrammarError, or a grammar whose masks are
// right. The first byte chooses the kind of grammar, the second one a walk through it.
#include <array>

#include "base/check.h"
#include "base/registry.h"
#include "grammar/grammar.h"
#include "grammar/source.h"

namespace {

using namespace sluice;
using namespace sluice::grammar;

constexpr int kTokens = 256;  // one per byte
constexpr int kSteps = 24;

const std::shared_ptr<const Vocabulary>& bytes() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < kTokens; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return std::make_shared<const Vocabulary>(tokens, Vocabulary::Options{.width = kTokens, .end_tokens = {}});
  }();
  return vocabulary;
}

// Takes allowed tokens only. Each must be accepted, and no prefix may be a dead end.
void walk(const std::shared_ptr<const Grammar>& grammar, uint32_t seed) {
  Matcher matcher(grammar, bytes());
  for (int step = 0; step < kSteps; ++step) {
    std::array<uint32_t, kTokens / 32> mask{};
    matcher.fill_mask(mask);
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < kTokens; ++token) {
      const bool is_allowed = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
      if (is_allowed) allowed.push_back(token);
      Matcher copy = matcher;
      if (token % 16 == step % 16) CHECK(copy.accept(token) == is_allowed, "token {} in step {}", token, step);
    }
    if (allowed.empty()) {
      CHECK(matcher.complete(), "a dead end in step {}", step);
      return;
    }
    seed = seed * 1664525 + 1013904223;
    CHECK(matcher.accept(allowed[(seed >> 8) % allowed.size()]), "an allowed token is refused in step {}", step);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto kinds = Registry<SourceKind>::all();
  const SourceKind& kind = *kinds[data[0] % kinds.size()];
  try {
    Budget budget({.fuel = 300'000, .bytes = 16 << 20, .time = std::chrono::milliseconds(500)});
    const CompileContext context{.budget = budget};
    walk(compile(kind.name, {reinterpret_cast<const char*>(data) + 2, size - 2}, context), data[1]);
  } catch (const GrammarError& e) {
    CHECK(e.what()[0] != '\0', "{}", kind.name);
  }
  return 0;
}
