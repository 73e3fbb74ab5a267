// Text becomes deltas in order; empty pieces give none.
#include "chat/output_parser.h"

#include <gtest/gtest.h>

namespace sluice::output_parser_test {
namespace {

TEST(OutputParser, TextIsText) {
  const auto parser = make_text_parser();
  Event event;
  parser->push("a<think>", event.deltas);
  parser->push("", event.deltas);
  parser->push("b", event.deltas);
  parser->finish(event.deltas);
  EXPECT_EQ(event.deltas.size(), 2u);
  EXPECT_EQ(event_text(event), "a<think>b");
}

TEST(OutputParser, EventTextIsTheTextOnly) {
  Event event;
  event.deltas = {ReasoningDelta{"why"}, TextDelta{"a"}, ToolCallBegin{0, "call-1", "f"}, ToolCallArguments{0, "{}"},
                  TextDelta{"b"}};
  EXPECT_EQ(event_text(event), "ab");
}

}  // namespace
}  // namespace sluice::output_parser_test
