// Counts the tokens of a thought and masks all but its end where there are too many.
#include "engine/thinking_budget.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

// How many bytes of a character are missing after `bytes`, if `missing` were before.
int missing_bytes(int missing, std::string_view bytes) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    const bool continues = (byte & 0xc0) == 0x80;
    if (continues) {
      missing = std::max(missing - 1, 0);
    } else {
      missing = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : byte >= 0xc0 ? 1 : 0;
    }
  }
  return missing;
}

class BudgetConstraint final : public Constraint {
 public:
  BudgetConstraint(std::shared_ptr<const ThinkingBudget> budget, ThoughtStart start, std::unique_ptr<Constraint> inner)
      : budget_(std::move(budget)), tracker_(budget_->syntax, start), inner_(std::move(inner)) {
    may_force();
  }

  std::unique_ptr<Constraint> copy() const override { return std::make_unique<BudgetConstraint>(*this); }

  void fill_mask(std::span<uint32_t> words) const override {
    if (inner_) {
      inner_->fill_mask(words);
    } else {
      std::ranges::fill(words, 0);
      const auto width = static_cast<size_t>(budget_->width);
      std::fill_n(words.begin(), width / 32, ~uint32_t{0});
      if (width % 32 != 0) words[width / 32] = (uint32_t{1} << (width % 32)) - 1;
    }
    if (!forces_) return;
    const auto token = static_cast<size_t>(budget_->end[next_]);
    const uint32_t bit = uint32_t{1} << (token % 32);
    if ((words[token / 32] & bit) == 0) return;
    std::ranges::fill(words, 0);
    words[token / 32] = bit;
  }

  bool accept(TokenId token) override {
    if (inner_ && !inner_->accept(token)) return false;
    const bool was_inside = tracker_.inside();
    const std::string bytes = budget_->tokenizer.token_bytes(token);
    tracker_.push(bytes);
    missing_ = missing_bytes(missing_, bytes);
    if (forces_) {
      forces_ = token == budget_->end[next_] && ++next_ < budget_->end.size();
      in_vain_ = next_ == budget_->end.size() && tracker_.inside();
    } else if (was_inside && tracker_.inside()) {
      ++used_;
    }
    if (!forces_) may_force();
    return true;
  }

  bool ended() const override { return inner_ && inner_->ended(); }
  bool decides_end() const override { return inner_ && inner_->decides_end(); }
  const void* group() const override { return inner_ ? inner_->group() : nullptr; }
  // Text within a thought counts against the budget, so that it is sampled.
  void forced(std::span<const TokenId> tokens, int most, std::vector<TokenId>& next) const override {
    if (inner_ && !tracker_.inside()) inner_->forced(tokens, most, next);
  }

 private:
  void may_force() {
    forces_ = !in_vain_ && tracker_.inside() && used_ >= budget_->tokens && missing_ == 0;
    next_ = 0;
  }

  std::shared_ptr<const ThinkingBudget> budget_;
  ThoughtTracker tracker_;
  ConstraintState inner_;
  int used_ = 0;     // tokens of thought so far
  int missing_ = 0;  // bytes of the last character
  size_t next_ = 0;  // token of the end that comes next
  bool forces_ = false;
  bool in_vain_ = false;  // all tokens of the end came, and the thought goes on: this vocabulary cannot write it
};

}  // namespace

std::unique_ptr<Constraint> limit_thinking(std::shared_ptr<const ThinkingBudget> budget, ThoughtStart start,
                                           std::unique_ptr<Constraint> inner) {
  return std::make_unique<BudgetConstraint>(std::move(budget), start, std::move(inner));
}

}  // namespace sluice
