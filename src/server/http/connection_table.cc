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
    return reserve_.connections < limits_.reserve || close_longest(reserve_) ? place : Place::kNone;
  };
  if (const auto found = networks_.find(network_of(address));
      limited && found != networks_.end() && found->second >= per_address) {
    return reserve(Place::kAddressReserve);
  }
  if (normal_.connections < limits_.connections || close_longest(normal_)) return Place::kNormal;
  return reserve(Place::kReserve);
}

bool ConnectionTable::close_longest(Part& part) {
  if (part.waiting.empty()) return false;
  Entry& entry = *part.waiting.front();
  entry.connection->post_close_if_waiting();
  begin_closing(entry, part);
  return true;
}

void ConnectionTable::begin_closing(Entry& entry, Part& part) noexcept {
  if (std::exchange(entry.waiting, false)) entry.own.splice(entry.own.end(), part.waiting, entry.node);
  if (!entry.added || std::exchange(entry.closing, true)) return;
  --part.connections;
  ++part.closing;
}

void ConnectionTable::add(Entry& entry) {
  const std::lock_guard lock(mutex_);
  int& of_network = networks_[entry.network];
  entries_.splice(entries_.end(), entry.own_member, entry.member);
  entry.added = entry.waiting = true;
  ++of_network;
  Part& part = part_of(entry);
  ++part.connections;
  part.waiting.splice(part.waiting.end(), entry.own, entry.node);
}

void ConnectionTable::remove(Entry& entry) noexcept {
  const std::lock_guard lock(mutex_);
  Part& part = part_of(entry);
  begin_closing(entry, part);
  if (!std::exchange(entry.added, false)) return;
  --part.closing;
  entry.own_member.splice(entry.own_member.end(), entries_, entry.member);
  if (const auto found = networks_.find(entry.network); --found->second == 0) networks_.erase(found);
}

void ConnectionTable::set_waiting(Entry& entry, bool waiting) noexcept {
  const std::lock_guard lock(mutex_);
  Part& part = part_of(entry);
  if (entry.closing) {
    if (waiting) return;
    entry.closing = false;  // a request began before the connection was closed
    ++part.connections;
    --part.closing;
  }
  if (std::exchange(entry.waiting, waiting) == waiting) return;
  if (waiting) {
    part.waiting.splice(part.waiting.end(), entry.own, entry.node);
  } else {
    entry.own.splice(entry.own.end(), part.waiting, entry.node);
  }
}

void ConnectionTable::set_closing(Entry& entry) noexcept {
  const std::lock_guard lock(mutex_);
  begin_closing(entry, part_of(entry));
}

int ConnectionTable::closing() const {
  const std::lock_guard lock(mutex_);
  return normal_.closing + reserve_.closing;
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
