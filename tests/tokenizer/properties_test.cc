// Tests properties for any text and any tokens: round trips, streaming, agreement with simple reference versions.
#include <gtest/gtest.h>

#include <fstream>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "tokenizer/models/merge_queue.h"
#include "tokenizer/regex.h"
#include "tokenizer/token_matcher.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace sluice::properties_test {
namespace {

using Ids = std::vector<TokenId>;
using Random = std::mt19937_64;

const std::string kGoldens = SLUICE_SOURCE_DIR "/tests/goldens/";
constexpr const char* kKinds[] = {"bytelevel-deepseek", "bytelevel-digits-added", "bytelevel-gpt2",
                                  "bytelevel-llama3",   "bytelevel-o200k",        "spm-bpe-gemma",
                                  "spm-bpe-llama2",     "spm-metaspace-first",    "unigram-t5",
                                  "unigram-xlmr",       "wordpiece-bert-cased",   "wordpiece-bert-uncased"};

std::unique_ptr<Tokenizer> golden(const std::string& kind) {
  return Tokenizer::from_file(kGoldens + "tokenizer/" + kind + "/tokenizer.json");
}

std::string random_text(Random& random, int characters) {
  std::string text;
  for (int i = 0; i < characters; ++i) {
    char32_t c = 0;
    switch (random() % 6) {
      case 0:
        c = random() % 0x80;
        break;
      case 1:
        c = random() % 0x800;
        break;
      case 2:
        c = U"  \n\t'a1."[random() % 8];
        break;
      case 3:
        c = 'a' + random() % 26;
        break;
      case 4:
        c = random() % 0xD800;
        break;
      default:
        c = 0xE000 + random() % (0x110000 - 0xE000);
        break;
    }
    append_utf8(text, c);
  }
  return text;
}

std::string stream(const Tokenizer& t, const Ids& ids, bool skip) {
  StreamDecoder decoder(t, skip);
  std::string text;
  for (const TokenId id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(tokenizer::valid_utf8_prefix(piece), piece.size());
    text += piece;
  }
  return text + decoder.finish();
}

TEST(TokenizerProperties, ByteLevelRoundTrip) {
  Random random(1);
  for (const char* kind : {"bytelevel-deepseek", "bytelevel-gpt2", "bytelevel-llama3", "bytelevel-o200k"}) {
    const auto t = golden(kind);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random, static_cast<int>(random() % 60));
      EXPECT_EQ(t->decode(t->encode(text, false), false), text) << kind;
    }
  }
}

TEST(TokenizerProperties, StreamsDecodeAsWholesDo) {
  Random random(2);
  for (const char* kind : kKinds) {
    const auto t = golden(kind);
    for (int i = 0; i < 300; ++i) {
      Ids ids(random() % 40);
      const int range = i % 2 ? 300 : t->vocab_size() + 2;  // the low ids are single bytes in most vocabularies
      for (TokenId& id : ids) id = static_cast<TokenId>(random() % range) - 1;
      for (const bool skip : {false, true}) EXPECT_EQ(stream(*t, ids, skip), t->decode(ids, skip)) << kind;
    }
  }
}

TEST(TokenizerProperties, StreamsHoldBackIncompleteCharacters) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR "/models/minnow-6m/tokenizer.json");
  const Ids ids = t->encode("🙂", false);
  ASSERT_GT(ids.size(), 1u);
  StreamDecoder decoder(*t, false);
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.push(ids[i]), "");
  EXPECT_EQ(decoder.push(ids.back()), "🙂");
  EXPECT_EQ(decoder.push(ids.front()), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(TokenizerProperties, TokenBytesMakeUpTheText) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR "/models/minnow-6m/tokenizer.json");
  const std::string text = "Ünï 🙂 <|im_start|> words\n";
  std::string bytes;
  for (const TokenId id : t->encode(text)) bytes += t->token_bytes(id);
  EXPECT_EQ(bytes, text);
  const auto llama = golden("spm-bpe-llama2");
  EXPECT_EQ(llama->token_bytes(*llama->token_id("<0xE4>")), "\xE4");
  EXPECT_EQ(llama->token_bytes(*llama->token_id("▁")), " ");
  const auto bert = golden("wordpiece-bert-cased");
  EXPECT_EQ(bert->token_bytes(*bert->token_id("##s")), "s");
  EXPECT_EQ(bert->token_bytes(*bert->token_id("the")), " the");
}

TEST(TokenizerProperties, VocabularyAnswers) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR "/models/minnow-6m/tokenizer.json");
  EXPECT_EQ(t->kind(), "byte-level BPE");
  EXPECT_EQ(t->vocab_size(), 8192);
  EXPECT_EQ(t->token_id("<|im_end|>"), 8179);
  EXPECT_EQ(t->token_text(8179), "<|im_end|>");
  EXPECT_TRUE(t->is_special(8179));
  EXPECT_FALSE(t->is_special(100));
  EXPECT_EQ(t->token_id("no such token"), std::nullopt);
  EXPECT_EQ(golden("spm-bpe-gemma")->kind(), "BPE with byte fallback");
  EXPECT_EQ(golden("unigram-t5")->kind(), "Unigram");
  EXPECT_EQ(golden("wordpiece-bert-cased")->kind(), "WordPiece");
}

// "\n" + "\n\n" scores the same as "\n\n" + "\n", except for the last bit of the sum. The IDs are those of Hugging Face
// tokenizers 0.23.
TEST(TokenizerProperties, TiesFallAsInTheReference) {
  const std::vector<TokenId> want = {1242, 281, 19, 22, 21, 76};
  EXPECT_EQ(golden("unigram-t5")->encode("alone\n\n\ndef", false), want);
}

TEST(TokenizerProperties, MinnowPrompts) {
  const auto t = Tokenizer::from_file(SLUICE_SOURCE_DIR "/models/minnow-6m/tokenizer.json");
  std::ifstream lines(kGoldens + "minnow/minnow-6m-greedy.jsonl");
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json v = parse_json(line);
    const auto prompt = v["prompt_ids"].get<Ids>();
    EXPECT_EQ(t->encode(t->decode(prompt, false)), prompt);
    EXPECT_EQ(t->decode(v["greedy_ids"].get<Ids>(), true), v["greedy_text"].get<std::string>());
  }
  EXPECT_GT(count, 0);
}

TEST(MergeQueue, OrdersByRankThenPosition) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    tokenizer::MergeQueue queue;
    std::priority_queue<std::pair<uint32_t, uint32_t>, std::vector<std::pair<uint32_t, uint32_t>>, std::greater<>> slow;
    for (int i = 0; i < 300; ++i) {
      if (random() % 3 != 0) {
        const auto rank = static_cast<uint32_t>(random() % 10);
        const auto position = static_cast<uint32_t>(random() % 50);
        queue.push(rank, position);
        slow.emplace(rank, position);
        continue;
      }
      const auto top = queue.pop();
      ASSERT_EQ(top.has_value(), !slow.empty());
      if (!top) continue;
      ASSERT_EQ(std::pair(top->rank, top->position), slow.top());
      slow.pop();
    }
  }
}

TEST(TokenMatcher, FindsTheLeftmostLongest) {
  Random random(4);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    tokenizer::TokenMatcher matcher;
    std::vector<std::string> words;
    for (size_t i = 0; i < 1 + random() % 6; ++i) words.push_back(word(5));
    for (size_t i = 0; i < words.size(); ++i) matcher.add(words[i], static_cast<int32_t>(i));
    matcher.build();
    const std::string text = word(40);
    std::vector<std::pair<size_t, std::string>> expected;
    for (size_t at = 0; at < text.size();) {
      std::string longest;
      for (const std::string& w : words) {
        if (w.size() > longest.size() && text.compare(at, w.size(), w) == 0) longest = w;
      }
      if (!longest.empty()) expected.emplace_back(at, longest);
      at += std::max<size_t>(longest.size(), 1);
    }
    std::vector<std::pair<size_t, std::string>> found;
    for (const auto& match : matcher.find_all(text)) {
      found.emplace_back(match.begin, text.substr(match.begin, match.end - match.begin));
      EXPECT_EQ(words[match.value], found.back().second);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(LossyUtf8, ReplacesAsRustDoesInAnyChunks) {
  const std::pair<std::string, std::string> cases[] = {{"a\xff"
                                                        "b",
                                                        "a\uFFFDb"},
                                                       {"\xe4\xb8", "\uFFFD"},
                                                       {"\xe4\xb8x", "\uFFFDx"},
                                                       {"\xf0\x9f\x99\x82", "🙂"},
                                                       {"\xf0\x9f\xf0\x9f\x99\x82", "\uFFFD🙂"},
                                                       {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
                                                       {"\xc0\x80", "\uFFFD\uFFFD"},
                                                       {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"}};
  for (const auto& [bytes, expected] : cases) {
    for (size_t chunk = 1; chunk <= bytes.size(); ++chunk) {
      tokenizer::LossyUtf8 utf8;
      std::string out;
      for (size_t at = 0; at < bytes.size(); at += chunk) utf8.push(bytes.substr(at, chunk), out);
      utf8.finish(out);
      EXPECT_EQ(out, expected);
    }
  }
}

}  // namespace
}  // namespace sluice::properties_test
