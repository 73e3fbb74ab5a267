// The greedy tokens of a golden, checked in few passes over the text and its continuation.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/runner.h"
#include "golden/arch_golden.h"

namespace sluice {

// If each token of the continuation has the largest logit after those before it, greedy decoding generates it. One pass
// checks many tokens, but not of texts whose length gives them other rotations.
inline void expect_greedy_tokens(Runner& runner, const LoadPlan& plan, int block_size, const ArchGolden& golden) {
  const auto rotation = [&](size_t length) {
    return plan.shape.rope_class ? plan.shape.rope_class(static_cast<int>(length)) : 0;
  };
  for (const std::string index : {"0", "1"}) {
    std::vector<int32_t> tokens = golden.ids("ids_" + index);
    size_t length = tokens.size();  // of the next text whose continuation is checked
    for (const int32_t token : golden.ids("gen_" + index)) tokens.push_back(token);
    while (length < tokens.size()) {
      const size_t first = length;
      while (length < tokens.size() && rotation(length) == rotation(first)) ++length;
      const auto text = std::span(std::as_const(tokens)).first(length - 1);
      for_each_logits(runner, plan, block_size, text, 64, [&](int position, std::span<const float> row) {
        const auto next = static_cast<size_t>(position) + 1;
        if (next < first) return;
        const auto got = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
        EXPECT_EQ(got, tokens[next]) << "sample " << index << " after " << next << " tokens";
      });
    }
  }
}

}  // namespace sluice
