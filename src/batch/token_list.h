// A short list of tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "sluice/request.h"

namespace sluice {

// What a sequence gets from one step: nearly always one token, which needs no memory besides the list itself.
class TokenList {
 public:
  using value_type = TokenId;
  using const_iterator = const TokenId*;

  void push_back(TokenId token) {
    if (size_ < kFew) {
      few_[size_] = token;
    } else {
      if (size_ == kFew) more_ = std::make_unique<std::vector<TokenId>>(few_.begin(), few_.end());
      more_->push_back(token);
    }
    ++size_;
  }
  uint32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const TokenId* begin() const { return size_ <= kFew ? few_.data() : more_->data(); }
  const TokenId* end() const { return begin() + size_; }
  TokenId operator[](uint32_t i) const { return begin()[i]; }

 private:
  static constexpr uint32_t kFew = 1;

  uint32_t size_ = 0;
  std::array<TokenId, kFew> few_{};
  std::unique_ptr<std::vector<TokenId>> more_;  // all tokens, if there are more than kFew
};

}  // namespace sluice
