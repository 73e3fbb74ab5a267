#include "engine/grammar_constraint.h"

#include <algorithm>

#include "base/log.h"
#include "chat/answer_parser.h"
#include "engine/thinking_budget.h"

namespace sluice {
namespace {

constexpr size_t kMostForcedBytes = 256;  // of one jump

class GrammarConstraint final : public Constraint {
 public:
  GrammarConstraint(grammar::Matcher matcher, const grammar::Grammar* grammar,
                    std::shared_ptr<const ForcedTokens> tokens)
      : matcher_(std::move(matcher)), grammar_(grammar), tokens_(std::move(tokens)) {}

  std::unique_ptr<Constraint> copy() const override { return std::make_unique<GrammarConstraint>(*this); }
  const void* group() const override { return grammar_; }

  // Without memory no token is allowed, which ends this request with an error and no other.
  void fill_mask(std::span<uint32_t> words) const override {
    try {
      matcher_.fill_mask(words);
    } catch (const std::exception& e) {
      log::error("a grammar's mask: {}", e.what());
      std::ranges::fill(words, 0);
    }
  }
  bool accept(TokenId token) override {
    try {
      if (!matcher_.accept(token)) return false;
      ended_ = matcher_.ended();
      return true;
    } catch (const std::exception& e) {
      log::error("a grammar's step: {}", e.what());
      return false;
    }
  }
  bool ended() const override { return ended_; }
  void forced(std::span<const TokenId> tokens, int most, std::vector<TokenId>& next) const override {
    try {
      std::string text;
      matcher_.forced(text, kMostForcedBytes);
      if (text.empty()) return;
      grammar::Matcher after = matcher_;
      const bool ends = after.accept(text) && after.ended();
      tokens_->append(tokens, text, ends, most, next);
    } catch (const std::exception& e) {  // the tokens are sampled one by one then
      log::error("a grammar's forced text: {}", e.what());
    }
  }

 private:
  grammar::Matcher matcher_;
  const grammar::Grammar* grammar_;
  std::shared_ptr<const ForcedTokens> tokens_;
  bool ended_ = false;
};

// The grammar of the whole answer. The grammars of some calls have thoughts themselves.
GrammarSpec with_thought(GrammarSpec grammar, const Request& request) {
  const ReasoningSyntax* syntax = reasoning_syntax(request.reasoning_syntax);
  if (syntax == nullptr || (grammar.kind == "tool_calls" && !syntax->tools.empty())) return grammar;
  grammar.text = after_thought_grammar(syntax->name, request.thought, grammar.kind, grammar.text);
  grammar.kind = "after_thought";
  return grammar;
}

}  // namespace

Constraints::Constraints(const Tokenizer& tokenizer, int width, std::vector<TokenId> end_tokens)
    : tokenizer_(tokenizer),
      width_(width),
      end_tokens_(std::move(end_tokens)),
      compiler_({.threads = 2, .special = [&tokenizer](std::string_view text) -> std::optional<TokenId> {
                   // Other tokens have a text, by which grammars know them.
                   const std::optional<TokenId> id = tokenizer.token_id(text);
                   return id && tokenizer.is_special(*id) ? id : std::nullopt;
                 }}) {}

Constraints::Tables Constraints::tables() {
  const std::scoped_lock lock(mutex_);
  if (!tables_.vocabulary) {
    const int known = std::min(width_, tokenizer_.vocab_size());
    std::vector<std::string> tokens(static_cast<size_t>(known));
    for (TokenId id = 0; id < known; ++id) {
      if (!tokenizer_.is_special(id)) tokens[static_cast<size_t>(id)] = tokenizer_.token_bytes(id);
    }
    for (const TokenId id : end_tokens_) {
      if (id >= 0 && id < known) tokens[static_cast<size_t>(id)].clear();
    }
    auto vocabulary = std::make_shared<const grammar::Vocabulary>(
        tokens, grammar::Vocabulary::Options{.width = width_, .end_tokens = end_tokens_});
    tables_ = {std::move(vocabulary), std::make_shared<const ForcedTokens>(tokenizer_, std::move(tokens))};
  }
  return tables_;
}

void Constraints::make(const Request& request, std::function<void(Result)> done) {
  const ReasoningSyntax* syntax = reasoning_syntax(request.reasoning_syntax);
  if (request.thinking_token_budget && syntax != nullptr) {
    const ThinkingBudget budget{.tokenizer = tokenizer_,
                                .syntax = *syntax,
                                .end = tokenizer_.encode(thought_end(*syntax), false),
                                .tokens = *request.thinking_token_budget,
                                .width = width_};
    done = [budget = std::make_shared<const ThinkingBudget>(budget), start = request.thought,
            done = std::move(done)](Result result) {
      if (result.error.empty()) result.constraint = limit_thinking(budget, start, std::move(result.constraint));
      done(std::move(result));
    };
  }
  if (!request.grammar) return done({});
  compile(with_thought(*request.grammar, request), std::move(done));
}

void Constraints::compile(const GrammarSpec& spec, std::function<void(Result)> done) {
  compiler_.compile(spec.kind, spec.text, [this, done = std::move(done)](const grammar::Compiler::Result& result) {
    if (!result.grammar) return done({nullptr, result.error});
    try {
      const Tables shared = tables();
      grammar::Matcher matcher(result.grammar, shared.vocabulary);
      // A grammar's first mask is often its slowest, and no step waits for it here. Later ones find it in the tables.
      std::vector<uint32_t> mask((static_cast<size_t>(width_) + 31) / 32);
      matcher.fill_mask(mask);
      done({std::make_unique<GrammarConstraint>(std::move(matcher), result.grammar.get(), shared.forced), ""});
    } catch (const grammar::GrammarError& e) {
      done({nullptr, e.what()});
    } catch (const std::bad_alloc&) {
      done({nullptr, "there is no memory for its masks"});
    }
  });
}

}  // namespace sluice
