// Reads tekken.json as mistral-common does.
#include "tokenizer/files/tekken.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/files/json_field.h"
#include "tokenizer/special_tokens.h"

namespace sluice::tokenizer {
namespace {

// The special tokens of files without a list of them.
constexpr auto kFirstSpecial = std::to_array<std::string_view>({"<unk>",
                                                                "<s>",
                                                                "</s>",
                                                                "[INST]",
                                                                "[/INST]",
                                                                "[AVAILABLE_TOOLS]",
                                                                "[/AVAILABLE_TOOLS]",
                                                                "[TOOL_RESULTS]",
                                                                "[/TOOL_RESULTS]",
                                                                "[TOOL_CALLS]",
                                                                "[IMG]",
                                                                "<pad>",
                                                                "[IMG_BREAK]",
                                                                "[IMG_END]",
                                                                "[PREFIX]",
                                                                "[MIDDLE]",
                                                                "[SUFFIX]",
                                                                "[SYSTEM_PROMPT]",
                                                                "[/SYSTEM_PROMPT]",
                                                                "[TOOL_CONTENT]"});
// Versions of the format that have no list.
constexpr auto kWithoutList = std::to_array<std::string_view>({"v1", "v2", "v3", "v7"});

Json read_special(const Field& top, int64_t count) {
  Json tokens = Json::array();
  const auto add = [&](std::string_view text, bool control) {
    tokens.push_back(added_token(static_cast<TokenId>(tokens.size()), text, control));
  };
  if (const auto list = top.find("special_tokens")) {
    list->for_each([&](const Field& token) {
      const auto rank = token.at("rank").integer(0, kMaxTokenId);
      if (rank != std::ssize(tokens)) token.at("rank").corrupt(fmt::format("expected {}", tokens.size()));
      add(token.at("token_str").string(), token.at("is_control").boolean());
    });
  } else {
    const Field version = top.at("config").at("version");
    if (std::ranges::find(kWithoutList, version.string()) == kWithoutList.end()) {
      top.unsupported("this version of the format needs 'special_tokens'");
    }
    for (const std::string_view text : kFirstSpecial) add(text, true);
  }
  if (std::ssize(tokens) > count) {
    top.corrupt(fmt::format("has {} special tokens, but default_num_special_tokens is {}", tokens.size(), count));
  }
  while (std::ssize(tokens) < count) add(fmt::format("<SPECIAL_{}>", tokens.size()), true);
  return tokens;
}

}  // namespace

Tekken read_tekken(const Json& json, const std::string& path) {
  const Field top(json, path), config = top.at("config"), vocab = top.at("vocab");
  const int64_t special = config.at("default_num_special_tokens").integer(0, kMaxTokenId);
  const int64_t size = config.at("default_vocab_size").integer(special, kMaxTokenId) - special;
  Tekken out{.model = nullptr,
             .pattern = std::string(config.at("pattern").string()),
             .added_tokens = read_special(top, special)};
  RankedBpe bpe{.byte_level = true};
  bpe.ranks.assign(static_cast<size_t>(special), RankedBpe::kNotMerged);
  bpe.whole.assign(static_cast<size_t>(special), false);
  std::string spelling;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (rank >= std::ssize(vocab.json())) vocab.corrupt("has fewer tokens than default_vocab_size says");
    const Field token = vocab.element(static_cast<size_t>(rank));
    if (token.at("rank").integer(0, kMaxTokenId) != rank) token.at("rank").corrupt(fmt::format("expected {}", rank));
    const Field text = token.at("token_bytes");
    const auto bytes = decode_base64(text.string());
    if (!bytes || bytes->empty()) text.corrupt("expected bytes in base64");
    spelling.clear();
    append_byte_level(spelling, *bytes);
    if (bpe.vocab.find(spelling)) text.corrupt("the token appears twice");
    bpe.vocab.add(spelling, static_cast<TokenId>(special + rank));
    bpe.ranks.push_back(static_cast<uint32_t>(rank));
    bpe.whole.push_back(true);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (bpe.vocab.find(byte_level_character(static_cast<unsigned char>(byte)))) continue;
    vocab.corrupt(fmt::format("has no token for byte {}", byte));
  }
  out.model = make_ranked_bpe(std::move(bpe), path);
  return out;
}

}  // namespace sluice::tokenizer
