#include "scheduler/session_texts.h"

#include <utility>

namespace sluice {

void SessionTexts::keep(const std::string& session, SessionText text) {
  end(session);
  tokens_ += static_cast<int64_t>(text.tokens.size());
  by_session_[session] = texts_.emplace(texts_.end(), session, std::move(text));
  while (tokens_ > most_tokens_) end(std::string(texts_.front().first));
}

const SessionText* SessionTexts::find(const std::string& session) const {
  const auto found = by_session_.find(session);
  return found == by_session_.end() ? nullptr : &found->second->second;
}

void SessionTexts::end(const std::string& session) {
  const auto found = by_session_.find(session);
  if (found == by_session_.end()) return;
  tokens_ -= static_cast<int64_t>(found->second->second.tokens.size());
  texts_.erase(found->second);
  by_session_.erase(found);
}

void SessionTexts::clear() {
  texts_.clear();
  by_session_.clear();
  tokens_ = 0;
}

}  // namespace sluice
