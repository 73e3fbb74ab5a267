// Admission of connections and the queues of those that may give way.
#include "server/http/connection_table.h"

#include <algorithm>
#include <utility>

#include "server/http/connection.h"

namespace sluice::server {

ConnectionTable::Network ConnectionTable::network_of(const boost::asio::ip::address& address) {
  Network network{};
  if (address.is_v4()) {
    std::ranges::copy(boost::asio::ip::make_address_v6(boost::asio::ip::v4_mapped, address.to_v4()).to_bytes(),
                      network.begin());
    return network;
  }
  const auto bytes = address.to_v6().to_bytes();
  constexpr size_t kPrefixBytes = 8;
  const size_t kept = address.to_v6().is_v4_mapped() ? bytes.size() : kPrefixBytes;
  std::copy_n(bytes.begin(), kept, network.begin());
  return network;
}

ConnectionTable::Place ConnectionTable::place_for(const boost::asio::ip::address& address) {
  const bool loopback = address.is_loopback() ||
                        (address.is_v6() && address.to_v6().is_v4_mapped() && address.to_v6().to_bytes()[12] == 127);
  const bool limited = limits_.per_address > 0 || !loopback;
  const int per_address = limits_.per_address > 0 ? limits_.per_address : std::max(1, limits_.connections / 2);
  const std::lock_guard lock(mutex_);
  const auto reserve = [&](Place place) {
    if (reserved_ < limits_.reserve || close_longest(reserve_waiting_)) return place;
    return Place::kNone;
  };
  if (const auto found = networks_.find(network_of(address));
      limited && found != networks_.end() && found->second >= per_address) {
    return reserve(Place::kAddressReserve);
  }
  const int normal = static_cast<int>(entries_.size()) - reserved_;
  if (normal < limits_.connections || close_longest(waiting_)) return Place::kNormal;
  return reserve(Place::kReserve);
}

bool ConnectionTable::close_longest(std::list<Entry*>& queue) {
  if (queue.empty()) return false;
  Entry& entry = *queue.front();
  entry.connection->post_close_if_waiting();
  entry.waiting = false;
  entry.own.splice(entry.own.end(), queue, entry.node);
  return true;
}

void ConnectionTable::add(Entry& entry) {
  const std::lock_guard lock(mutex_);
  int& of_network = networks_[entry.network];
  entries_.splice(entries_.end(), entry.own_member, entry.member);
  entry.added = true;
  ++of_network;
  if (entry.place != Place::kNormal) ++reserved_;
}

void ConnectionTable::remove(Entry& entry) noexcept {
  set_waiting(entry, false);
  const std::lock_guard lock(mutex_);
  if (!std::exchange(entry.added, false)) return;
  entry.own_member.splice(entry.own_member.end(), entries_, entry.member);
  if (const auto found = networks_.find(entry.network); --found->second == 0) networks_.erase(found);
  if (entry.place != Place::kNormal) --reserved_;
}

void ConnectionTable::set_waiting(Entry& entry, bool waiting) noexcept {
  const std::lock_guard lock(mutex_);
  if (entry.waiting == waiting) return;
  entry.waiting = waiting;
  std::list<Entry*>& queue = queue_of(entry);
  if (waiting) {
    queue.splice(queue.end(), entry.own, entry.node);
  } else {
    entry.own.splice(entry.own.end(), queue, entry.node);
  }
}

int ConnectionTable::open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(entries_.size());
}

void ConnectionTable::for_each(const std::function<void(Connection&)>& visit) {
  const std::lock_guard lock(mutex_);
  for (const Entry* entry : entries_) visit(*entry->connection);
}

}  // namespace sluice::server
