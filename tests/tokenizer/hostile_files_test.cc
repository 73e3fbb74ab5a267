// Tests hostile tokenizer.json files: whatever they hold, the error names the file and the field.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "base/json.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace sluice::hostile_files_test {
namespace {

std::string bpe(std::string_view vocab, std::string_view merges = "[]", std::string_view more = "") {
  return fmt::format(R"({{"model":{{"type":"BPE","vocab":{},"merges":{}}}{}}})", vocab, merges, more);
}

std::string with(std::string_view member) { return bpe(R"({"a":0,"b":1,"ab":2})", "[]", fmt::format(",{}", member)); }

struct Case {
  std::string json;
  ErrorCode code;
  std::string part;  // expected part of the message
};

constexpr auto kCorrupt = ErrorCode::kCorruptFile;
constexpr auto kUnsupported = ErrorCode::kUnsupportedModel;

TEST(HostileTokenizerFiles, AreRefusedByName) {
  const Case cases[] = {
      {"", kCorrupt, ""},
      {"[]", kCorrupt, "object"},
      {"{}", kCorrupt, "\"model\" is missing"},
      {"{\"model\":7}", kCorrupt, "model: expected an object"},
      {"{\"model\":{\"type\":7}}", kCorrupt, "model.type: expected a string"},
      {"{\"model\":{\"type\":\"LSTM\"}}", kUnsupported, "LSTM"},
      {"{\"model\":{\"type\":\"BPE\"}}", kCorrupt, "\"vocab\" is missing"},
      {bpe("[]"), kCorrupt, "model.vocab: expected an object"},
      {bpe(R"({"a":-1})"), kCorrupt, "\"a\": -1"},
      {bpe(R"({"a":1.5})"), kCorrupt, "1.5"},
      {bpe(R"({"a":"0"})"), kCorrupt, "model.vocab"},
      {bpe(R"({"a":99999999999999999999})"), kCorrupt, "model.vocab"},
      {bpe(R"({"a":18446744073709551615})"), kCorrupt, "model.vocab"},
      {bpe(R"({"a":2147483647})"), kCorrupt, "2147483647"},
      {bpe(R"({"a":0,"b":0})"), kCorrupt, "share the id 0"},
      {bpe(R"({"a":0,"a":1})"), kCorrupt, "duplicate key"},
      {bpe(R"({"a":0})", R"({})"), kCorrupt, "model.merges: expected an array"},
      {bpe(R"({"a":0})", R"(["a"])"), kCorrupt, "model.merges[0]"},
      {bpe(R"({"a":0})", R"(["a a a"])"), kCorrupt, "model.merges[0]"},
      {bpe(R"({"a":0,"aa":1})", R"(["a a",["a"]])"), kCorrupt, "model.merges[1]"},
      {bpe(R"({"a":0})", R"([["a",0]])"), kCorrupt, "model.merges[0]"},
      {bpe(R"({"a":0})", R"(["a a"])"), kCorrupt, "\"aa\" is not in the vocabulary"},
      {bpe(R"({"a":0})", R"(["a z"])"), kCorrupt, "not in the vocabulary"},
      {R"({"model":{"vocab":{"a":0},"merges":["a a"],"continuing_subword_prefix":"###"}})", kCorrupt, "shorter"},
      {R"({"model":{"vocab":{"a":0},"merges":[],"dropout":0.5}})", kUnsupported, "model.dropout"},
      {R"({"model":{"type":"Unigram","vocab":[]}})", kCorrupt, "empty"},
      {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", kCorrupt, "model.vocab[0]"},
      {R"({"model":{"type":"Unigram","vocab":[["a",1]],"unk_id":1}})", kCorrupt, "model.unk_id"},
      {R"({"model":{"type":"WordPiece","vocab":{}}})", kCorrupt, "unk_token"},
      {R"({"model":{"type":"WordLevel","vocab":{}}})", kCorrupt, "unk_token"},
      {with(R"("version":"2.0")"), kUnsupported, "version"},
      {with(R"("added_tokens":{})"), kCorrupt, "added_tokens: expected an array"},
      {with(R"("added_tokens":[{"id":-1,"content":"x"}])"), kCorrupt, "added_tokens[0].id"},
      {with(R"("added_tokens":[{"id":99999999999,"content":"x"}])"), kCorrupt, "added_tokens[0].id"},
      {with(R"("added_tokens":[{"id":1,"content":"x"}])"), kCorrupt, "\"b\" in the vocabulary"},
      {with(R"("added_tokens":[{"id":9,"content":"x"},{"id":9,"content":"y"}])"), kCorrupt,
       "already assigned to \"x\""},
      {with(R"("added_tokens":[{"id":9,"content":7}])"), kCorrupt, "added_tokens[0].content"},
      {with(R"("added_tokens":[{"id":9,"content":"x","special":1}])"), kCorrupt, "added_tokens[0].special"},
      {with(R"("normalizer":{"type":"Rot13"})"), kUnsupported, "Rot13"},
      {with(R"("normalizer":{})"), kCorrupt, "normalizer: \"type\" is missing"},
      {with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"!"})"), kCorrupt, "charsmap"},
      {with(R"("normalizer":{"type":"Precompiled","precompiled_charsmap":"/////w=="})"), kCorrupt, "beyond its end"},
      {with(R"("normalizer":{"type":"Replace","pattern":{"Regex":"("},"content":""})"), kUnsupported, "pattern.Regex"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"[a"},"behavior":"Removed","invert":false})"),
       kUnsupported, "unclosed class"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"Glob":"*"},"behavior":"Removed","invert":false})"),
       kUnsupported, "pre_tokenizer.pattern"},
      {with(R"("pre_tokenizer":{"type":"Split","pattern":{"String":"x"},"behavior":"Eaten","invert":false})"),
       kUnsupported, "Eaten"},
      {with(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"}]})"), kCorrupt,
       "pre_tokenizer.pretokenizers[0]"},
      {with(R"("pre_tokenizer":{"type":"Morse"})"), kUnsupported, "Morse"},
      {with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"})"), kCorrupt, "exactly one character"},
      {with(R"("pre_tokenizer":{"type":"FixedLength","length":0})"), kCorrupt, "length"},
      {with(R"("post_processor":{"type":"Wrap"})"), kUnsupported, "Wrap"},
      {with(R"("post_processor":{"type":"BertProcessing","cls":["x",99],"sep":["a",0]})"), kCorrupt,
       "id 99 is not in the vocabulary"},
      {with(R"("post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B"}}],"special_tokens":{}})"),
       kCorrupt, "sequence A only"},
      {with(
           R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"S"}}],"special_tokens":{}})"),
       kCorrupt, "\"S\" is missing"},
      {with(R"("decoder":{"type":"Enigma"})"), kUnsupported, "Enigma"},
      {with(R"("decoder":{"type":"Sequence","decoders":[{"type":"Strip","content":"x","start":-1,"stop":0}]})"),
       kCorrupt, "decoder.decoders[0].start"},
  };
  for (const Case& c : cases) {
    try {
      Tokenizer::from_json(c.json, "evil/tokenizer.json");
      ADD_FAILURE() << "loaded: " << c.json;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, c.code) << c.json;
      EXPECT_NE(std::string(e.what()).find("evil/tokenizer.json"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find(c.part), std::string::npos) << c.json << "\n" << e.what();
    }
  }
}

TEST(HostileTokenizerFiles, DeepNestingIsRefused) {
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += R"({"type":"Sequence","normalizers":[)";
  nested += R"({"type":"NFC"})";
  for (int i = 0; i < 10'000; ++i) nested += "]}";
  EXPECT_THROW(Tokenizer::from_json(with("\"normalizer\":" + nested), "t"), Error);
}

TEST(HostileTokenizerFiles, DeepPatternsAreRefused) {
  std::string pattern(5'000, '[');
  pattern += "a" + std::string(5'000, ']');
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  EXPECT_THROW(Tokenizer::from_json(with("\"pre_tokenizer\":" + split.dump()), "t"), Error);
}

TEST(HostileTokenizerFiles, MissingFilesAreNamed) {
  try {
    Tokenizer::from_file("/nowhere/tokenizer.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, kCorrupt);
    EXPECT_NE(std::string(e.what()).find("/nowhere/tokenizer.json"), std::string::npos);
  }
}

TEST(HostileTokenizerFiles, HolesAndEmptyVocabulariesLoad) {
  const auto holes = Tokenizer::from_json(bpe(R"({"a":5,"b":100000})"), "t");
  EXPECT_EQ(holes->vocab_size(), 100001);
  EXPECT_EQ(holes->encode("ab"), (std::vector<TokenId>{5, 100000}));
  EXPECT_EQ(holes->token_text(6), "");
  EXPECT_EQ(holes->token_text(-1), "");
  EXPECT_EQ(holes->token_text(INT32_MAX), "");
  EXPECT_EQ(holes->token_bytes(7), "");
  EXPECT_FALSE(holes->is_special(INT32_MIN));
  const std::vector<TokenId> ids{5, 6, -1, INT32_MAX, INT32_MIN, 100000};
  EXPECT_EQ(holes->decode(ids, false), "a b");
  const auto empty = Tokenizer::from_json(bpe("{}"), "t");
  EXPECT_EQ(empty->vocab_size(), 0);
  EXPECT_TRUE(empty->encode("text that nothing can spell").empty());
}

// The unknown token may take part in merges, and merges may produce tokens out of order.
TEST(HostileTokenizerFiles, OddMergesTerminate) {
  const auto t = Tokenizer::from_json(
      R"({"model":{"vocab":{"a":0,"aa":1,"aaaa":2,"aaa":3},"merges":["aa aa","a a","aa a","a aa"],"unk_token":"a"}})",
      "t");
  for (const int n : {1, 2, 3, 7, 47, 48, 49, 50, 1000}) {
    EXPECT_EQ(t->decode(t->encode(std::string(n, 'b')), false).find('b'), std::string::npos);
  }
}

TEST(HostileRequests, InvalidUtf8IsRefused) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR "/models/minnow-6m/tokenizer.json");
  for (const char* bytes : {"\xff", "abc\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "ok \x80", "\xe4\xb8"}) {
    try {
      t->encode(bytes);
      ADD_FAILURE() << bytes;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    }
  }
}

// A pattern with catastrophic backtracking fails the request instead of hanging.
TEST(HostileRequests, CatastrophicPatternsAreCutOff) {
  const auto t = Tokenizer::from_json(
      with(R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a+)+$b"},"behavior":"Isolated","invert":false})"),
      "t");
  EXPECT_EQ(t->encode("ab").size(), 2u);
  const auto nested = Tokenizer::from_json(
      with(
          R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:(a|aa)+)+[cd]"},"behavior":"Isolated","invert":false})"),
      "t");
  EXPECT_THROW(nested->encode(std::string(100, 'a')), Error);
}

TEST(HostileRequests, DeepBacktrackingHasStackEnough) {
  const auto t = Tokenizer::from_json(
      with(
          R"("pre_tokenizer":{"type":"Split","pattern":{"Regex":"(?:a|b)*c|."},"behavior":"Isolated","invert":false})"),
      "t");
  const std::string text = std::string(1 << 18, 'a') + "c";
  EXPECT_EQ(t->encode(text).size(), text.size() - 1);  // "c" is not in the vocabulary
}

}  // namespace
}  // namespace sluice::hostile_files_test
