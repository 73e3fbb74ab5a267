// Calls of MiniMax-M1: JSON in lines.
#include <gtest/gtest.h>

#include "chat/tools/testing.h"

namespace sluice::tool_testing::minimax_test {
namespace {

TEST(Minimax, LinesAreParsed) {
  expect_parsed(
      "minimax",
      {{"Ok.\n<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n{\"name\": \"g\", \"arguments\": {}}\n"
        "</tool_calls>",
        {"Ok.", {{"f", "{\"a\": 1}"}, {"g", "{}"}}}},
       {"<tool_calls>\nnone\n</tool_calls>", {"<tool_calls>\nnone\n</tool_calls>", {}}}});
  expect_round_trip("minimax");
}

TEST(Minimax, IsFoundInTemplates) {
  EXPECT_EQ(find_tool_syntax("<beginning_of_sentence>ai <tool_calls>{{ arguments }}"), tool_syntax("minimax"));
  EXPECT_EQ(find_tool_syntax("<tool_calls>{{ arguments }}"), tool_syntax("jamba"));
}

}  // namespace
}  // namespace sluice::tool_testing::minimax_test
