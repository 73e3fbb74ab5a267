// The constraints on the sequences of an engine: grammars, and limits of thoughts.
#pragma once

#include <memory>
#include <mutex>

#include "batch/constraint.h"
#include "grammar/compiler.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// Makes the constraints of requests: compiles their grammars, which begin after a thought, and adds the budget of the
// thought. Makes the trie of the vocabulary when the first one comes.
class Constraints {
 public:
  // Masks have `width` tokens. The tokenizer must outlive this.
  Constraints(const Tokenizer& tokenizer, int width, std::vector<TokenId> end_tokens);

  struct Result {
    std::unique_ptr<Constraint> constraint;
    std::string error;  // not empty: there is no constraint
  };
  static bool needed(const Request& request) { return request.grammar || request.thinking_token_budget; }
  // Calls `done` once, at once or later on another thread.
  void make(const Request& request, std::function<void(Result)> done);

 private:
  void compile(const GrammarSpec& grammar, std::function<void(Result)> done);
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

  const Tokenizer& tokenizer_;
  const int width_;
  const std::vector<TokenId> end_tokens_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  grammar::Compiler compiler_;
};

}  // namespace sluice
