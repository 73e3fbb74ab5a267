#include <algorithm>
#include <optional>

#include "grammar/compiled.h"

namespace sluice::grammar {

struct Matcher::Impl {
  std::shared_ptr<const Grammar> grammar;
  std::shared_ptr<const Vocabulary> vocabulary;
  std::optional<Grammar::Slot> slot = std::nullopt;

  ~Impl() {
    if (slot) grammar->close(*slot);
  }
};

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary)
    : impl_(new Impl{std::move(grammar), std::move(vocabulary)}) {
  impl_->slot = impl_->grammar->open();
}

Matcher::Matcher(const Matcher& other) : impl_(new Impl{other.impl_->grammar, other.impl_->vocabulary}) {
  impl_->slot = impl_->grammar->copy(*other.impl_->slot);
}

Matcher& Matcher::operator=(const Matcher& other) {
  if (this != &other) *this = Matcher(other);
  return *this;
}

Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

void Matcher::fill_mask(std::span<uint32_t> words) const {
  impl_->grammar->fill_mask(*impl_->slot, impl_->vocabulary, words);
}

bool Matcher::accept(TokenId token) {
  const Vocabulary::Impl& v = impl_->vocabulary->impl();
  if (impl_->grammar->accept_special(*impl_->slot, token)) return true;
  const bool known = token >= 0 && static_cast<size_t>(token) < v.tokens.size();
  if (known && !v.tokens[static_cast<size_t>(token)].empty()) return accept(v.tokens[static_cast<size_t>(token)]);
  const std::vector<TokenId>& ends = v.options.end_tokens;
  return std::find(ends.begin(), ends.end(), token) != ends.end() && complete();
}

bool Matcher::accept(std::string_view bytes) { return impl_->grammar->accept(*impl_->slot, bytes); }
bool Matcher::complete() const { return impl_->grammar->complete(*impl_->slot); }
bool Matcher::ended() const { return impl_->grammar->ended(*impl_->slot); }

void Matcher::forced(std::string& bytes, size_t most) const { impl_->grammar->forced(*impl_->slot, bytes, most); }

}  // namespace sluice::grammar
