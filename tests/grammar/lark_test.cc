// Grammars in Lark's syntax.
#include <gtest/gtest.h>

#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::lark_test {
namespace {

std::shared_ptr<const Grammar> made(const std::string& grammar) {
  Budget budget;
  const auto special = [](std::string_view text) -> std::optional<TokenId> {
    return text == "<|call|>" ? std::optional<TokenId>(1) : std::nullopt;
  };
  return compile("lark", grammar, {.budget = budget, .special = special});
}
bool accepts(const std::string& grammar, const std::string& text) {
  static const auto tokens = vocabulary_of({"a", ""});
  Matcher m(made(grammar), tokens);
  return m.accept(text) && m.complete();
}
std::string error_of(const std::string& grammar) {
  try {
    made(grammar);
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

TEST(Lark, ReadsRulesAndTerminals) {
  const std::string sums = R"g(
// A calculator; both comments
# are comments.
?start: sum -> whole
?sum.2: product
   | sum "+" product   -> add
   | sum "-" product   -> sub

!product: atom | product "*" atom
atom: NUMBER | "-" atom | "(" sum ")" | NAME ["!"]
NAME: /[a-z_]\w*/i
%import common.NUMBER
%import common.WS_INLINE -> BLANK
%ignore BLANK
)g";
  EXPECT_TRUE(accepts(sums, "1 + (2.5e3 -x_1!) * -4"));
  EXPECT_TRUE(accepts(sums, "1 "));
  EXPECT_FALSE(accepts(sums, " 1"));
  EXPECT_FALSE(accepts(sums, "1 +"));
  EXPECT_FALSE(accepts(sums, "1\n"));
}

TEST(Lark, Repeats) {
  EXPECT_TRUE(accepts("start: \"ab\"~2..3", "abab"));
  EXPECT_FALSE(accepts("start: \"ab\"~2..3", "ab"));
  EXPECT_TRUE(accepts("start: \"a\" ~ 2 \"b\"{,2}", "aabb"));
  EXPECT_FALSE(accepts("start: \"a\"{2,}", "a"));
  EXPECT_TRUE(accepts("start: (\"a\" | \"b\")+ [\"c\"]", "abac"));
  EXPECT_TRUE(accepts("start: rule~200\nrule: \"x\" | rule \"y\"", std::string(200, 'x')));
  EXPECT_FALSE(accepts("start: rule~200\nrule: \"x\" | rule \"y\"", std::string(199, 'x')));
}

TEST(Lark, ReadsTerminals) {
  EXPECT_TRUE(accepts("start: \"Straße\"i", "STRAßE"));
  EXPECT_FALSE(accepts("start: \"a\"", "A"));
  EXPECT_TRUE(accepts("start: \"a\"..\"f\" \"\\u00e9\" \"\\x41\\n\"", "céA\n"));
  EXPECT_FALSE(accepts("start: \"a\"..\"f\"", "g"));
  EXPECT_TRUE(accepts("start: /a.b/s", "a\nb"));
  EXPECT_FALSE(accepts("start: /a.b/", "a\nb"));
  EXPECT_TRUE(accepts("start: /\\/[^\\/]+\\//", "/x/"));
  EXPECT_TRUE(accepts("start: A\nA: B+ C\nB: \"b\"\nC: D | \"c\"\nD: \"d\"", "bbd"));
  EXPECT_TRUE(accepts("start: A\nA: /[a-z]+/ & ~(\"if\" | \"for\")", "iff"));
  EXPECT_FALSE(accepts("start: A\nA: /[a-z]+/ & ~(\"if\" | \"for\")", "if"));
  EXPECT_TRUE(accepts("start: A B \".\"\nA[lazy]: /.*\\n/\nB[suffix=\"END\"]: /(.|\\n)*/", "a\nb\nEND."));
  EXPECT_FALSE(accepts("start: A B \".\"\nA[lazy]: /.*\\n/\nB[suffix=\"END\"]: /(.|\\n)*/", "a\nb\nENDEND."));
  EXPECT_TRUE(accepts("start: %regex {\"substring_words\": \"foo bar. baz\"}", "bar. "));
  EXPECT_FALSE(accepts("start: %regex {\"substring_words\": \"foo bar. baz\"}", "oo bar"));
}

TEST(Lark, ImportsCommonTerminals) {
  const auto common = [](const std::string& name, const std::string& text) {
    return accepts("start: " + name + "\n%import common (" + name + ")\n", text);
  };
  EXPECT_TRUE(common("ESCAPED_STRING", R"("a \" \\")"));
  EXPECT_FALSE(common("ESCAPED_STRING", R"("a \")"));
  EXPECT_TRUE(common("SIGNED_NUMBER", "-1.5e+3"));
  EXPECT_TRUE(common("FLOAT", "1."));
  EXPECT_FALSE(common("FLOAT", "1"));
  EXPECT_TRUE(common("CNAME", "_a1"));
  EXPECT_TRUE(common("C_COMMENT", "/* a ** / */"));
  EXPECT_FALSE(common("C_COMMENT", "/* a */ */"));
  EXPECT_TRUE(common("NEWLINE", "\r\n\n"));
}

TEST(Lark, InlinesSchemasAndSpecialTokens) {
  const std::string call = R"(start: <|call|> body <[1]>
body: %json {
  "type": "object", "properties": {"a}": {"type": "integer"}},
  "required": ["a}"], "additionalProperties": false
}
)";
  const auto tokens = vocabulary_of({"a", ""});
  Matcher m(made(call), tokens);
  EXPECT_FALSE(m.accept("{"));
  EXPECT_TRUE(m.accept(TokenId{1}));
  EXPECT_TRUE(m.accept(R"({"a}": 12})"));
  EXPECT_FALSE(m.complete());
  EXPECT_TRUE(m.accept(TokenId{1}));
  EXPECT_TRUE(m.complete());
}

TEST(Lark, RefusesByPlace) {
  EXPECT_EQ(error_of("start: x\n"), "grammar, line 1, column 8: the rule 'x' is not defined");
  EXPECT_EQ(error_of("start: X\n"), "grammar, line 1, column 8: the terminal 'X' is not defined");
  EXPECT_EQ(error_of("begin: \"x\"\n"), "grammar: there is no rule 'start'");
  EXPECT_EQ(error_of("start: A\nA: \"a\" B\nB: A"), "grammar, line 3, column 4: the terminal 'A' contains itself");
  EXPECT_EQ(error_of("start: A\nA: start"), "grammar, line 2, column 4: the rule 'start' cannot be part of a terminal");
  EXPECT_EQ(error_of("start: list{\"a\"}\n"), "grammar, line 1, column 13: templates are not supported");
  EXPECT_EQ(error_of("start: /a(?=b)/"),
            "grammar, line 1, column 8: anchors, word boundaries and lookaround are not supported");
  EXPECT_EQ(error_of("start: \"a\"\n%declare B"),
            "grammar, line 2, column 1: unknown or unsupported directive (accepted: %ignore, %import)");
  EXPECT_EQ(error_of("start: A\n%import common.B"),
            "grammar, line 2, column 16: the library 'common' has no terminal 'B'");
  EXPECT_EQ(error_of("start[stop=\"x\"]: \"a\""),
            "grammar, line 1, column 7: the attribute 'stop' is not supported (accepted: lazy, suffix=, capture)");
  for (const char* broken :
       {"start: (\"a\"", "start: \"a", "start: /a", "start \"a\"", "start: \"a\"~3..1", "start: %json {", "start: <x",
        "start: \"a\" )", "start: \"b\"..\"a\"", "start: \"a\"\nstart: \"b\"", "%", ""}) {
    EXPECT_NE(error_of(broken), "") << broken;
  }
  EXPECT_NE(error_of("start: " + std::string(100000, '(')), "");
  EXPECT_NE(error_of("start: " + std::string(100000, '~')), "");
}

}  // namespace
}  // namespace sluice::grammar::lark_test
