// Grammars in llama.cpp's syntax.
#include <gtest/gtest.h>

#include "grammar/source.h"
#include "grammar/vocabulary_of.h"

namespace sluice::grammar::gbnf_test {
namespace {

bool accepts(const std::string& grammar, const std::string& text) {
  static const auto tokens = vocabulary_of({"a"});
  Budget budget;
  Matcher m(compile("gbnf", grammar, {.budget = budget}), tokens);
  return m.accept(text) && m.complete();
}

std::string error_of(const std::string& grammar) {
  Budget budget;
  try {
    compile("gbnf", grammar, {.budget = budget});
  } catch (const GrammarError& e) {
    return e.what();
  }
  return "";
}

TEST(Gbnf, ReadsEveryForm) {
  const std::string chess = R"(# moves of chess
root   ::= (
    # the first line
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move   ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
)";
  EXPECT_TRUE(accepts(chess, "1. e4 e5\n2. Nf3 Nc6\n"));
  EXPECT_FALSE(accepts(chess, "1. e4 e5\n2. Zf3 Nc6\n"));
  EXPECT_TRUE(accepts("root ::= [^a-c\\n]{2,3}", "xé"));
  EXPECT_FALSE(accepts("root ::= [^a-c\\n]{2,3}", "xb"));
  EXPECT_TRUE(accepts("root ::= \"\\x41\\u00e9\\U0001F600\" .", "Aé😀z"));
  EXPECT_TRUE(accepts("root ::= a |\n b\na ::= \"a\"\nb ::= \"b\"{,2}", "bb"));
  EXPECT_TRUE(accepts("root ::= item+\nitem ::= \"- \" [^\\r\\n\\x0b]+ \"\\n\"", "- x\n- y\n"));
}

TEST(Gbnf, TakesLeftRecursion) {
  const std::string sums = "root ::= sum\nsum ::= sum \"+\" term | term\nterm ::= [0-9]+ | \"(\" sum \")\"\n";
  EXPECT_TRUE(accepts(sums, "1+(2+3)+4"));
  EXPECT_FALSE(accepts(sums, "1+(2+3"));
}

TEST(Gbnf, RefusesByPlace) {
  EXPECT_EQ(error_of("root ::= x"), "grammar, line 1, column 10: the rule 'x' is not defined");
  EXPECT_EQ(error_of("a ::= \"x\""), "grammar: there is no rule 'root'");
  EXPECT_EQ(error_of("root ::= \"a\nb\""), "grammar, line 1, column 12: a literal does not end");
  EXPECT_NE(error_of("root ::= (\"a\""), "");
  EXPECT_NE(error_of("root ::= [a"), "");
  EXPECT_NE(error_of("root ::= \"a\"{3,1}"), "");
  EXPECT_NE(error_of("root ::= \"a\"{0,9999999999}"), "");
  EXPECT_EQ(error_of("root ::= root"), "no text satisfies the grammar");
  EXPECT_NE(error_of("root ::= " + std::string(100'000, '(')), "");
}

}  // namespace
}  // namespace sluice::grammar::gbnf_test
