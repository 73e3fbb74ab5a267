// Tests tokenizers from GGUF files: the vocabularies of public models with llama.cpp's own vectors (in the folder named
// by SLUICE_GOLDENS), and small ones made in memory.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "sluice/error.h"
#include "tokenizer/files/gguf_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace sluice::gguf_test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  size_t at = 0;
  for (size_t next; (next = text.find(separator, at)) != std::string::npos; at = next + separator.size()) {
    parts.push_back(text.substr(at, next - at));
  }
  parts.push_back(text.substr(at));
  return parts;
}

TEST(GgufTokenizer, AgreesWithTheVectorsOfPublicVocabularies) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (goldens == nullptr) GTEST_SKIP() << "SLUICE_GOLDENS is not set: vocabularies of public models are not checked";
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(goldens) / "gguf_vocab")) {
    if (entry.path().extension() != ".gguf") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++files;
    const auto tokenizer = Tokenizer::open(entry.path().string());
    const std::vector<std::string> texts = split(read(entry.path().string() + ".inp"), "\n__ggml_vocab_test__\n");
    const std::vector<std::string> lines = split(read(entry.path().string() + ".out"), "\n");
    ASSERT_GT(texts.size(), 40u);
    ASSERT_GE(lines.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::istringstream numbers(lines[i]);
      const std::vector<TokenId> expected{std::istream_iterator<TokenId>(numbers), {}};
      EXPECT_EQ(tokenizer->encode(texts[i], false), expected) << "text " << i << ": " << texts[i];
    }
  }
  EXPECT_GE(files, 5);
}

// Metadata for a test; the values point into `storage`.
class Metadata {
 public:
  GgufMetadata data;

  Metadata& text(const std::string& key, const std::string& value) {
    data.values[key] = {.type = GgufValue::Type::kString, .texts = {keep(value)}};
    return *this;
  }
  Metadata& texts(const std::string& key, const std::vector<std::string>& values) {
    GgufValue value{.type = GgufValue::Type::kString, .array = true, .count = values.size()};
    for (const std::string& one : values) value.texts.push_back(keep(one));
    data.values[key] = std::move(value);
    return *this;
  }
  template <class T>
  Metadata& array(const std::string& key, GgufValue::Type type, const std::vector<T>& values) {
    const std::string_view bytes = keep({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
    data.values[key] = {
        .type = type, .array = true, .count = values.size(), .data = reinterpret_cast<const std::byte*>(bytes.data())};
    return *this;
  }
  Metadata& integer(const std::string& key, uint32_t value) {
    array<uint32_t>(key, GgufValue::Type::kUint32, {value});
    data.values[key].array = false;
    return *this;
  }

 private:
  std::string_view keep(const std::string& text) { return *storage_.emplace_back(std::make_unique<std::string>(text)); }
  std::vector<std::unique_ptr<std::string>> storage_;
};

Metadata byte_level() {
  Metadata m;
  m.data.file = "test.gguf";
  m.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  m.texts("tokenizer.ggml.tokens", {"a", "b", "Ġ", "ab", "Ġa", "<|end|>", "<tool>"});
  m.array<int32_t>("tokenizer.ggml.token_type", GgufValue::Type::kInt32, {1, 1, 1, 1, 1, 3, 4});
  m.texts("tokenizer.ggml.merges", {"a b", "Ġ a"});
  return m;
}

std::unique_ptr<const Tokenizer::Parts> read(const Metadata& m) { return tokenizer::read_gguf_tokenizer(m.data); }

template <class F>
void expect_error(F&& f, ErrorCode code, const std::string& part) {
  try {
    f();
    ADD_FAILURE() << "no error that says " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code, code) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

// Gemma 4 merges characters, newlines included. It spells spaces like SentencePiece, and characters that the vocabulary
// lacks as bytes.
TEST(GgufTokenizer, MergesCharacters) {
  Metadata m;
  m.data.file = "test.gguf";
  std::vector<std::string> tokens = {"<unk>", "<bos>", "<turn|>", "\u2581", "a", "b", "\u2581a", "ab", "\n", "\n\n"};
  std::vector<int32_t> types = {2, 3, 4, 1, 1, 1, 1, 1, 1, 1};
  const auto first_byte = static_cast<TokenId>(tokens.size());
  for (int byte = 0; byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof text, "<0x%02X>", byte);
    tokens.emplace_back(text);
    types.push_back(6);
  }
  m.text("tokenizer.ggml.model", "gemma4").texts("tokenizer.ggml.tokens", tokens);
  m.array<int32_t>("tokenizer.ggml.token_type", GgufValue::Type::kInt32, types);
  m.texts("tokenizer.ggml.merges", {"\u2581 a", "a b", "\n \n"});
  m.integer("tokenizer.ggml.bos_token_id", 1).integer("tokenizer.ggml.unknown_token_id", 0);
  const auto parts = read(m);
  std::string text = "ab a\n\n\u00e9";
  parts->normalizer->apply(text);
  std::vector<TokenId> ids;
  parts->model->tokenize({.text = text, .spans = {{0, text.size()}}}, ids);
  EXPECT_EQ(ids, (std::vector<TokenId>{7, 6, 9, first_byte + 0xc3, first_byte + 0xa9}));
  tokenizer::Decoding decoding = parts->decoder.start();
  for (const TokenId id : ids) decoding.push(*parts->decoder_input(id));
  decoding.finish();
  EXPECT_EQ(decoding.take(), "ab a\n\n\u00e9");
}

TEST(GgufTokenizer, NamesWhatItRefuses) {
  EXPECT_NE(read(byte_level()), nullptr);
  const auto refused = [](auto&& change, ErrorCode code, const std::string& part) {
    Metadata m = byte_level();
    change(m);
    expect_error([&] { read(m); }, code, part);
  };
  using enum ErrorCode;
  refused([](Metadata& m) { m.text("tokenizer.ggml.model", "rwkv"); }, kUnsupportedModel, "tokenizer.ggml.model");
  refused([](Metadata& m) { m.text("tokenizer.ggml.pre", "nonsense"); }, kUnsupportedModel, "nonsense");
  refused([](Metadata& m) { m.data.values.erase("tokenizer.ggml.tokens"); }, kUnsupportedModel, "tokens");
  refused([](Metadata& m) { m.texts("tokenizer.ggml.tokens", {"a", "a"}); }, kCorruptFile, "twice");
  refused([](Metadata& m) { m.texts("tokenizer.ggml.tokens", {"a", "\xff"}); }, kCorruptFile, "UTF-8");
  refused([](Metadata& m) { m.array<int32_t>("tokenizer.ggml.token_type", GgufValue::Type::kInt32, {1}); },
          kCorruptFile, "token_type");
  refused(
      [](Metadata& m) {
        m.integer("tokenizer.ggml.bos_token_id", 99)
            .array<uint8_t>("tokenizer.ggml.add_bos_token", GgufValue::Type::kBool, {1})
            .data.values["tokenizer.ggml.add_bos_token"]
            .array = false;
      },
      kCorruptFile, "bos_token_id");
  refused([](Metadata& m) { m.text("tokenizer.ggml.model", "llama"); }, kCorruptFile, "scores");
}

}  // namespace
}  // namespace sluice::gguf_test
