// The normalizer "Precompiled": SentencePiece's table of replacements, a double-array trie over UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/normalizer.h"

namespace sluice::tokenizer {

class Charsmap {
 public:
  // `blob` is the table in SentencePiece's format. Throws std::invalid_argument that states the problem.
  explicit Charsmap(std::string_view blob);

  struct Match {
    size_t size;  // number of bytes of the text to replace
    std::string_view replacement;
  };
  // Find the shortest or the longest key that the text begins with.
  std::optional<Match> shortest(std::string_view text) const { return find(text, /*longest=*/false); }
  std::optional<Match> longest(std::string_view text) const { return find(text, /*longest=*/true); }

 private:
  std::optional<Match> find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;  // units of the trie
  std::string replacements_;
};

std::unique_ptr<Normalizer> load_precompiled_charsmap(const Field& field);

}  // namespace sluice::tokenizer
