// Free text with tags.
#include <gtest/gtest.h>

#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::structural_tag_test {
namespace {

std::shared_ptr<const Grammar> made(const std::string& tag) {
  Budget budget;
  const auto special = [](std::string_view text) -> std::optional<TokenId> {
    return text == "<|call|>" ? std::optional<TokenId>(1) : std::nullopt;
  };
  return compile("structural_tag", tag, {.budget = budget, .special = special});
}
bool accepts(const std::string& tag, const std::string& text) {
  static const auto tokens = vocabulary_of({"a", ""});
  Matcher m(made(tag), tokens);
  return m.accept(text) && m.complete();
}
std::string formatted(const std::string& format) { return R"({"type":"structural_tag","format":)" + format + "}"; }
std::string error_of(const std::string& tag) {
  try {
    made(tag);
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

const std::string kTags = R"("tags":[
  {"begin":"<f=a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</f>"},
  {"begin":"<f=b>","content":{"type":"any_text"},"end":["</f>","</g>"]}])";

TEST(StructuralTag, TakesTheOlderForm) {
  const std::string tag = R"({"type":"structural_tag","triggers":["<f="],"structures":[
      {"begin":"<f=a>","schema":{"type":"integer"},"end":"</f>"},
      {"begin":"<f=b>","schema":"{\"type\":\"boolean\"}","end":"</f>"}]})";
  EXPECT_TRUE(accepts(tag, "plain text, <f is no trigger"));
  EXPECT_TRUE(accepts(tag, "call <f=a>12</f> and <f=b>true</f>."));
  EXPECT_FALSE(accepts(tag, "call <f=a>true</f>"));
  EXPECT_FALSE(accepts(tag, "call <f=c>1</f>"));
  EXPECT_FALSE(accepts(tag, "call <f=a>12"));
}

TEST(StructuralTag, TriggersTags) {
  const auto tag = [](const std::string& more) {
    return formatted(R"({"type":"triggered_tags","triggers":["<f="],)" + kTags + more + "}");
  };
  EXPECT_TRUE(accepts(tag(""), ""));
  EXPECT_TRUE(accepts(tag(""), "x<f=a>1</f>y<f=b>what ever</g>z"));
  EXPECT_FALSE(accepts(tag(R"(,"at_least_one":true)"), "x"));
  EXPECT_TRUE(accepts(tag(R"(,"at_least_one":true)"), "<f=a>1</f>x"));
  EXPECT_TRUE(accepts(tag(R"(,"stop_after_first":true)"), "x<f=a>1</f>"));
  EXPECT_FALSE(accepts(tag(R"(,"stop_after_first":true)"), "x<f=a>1</f>y"));
  EXPECT_FALSE(accepts(tag(R"(,"excludes":["no"])"), "say no"));
  EXPECT_TRUE(accepts(tag(R"(,"excludes":["no"])"), "say n<f=b>no</f>"));
}

TEST(StructuralTag, EndsFreeTextWhereTheNextElementBegins) {
  const std::string thought = formatted(R"({"type":"sequence","elements":[
      {"type":"tag","begin":"<think>","content":{"type":"any_text"},"end":"</think>"},
      {"type":"any_text"}, {"type":"const_string","value":"###"},
      {"type":"or","elements":[{"type":"regex","pattern":"[0-9]+"},{"type":"grammar","grammar":"root ::= \"n\""}]}]})");
  EXPECT_TRUE(accepts(thought, "<think>so</think>thus ###42"));
  EXPECT_TRUE(accepts(thought, "<think></think>###n"));
  EXPECT_FALSE(accepts(thought, "<think>a</think>thus ###a###n"));
  EXPECT_FALSE(accepts(thought, "<think>a"));
}

TEST(StructuralTag, SeparatesAndRepeats) {
  const std::string list = formatted(R"({"type":"tags_with_separator","separator":",",)" + kTags + "}");
  EXPECT_TRUE(accepts(list, ""));
  EXPECT_TRUE(accepts(list, "<f=a>1</f>,<f=b>x</f>"));
  EXPECT_FALSE(accepts(list, "<f=a>1</f>,"));
  const std::string twice =
      formatted(R"({"type":"repeat","min":1,"max":2,"content":{"type":"const_string","value":"ab"}})");
  EXPECT_TRUE(accepts(twice, "abab"));
  EXPECT_FALSE(accepts(twice, ""));
  EXPECT_FALSE(accepts(twice, "ababab"));
  const std::string rules = formatted(
      R"({"type":"dispatch","loop":false,"rules":[["#",{"type":"regex","pattern":"[a-z]+"}]],"excludes":["!"]})");
  EXPECT_TRUE(accepts(rules, "1 #ab"));
  EXPECT_FALSE(accepts(rules, "1 #ab 2"));
  EXPECT_FALSE(accepts(rules, "1! #ab"));
}

TEST(StructuralTag, TakesSpecialTokens) {
  const auto tokens = vocabulary_of({"a", ""});
  const std::string call = R"({"type":"token","token":"<|call|>"})";
  Matcher m(made(formatted(R"({"type":"token_triggered_tags","trigger_tokens":["<|call|>"],"tags":[{"begin":)" + call +
                           R"(,"content":{"type":"const_string","value":"aa"},"end":""}]})")),
            tokens);
  EXPECT_TRUE(m.accept("text"));
  EXPECT_TRUE(m.accept(TokenId{1}));
  EXPECT_FALSE(m.complete());
  EXPECT_FALSE(m.accept("b"));
  EXPECT_TRUE(m.accept("aa"));
  EXPECT_TRUE(m.complete());
  EXPECT_TRUE(m.accept(" more"));
}

TEST(StructuralTag, RefusesByPath) {
  EXPECT_EQ(error_of("[]"), "structural_tag: expected an object");
  EXPECT_EQ(error_of(formatted(R"({"type":"sequence","elements":[{"type":"any_text","max_tokens":3}]})")),
            "structural_tag.format.elements[0].max_tokens: a limit is not supported; use 'regex'");
  EXPECT_EQ(error_of(formatted(R"({"type":"const_string","valeu":"x"})")),
            "structural_tag.format: unknown field 'valeu'");
  EXPECT_EQ(error_of(formatted(R"({"type":"triggered_tags","triggers":["<g"],)" + kTags + "}")),
            "structural_tag.format.tags[0].begin: begins with none of the triggers");
  EXPECT_EQ(error_of(formatted(R"({"type":"token","token":"<|other|>"})")),
            "structural_tag.format.token: '<|other|>' is not a special token of the model");
  EXPECT_NE(error_of(formatted(R"({"type":"regex","pattern":"("})")).find("structural_tag.format.pattern: "),
            std::string::npos);
  EXPECT_NE(error_of(formatted(R"({"type":"tango"})")).find("(expected one of: any_text, "), std::string::npos);
}

}  // namespace
}  // namespace sluice::grammar::structural_tag_test
