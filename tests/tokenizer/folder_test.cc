// Tests Tokenizer::open: every kind of tokenizer file against its own library, and the files next to it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "sluice/error.h"
#include "support/temp_folder.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/files/published_patterns.h"
#include "tokenizer/files/sentencepiece_file.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vectors.h"

namespace sluice::folder_test {
namespace {

using sluice::testing::TempFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

const std::string kGoldens = SLUICE_SOURCE_DIR "/tests/goldens/";

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::string error_of(const std::string& path, ErrorCode code) {
  try {
    Tokenizer::open(path);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    return e.what();
  }
  return "was read";
}

class TokenizerFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerFiles, AreReadAsTheirLibrariesDo) {
  const std::string folder = kGoldens + "tokenizer_files/" + GetParam();
  const auto tokenizer = Tokenizer::open(folder);
  std::ifstream lines(folder + "/vectors.jsonl");
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json v = parse_vector(line);
    const auto ids = v["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(v["text"].get<std::string>(), false), ids) << v["text"];
    EXPECT_EQ(tokenizer->decode(ids, true), v["decoded"].get<std::string>()) << v["text"];
    StreamDecoder stream(*tokenizer, true);
    std::string text;
    for (const TokenId id : ids) text += stream.push(id);
    EXPECT_EQ(text + stream.finish(), v["decoded"].get<std::string>()) << v["text"];
  }
  EXPECT_GE(count, 100);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerFiles,
                         ::testing::Values("sentencepiece-bpe", "sentencepiece-bpe-user-defined",
                                           "sentencepiece-unigram", "tiktoken-kimi", "tiktoken-llama3",
                                           "tiktoken-qwen"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// Splits tokenizer.json into the files from which it was made.
TEST(TokenizerFolder, VocabularyAndMerges) {
  const std::string golden = kGoldens + "tokenizer/bytelevel-gpt2/";
  const Json json = parse_json(read(golden + "tokenizer.json"));
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
  }
  for (const auto& [vocab_name, merges_name] : {std::pair("vocab.json", "merges.txt"), {"encoder.json", "vocab.bpe"}}) {
    const TempFolder folder;
    folder.write(vocab_name, json["model"]["vocab"].dump());
    folder.write(merges_name, merges);
    folder.write("added_tokens.json", R"({"<|endoftext|>": 0})");
    folder.write("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})");
    folder.write("tokenizer_config.json", R"({"tokenizer_class": "GPT2TokenizerFast"})");
    const auto tokenizer = Tokenizer::open(folder.path().string());
    EXPECT_TRUE(tokenizer->is_special(0));
    std::ifstream lines(golden + "vectors.jsonl");
    for (std::string line; std::getline(lines, line);) {
      const Json v = parse_vector(line);
      EXPECT_EQ(tokenizer->encode(v["text"].get<std::string>()), v["ids"].get<Ids>()) << v["text"];
    }
  }
}

TEST(TokenizerFolder, WordPieceVocabulary) {
  for (const bool cased : {false, true}) {
    const std::string golden =
        kGoldens + (cased ? "tokenizer/wordpiece-bert-cased/" : "tokenizer/wordpiece-bert-uncased/");
    const Json json = parse_json(read(golden + "tokenizer.json"));
    std::vector<std::string> lines(json["model"]["vocab"].size());
    for (const auto& [token, id] : json["model"]["vocab"].items()) lines.at(id.get<size_t>()) = token;
    const TempFolder folder;
    folder.write("vocab.txt", fmt::format("{}\n", fmt::join(lines, "\n")));
    folder.write("tokenizer_config.json",
                 fmt::format(R"({{"tokenizer_class": "BertTokenizer", "do_lower_case": {}}})", !cased));
    const auto tokenizer = Tokenizer::open(folder.path().string());
    std::ifstream vectors(golden + "vectors.jsonl");
    for (std::string line; std::getline(vectors, line);) {
      const Json v = parse_vector(line);
      EXPECT_EQ(tokenizer->encode(v["text"].get<std::string>()), v["ids"].get<Ids>()) << v["text"];
      EXPECT_EQ(tokenizer->decode(v["ids"].get<Ids>(), true), v["decoded_skip_special"].get<std::string>());
    }
  }
}

TEST(TokenizerFolder, Llama3AsTiktoken) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (goldens == nullptr) GTEST_SKIP() << "SLUICE_GOLDENS is not set";
  const std::string source = fmt::format("{}/llama3_bpe/", goldens);
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string lines;
  const Json encoder = parse_json(read(source + "encoder.json"));
  for (const auto& [token, id] : encoder.items()) {
    const std::string bytes = *tokenizer::byte_level_bytes(token);
    for (size_t i = 0; i < bytes.size(); i += 3) {
      uint32_t group = 0;
      for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? bytes[i + k] & 0xff : 0);
      for (size_t k = 0; k < 4; ++k) lines += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
    }
    lines += fmt::format(" {}\n", id.get<int>());
  }
  const TempFolder folder;
  folder.write("tokenizer.model", lines);
  const auto tokenizer = Tokenizer::open(folder.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), 128256);
  EXPECT_THAT(tokenizer->encode("<|start_header_id|>user<|eot_id|>"), ElementsAre(128000, 128006, 882, 128009));
  const std::string inputs = read(source + "vectors.inp");
  std::ifstream outputs(source + "vectors.out");
  size_t begin = 0, count = 0;
  for (std::string line; std::getline(outputs, line); ++count) {
    const size_t end = inputs.find("\n__ggml_vocab_test__\n", begin);
    std::istringstream numbers(line);
    Ids ids;
    for (TokenId id; numbers >> id;) ids.push_back(id);
    const std::string text = inputs.substr(begin, end - begin);
    EXPECT_EQ(tokenizer->encode(text, false), ids) << text;
    begin = end + 21;
  }
  EXPECT_GT(count, 40u);
}

// Creates a model folder with the tokens that a test adds.
class SentencePieceFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("tokenizer.model", read(kGoldens + "tokenizer_files/sentencepiece-bpe/tokenizer.model"));
  }
  std::unique_ptr<Tokenizer> open(const std::string& config = "{}") {
    folder_.write("tokenizer_config.json", config);
    return Tokenizer::open(folder_.path().string());
  }
  std::string refusal(const std::string& config, ErrorCode code = ErrorCode::kUnsupportedModel) {
    folder_.write("tokenizer_config.json", config);
    return error_of(folder_.path().string(), code);
  }
  TempFolder folder_;
};

TEST_F(SentencePieceFolder, EndsAsTheClassHasThem) {
  const Ids hello = open()->encode("hello", false);
  const auto with = [&](std::optional<TokenId> before, std::optional<TokenId> after) {
    Ids ids = hello;
    if (before) ids.insert(ids.begin(), *before);
    if (after) ids.push_back(*after);
    return ids;
  };
  EXPECT_EQ(open()->encode("hello"), with(1, {}));
  EXPECT_EQ(open(R"({"tokenizer_class": "LlamaTokenizerFast", "add_eos_token": true})")->encode("hello"), with(1, 2));
  EXPECT_EQ(open(R"({"tokenizer_class": "T5Tokenizer"})")->encode("hello"), with({}, 2));
  EXPECT_EQ(open(R"({"tokenizer_class": "OtherTokenizer", "add_bos_token": false})")->encode("hello"), hello);
  EXPECT_THAT(refusal(R"({"tokenizer_class": "OtherTokenizer"})"), HasSubstr("'OtherTokenizer'"));
  EXPECT_THAT(refusal(R"({"tokenizer_class": "XLMRobertaTokenizer", "add_bos_token": true})"),
              HasSubstr("'XLMRobertaTokenizer'"));
}

TEST_F(SentencePieceFolder, SpecialTokensInText) {
  const auto tokenizer = open(R"({"bos_token": "<s>", "pad_token": "[PAD]", "additional_special_tokens": ["<|im_end|>"],
      "added_tokens_decoder": {"1": {"content": "<s>", "special": true}, "900": {"content": "<tool>", "special": false}}})");
  EXPECT_EQ(tokenizer->token_id("<tool>"), 900);
  EXPECT_EQ(tokenizer->token_id("[PAD]"), 901);
  EXPECT_EQ(tokenizer->token_id("<|im_end|>"), 902);
  EXPECT_TRUE(tokenizer->is_special(902));
  EXPECT_FALSE(tokenizer->is_special(900));
  EXPECT_THAT(tokenizer->encode("<s><tool></s>", false), ElementsAre(1, 900, 2));
}

// The dummy prefix comes before every stretch of text, before the first one, or before none.
TEST_F(SentencePieceFolder, DummyPrefix) {
  const auto count = [&](const std::string& config) {
    const auto tokenizer = open(config);
    int prefixed = 0;
    for (const TokenId id : tokenizer->encode("ba</s>ba", false))
      prefixed += tokenizer->token_text(id).starts_with("\u2581");
    return prefixed;
  };
  EXPECT_EQ(count("{}"), 2);
  EXPECT_EQ(count(R"({"legacy": false})"), 1);
  EXPECT_EQ(count(R"({"add_prefix_space": false})"), 0);
}

TEST(TokenizerFolder, ConfigBesideTokenizerJson) {
  const TempFolder folder;
  folder.write("tokenizer.json", read(kGoldens + "tokenizer/bytelevel-gpt2/tokenizer.json"));
  const int size = Tokenizer::open(folder.path().string())->vocab_size();
  folder.write(
      "tokenizer_config.json",
      R"({"eos_token": "<|endoftext|>", "additional_special_tokens": ["<|a|>", {"content": "<|b|>", "lstrip": true}]})");
  const auto tokenizer = Tokenizer::open(folder.path().string());
  EXPECT_EQ(tokenizer->vocab_size(), size + 2);
  EXPECT_THAT(tokenizer->encode("<|a|>  <|b|><|endoftext|>"), ElementsAre(size, size + 1, 0));
}

TEST(TokenizerFolder, WhatIsNotThereIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(error_of(folder.path().string(), ErrorCode::kNotFound),
              AllOf(HasSubstr("tokenizer.json"), HasSubstr("merges.txt")));
  folder.write("vocab.json", "{}");
  EXPECT_THAT(error_of(folder.path().string(), ErrorCode::kNotFound), HasSubstr(folder.path().string()));
  folder.write("unknown.tiktoken", "IQ== 0\n");
  EXPECT_THAT(error_of(folder.path().string(), ErrorCode::kUnsupportedModel), HasSubstr("unknown.tiktoken"));
}

constexpr int kSpecial = 25;

// Mistral's format with the tokens and the pattern of the golden that has Llama 3's format.
Json tekken() {
  std::istringstream lines(read(kGoldens + "tokenizer_files/tiktoken-llama3/tokenizer.model"));
  Json vocab = Json::array();
  std::string bytes;
  for (int rank = 0; lines >> bytes >> rank;) vocab.push_back({{"rank", rank}, {"token_bytes", bytes}});
  const int size = kSpecial + static_cast<int>(vocab.size());
  vocab.push_back({{"rank", vocab.size()}, {"token_bytes", "enp6enp6enp6"}});  // beyond default_vocab_size
  return {{"config",
           {{"pattern", std::string(tokenizer::kCl100kPattern)},
            {"default_vocab_size", size},
            {"default_num_special_tokens", kSpecial},
            {"version", "v7"}}},
          {"vocab", std::move(vocab)}};
}

TEST(TokenizerFolder, Tekken) {
  const TempFolder folder;
  folder.write("tekken.json", tekken().dump());
  const auto tokenizer = Tokenizer::open(folder.path().string());
  std::ifstream vectors(kGoldens + "tokenizer_files/tiktoken-llama3/vectors.jsonl");
  for (std::string line; std::getline(vectors, line);) {
    const Json v = parse_vector(line);
    Ids ids = v["ids"].get<Ids>();
    if (std::ranges::any_of(ids, [](TokenId id) { return id >= 700; })) continue;  // Llama's special tokens
    for (TokenId& id : ids) id += kSpecial;
    EXPECT_EQ(tokenizer->encode(v["text"].get<std::string>(), false), ids) << v["text"];
    EXPECT_EQ(tokenizer->decode(ids, true), v["decoded"].get<std::string>()) << v["text"];
  }
  EXPECT_THAT(tokenizer->encode("[INST][/INST]<SPECIAL_24>"), ElementsAre(1, 3, 4, 24));
  EXPECT_TRUE(tokenizer->is_special(24));

  Json listed = tekken();
  listed["special_tokens"] = {{{"rank", 0}, {"token_str", "<unk>"}, {"is_control", true}},
                              {{"rank", 1}, {"token_str", "<s>"}, {"is_control", true}},
                              {{"rank", 2}, {"token_str", "[THINK]"}, {"is_control", false}}};
  listed["config"]["version"] = "v13";
  folder.write("tekken.json", listed.dump());
  const auto other = Tokenizer::open(folder.path().string());
  EXPECT_THAT(other->encode("[THINK]<SPECIAL_3>"), ElementsAre(1, 2, 3));
  EXPECT_EQ(other->decode(Ids{1, 2, 3}, true), "[THINK]");
}

TEST(TokenizerFolder, BrokenTekkenFilesAreNamed) {
  const TempFolder folder;
  const auto refused = [&](const char* pointer, const Json& value, ErrorCode code = ErrorCode::kCorruptFile) {
    Json json = tekken();
    json[Json::json_pointer(pointer)] = value;
    folder.write("tekken.json", json.dump());
    return error_of(folder.path().string(), code);
  };
  EXPECT_THAT(refused("/vocab/5/rank", 6), HasSubstr("vocab[5].rank: expected 5"));
  EXPECT_THAT(refused("/vocab/5/token_bytes", "!"), HasSubstr("vocab[5].token_bytes"));
  EXPECT_THAT(refused("/vocab/5/token_bytes", "AA=="), HasSubstr("twice"));
  EXPECT_THAT(refused("/vocab/5/token_bytes", "enp6enp6enp6"), HasSubstr("no token for byte 5"));
  EXPECT_THAT(refused("/config/default_vocab_size", 100000), HasSubstr("fewer tokens"));
  EXPECT_THAT(refused("/config/default_num_special_tokens", 3), HasSubstr("20 special tokens"));
  EXPECT_THAT(refused("/config/version", "v11", ErrorCode::kUnsupportedModel), HasSubstr("needs 'special_tokens'"));
}

TEST(TokenizerFolder, BrokenTiktokenFilesAreNamed) {
  const std::string good = read(kGoldens + "tokenizer_files/tiktoken-llama3/tokenizer.model");
  const TempFolder folder;
  const auto refused = [&](const std::string& content) {
    folder.write("tokenizer.model", content);
    return error_of(folder.path().string(), ErrorCode::kCorruptFile);
  };
  EXPECT_THAT(refused(good + "IQ== x\n"), HasSubstr("line 701"));
  EXPECT_THAT(refused(good + "!!! 800\n"), HasSubstr("line 701"));
  EXPECT_THAT(refused(good + "IQ== 800\n"), HasSubstr("twice"));
  EXPECT_THAT(refused(good + "enp6enp6enp6 0\n"), HasSubstr("rank 0 appears twice"));
  EXPECT_THAT(refused(good + "enp6enp6enp6 99999999999\n"), HasSubstr("line 701"));
  EXPECT_THAT(refused("IQ== 0\n"), HasSubstr("no token for byte 0"));
}

// A model that is cut anywhere, or has any bit of its first 3000 bytes flipped, gives an error or a working tokenizer.
TEST(TokenizerFolder, BrokenSentencePieceModels) {
  const std::string good = read(kGoldens + "tokenizer_files/sentencepiece-bpe/tokenizer.model");
  EXPECT_THAT(error_of("/dev/null", ErrorCode::kCorruptFile), HasSubstr("no pieces"));
  int failed = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      tokenizer::read_sentencepiece(bytes, "m");
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("m: "));
      ++failed;
    }
  };
  for (size_t size = 0; size < good.size(); size += 7) attempt(good.substr(0, size));
  for (size_t at = 0; at < 3000; ++at) {
    std::string bad = good;
    bad[at] ^= static_cast<char>(1 << at % 8);
    attempt(bad);
  }
  EXPECT_GT(failed, 1000);
}

}  // namespace
}  // namespace sluice::folder_test
