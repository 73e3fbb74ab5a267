#include "cache/sessions.h"

#include <algorithm>

namespace sluice {

void Sessions::keep(const std::string& name, BlockId last, int rows, Time expires) {
  pool_.pin(last, rows);  // first, as it shares most blocks with what the session had
  end(name);
  Session& session = sessions_[name];
  session = {.last = last, .rows = rows, .expires = expires, .at = by_use_.insert(by_use_.end(), name)};
  by_expiry_.emplace(expires, name);
  keep_to_quota();
}

void Sessions::keep_to_quota() {
  while (pool_.pinned() > most_blocks_) {
    ++displaced_;
    erase(sessions_.find(by_use_.front()));
  }
}

void Sessions::extend(const std::string& name, Time expires) {
  const Found found = sessions_.find(name);
  if (found == sessions_.end() || found->second.expires >= expires) return;
  by_expiry_.erase({found->second.expires, name});
  by_expiry_.emplace(expires, name);
  found->second.expires = expires;
  by_use_.splice(by_use_.end(), by_use_, found->second.at);
}

void Sessions::end(const std::string& name) {
  if (const Found found = sessions_.find(name); found != sessions_.end()) erase(found);
}

void Sessions::end_all() {
  while (!sessions_.empty()) erase(sessions_.begin());
}

void Sessions::expire(Time now) {
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    ++expired_;
    erase(sessions_.find(by_expiry_.begin()->second));
  }
}

std::optional<Sessions::Time> Sessions::next_expiry() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

void Sessions::displace() {
  while (!by_use_.empty() && !pool_.evicts_unpinned()) {
    ++displaced_;
    erase(sessions_.find(by_use_.front()));
  }
}

void Sessions::erase(Found found) {
  const Session session = found->second;
  by_expiry_.erase({session.expires, found->first});
  by_use_.erase(session.at);
  sessions_.erase(found);
  pool_.unpin(session.last, session.rows);
}

}  // namespace sluice
