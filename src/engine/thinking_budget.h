// Ends a thought that has used up its budget: forces the tokens of its end.
#pragma once

#include <memory>
#include <vector>

#include "batch/constraint.h"
#include "chat/reasoning_syntax.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// What the constraints of an engine's choices share. The tokenizer must outlive them.
struct ThinkingBudget {
  const Tokenizer& tokenizer;
  const ReasoningSyntax& syntax;
  std::vector<TokenId> end;  // tokens that end a thought
  int tokens = 0;            // of a thought, at most
  int width = 0;             // tokens of a mask
};

// A constraint that adds the budget to `inner`, which may be null. A token counts if the thought goes on before and
// after it, so that marks that are tokens do not. The end waits while a character is incomplete, and while `inner` does
// not allow it.
std::unique_ptr<Constraint> limit_thinking(std::shared_ptr<const ThinkingBudget> budget, ThoughtStart start,
                                           std::unique_ptr<Constraint> inner);

}  // namespace sluice
