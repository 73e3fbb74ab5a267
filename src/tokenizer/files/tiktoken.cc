// Reads tiktoken vocabularies. Patterns and special tokens come from the code published with each model.
#include "tokenizer/files/tiktoken.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/base64.h"
#include "sluice/error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/files/published_patterns.h"

namespace sluice::tokenizer {
namespace {

constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string> llama3_special(int) {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int i = 3; names.size() < 256; ++i) names.push_back(fmt::format("<|reserved_special_token_{}|>", i));
  return names;
}

std::vector<std::string> qwen_special(int) {
  std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 205; ++i) names.push_back(fmt::format("<|extra_{}|>", i));
  return names;
}

std::vector<std::string> kimi_special(int base) {
  std::vector<std::string> names;
  for (int i = 0; i < 256; ++i) names.push_back(fmt::format("<|reserved_token_{}|>", base + i));
  return names;
}

std::vector<std::string> no_special(int) { return {}; }

// An empty name leaves an ID unused.
std::vector<std::string> cl100k_special(int) {
  std::vector<std::string> names(21);
  names[1] = "<|endoftext|>";
  names[2] = "<|fim_prefix|>";
  names[3] = "<|fim_middle|>";
  names[4] = "<|fim_suffix|>";
  names[20] = "<|endofprompt|>";
  return names;
}
std::vector<std::string> o200k_special(int) {
  std::vector<std::string> names(21);
  names[1] = "<|endoftext|>";
  names[20] = "<|endofprompt|>";
  return names;
}
std::vector<std::string> gpt2_special(int) { return {"<|endoftext|>"}; }

const std::vector<TiktokenScheme>& schemes() {
  static const std::vector<TiktokenScheme> all = {
      {.name = "llama-3",
       .files = {"tokenizer.model"},
       .classes = {"PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer"},
       .pattern = kCl100kPattern,
       .prefix = {"<|begin_of_text|>"},
       .special = llama3_special},
      {.name = "qwen",
       .files = {"qwen.tiktoken"},
       .classes = {"QWenTokenizer"},
       .pattern = kQwen2Pattern,
       .nfc = true,
       .special = qwen_special},
      {.name = "kimi",
       .files = {"tiktoken.model"},
       .classes = {"TikTokenTokenizer"},
       .pattern = kKimiPattern,
       .special = kimi_special},
      {.name = "glm-4",
       .classes = {"ChatGLM4Tokenizer"},
       .pattern = kCl100kPattern,
       .prefix = {"[gMASK]", "<sop>"},
       .special = no_special},
      {.name = "cl100k", .files = {"cl100k_base.tiktoken"}, .pattern = kCl100kPattern, .special = cl100k_special},
      {.name = "o200k", .files = {"o200k_base.tiktoken"}, .pattern = kO200kPattern, .special = o200k_special},
      {.name = "gpt-2", .files = {"r50k_base.tiktoken"}, .pattern = kGpt2Pattern, .special = gpt2_special},
  };
  return all;
}

struct Line {
  std::string token;
  TokenId rank;
};

std::optional<Line> parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == 0 || space == std::string_view::npos) return std::nullopt;
  auto token = decode_base64(line.substr(0, space));
  const std::string_view digits = line.substr(space + 1);
  TokenId rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (!token || token->empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (rank < 0 || rank > kMaxTokenId) return std::nullopt;
  return Line{std::move(*token), rank};
}

template <class F>
void for_each_line(std::string_view bytes, F&& f) {
  for (size_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) f(line, number);
  }
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min(bytes.find('\n'), size_t{4096}));
  return parse_line(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line).has_value();
}

const TiktokenScheme& find_tiktoken_scheme(std::string_view file_name, std::string_view tokenizer_class,
                                           const std::string& path) {
  for (const TiktokenScheme& scheme : schemes()) {
    if (std::ranges::count(scheme.classes, tokenizer_class) > 0) return scheme;
  }
  if (tokenizer_class.empty()) {
    for (const TiktokenScheme& scheme : schemes()) {
      if (std::ranges::count(scheme.files, file_name) > 0) return scheme;
    }
  }
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: unknown split pattern for this tiktoken vocabulary "
                                                        "(tokenizer_class '{}' and the file name are not recognized)",
                                                        path, tokenizer_class));
}

TiktokenVocab read_tiktoken(std::string_view bytes, const std::string& path) {
  RankedBpe bpe{.byte_level = true};
  std::string spelling;
  bpe.vocab.reserve(std::ranges::count(bytes, '\n') + 1, bytes.size());
  for_each_line(bytes, [&](std::string_view text, size_t number) {
    const auto fail = [&](std::string_view what) {
      throw Error(ErrorCode::kCorruptFile, fmt::format("{}: line {}: {}", path, number, what));
    };
    const auto line = parse_line(text);
    if (!line) fail("expected a token in base64, a space and its rank");
    if (bpe.vocab.has(line->rank)) fail(fmt::format("rank {} appears twice", line->rank));
    spelling.clear();
    append_byte_level(spelling, line->token);
    if (bpe.vocab.find(spelling)) fail("the token appears twice");
    bpe.vocab.add(spelling, line->rank);
  });
  const int size = bpe.vocab.size();
  for (int byte = 0; byte < 256; ++byte) {
    if (bpe.vocab.find(byte_level_character(static_cast<unsigned char>(byte)))) continue;
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: the vocabulary has no token for byte {}", path, byte));
  }
  bpe.whole.assign(static_cast<size_t>(size), true);
  for (int id = 0; id < size; ++id) bpe.ranks.push_back(static_cast<uint32_t>(id));
  return {make_ranked_bpe(std::move(bpe), path), size};
}

}  // namespace sluice::tokenizer
