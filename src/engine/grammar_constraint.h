// Grammars as constraints on the sequences of an engine.
#pragma once

#include <memory>
#include <mutex>

#include "batch/constraint.h"
#include "grammar/compiler.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// Compiles the grammars of requests. Makes the trie of the vocabulary when the first one comes.
class Constraints {
 public:
  // Masks have `width` tokens. The tokenizer must outlive this.
  Constraints(const Tokenizer& tokenizer, int width, std::vector<TokenId> end_tokens);

  struct Result {
    std::unique_ptr<Constraint> constraint;  // null: see `error`
    std::string error;
  };
  // Calls `done` once, at once or later on another thread.
  void compile(const GrammarSpec& grammar, std::function<void(Result)> done);

 private:
  std::shared_ptr<const grammar::Vocabulary> vocabulary();

  const Tokenizer& tokenizer_;
  const int width_;
  const std::vector<TokenId> end_tokens_;
  std::mutex mutex_;
  std::shared_ptr<const grammar::Vocabulary> vocabulary_;
  grammar::Compiler compiler_;
};

}  // namespace sluice
