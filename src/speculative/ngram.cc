#include "speculative/ngram.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "speculative/drafter.h"

namespace sluice {
namespace {

// How many tokens before `a` equal those before `b` > a, up to `most`.
int64_t common_end(std::span<const TokenId> text, int64_t a, int64_t b, int64_t most) {
  const int64_t end = std::min(a, most);
  int64_t n = 0;
  while (n < end && text[static_cast<size_t>(a - 1 - n)] == text[static_cast<size_t>(b - 1 - n)]) ++n;
  return n;
}

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(const SpeculativeOptions& options) : options_(options) {}
  void begin(std::span<const TokenId> text, int most, std::vector<TokenId>& draft) override {
    draft_ngram(options_, text, most, draft);
  }

 private:
  const SpeculativeOptions options_;
};

void complete_ngram(SpeculativeOptions& o) {
  constexpr int kUsualLookup = 5;  // vLLM's default
  if (o.tokens == 0) refuse_speculative_config("num_speculative_tokens is missing (expected an integer)");
  if (o.shortest == 0) o.shortest = o.longest > 0 ? o.longest : kUsualLookup;
  if (o.longest == 0) o.longest = o.shortest;
  if (o.shortest <= o.longest) return;
  refuse_speculative_config(fmt::format("prompt_lookup_min {} is above prompt_lookup_max {}", o.shortest, o.longest));
}

const DraftMethod ngram{.name = "ngram",
                        .keys = {"prompt_lookup_min", "prompt_lookup_max"},
                        .complete = complete_ngram,
                        .make = [](const SpeculativeOptions& options, const DraftModelRunner&) {
                          return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>(options));
                        }};
const Registry<DraftMethod> ngram_registered{ngram};

}  // namespace

void draft_ngram(const SpeculativeOptions& options, std::span<const TokenId> text, int most,
                 std::vector<TokenId>& draft) {
  const auto size = static_cast<int64_t>(text.size());
  int64_t match = options.shortest - 1, next = 0;  // tokens that match, and where the text goes on behind them
  for (int64_t at = size - 1; at > match && match < options.longest; --at) {
    const int64_t common = common_end(text, at, size, options.longest);
    if (common > match) match = common, next = at;
  }
  if (next == 0) return;
  const int64_t count = std::min<int64_t>(most, options.tokens);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t from = next + i;
    draft.push_back(from < size ? text[static_cast<size_t>(from)] : draft[static_cast<size_t>(from - size)]);
  }
}

}  // namespace sluice
