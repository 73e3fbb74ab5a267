// The open connections of a server: how many there are, how many each address has, and which of them give way to a new
// connection when the server is full.
#pragma once

#include <array>
#include <boost/asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>

namespace sluice::server {

class Connection;

class ConnectionTable {
 public:
  // IPv4 address, or the /64 network of an IPv6 address: its owner has all addresses of that network.
  using Network = std::array<uint8_t, 16>;

  enum class Place {
    kNormal,
    kReserve,         // the server is full: only essential requests (health, metrics) are answered
    kAddressReserve,  // the address has too many connections: the same
    kNone,            // the connection must be dropped
  };

  struct Limits {
    int connections = 0;
    int reserve = 64;     // connections above the limit, for essential requests
    int per_address = 0;  // connections of one network; 0: half of `connections`, loopback addresses have no limit
  };

  // A connection's part of the table. The connection owns it.
  struct Entry {
    Entry(Connection* owner, Place seat, const Network& peer) : connection(owner), place(seat), network(peer) {}
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    Connection* const connection;
    const Place place;
    const Network network;

   private:
    friend class ConnectionTable;
    // Hold the nodes while they are in no list of the table, so that moving them allocates nothing.
    std::list<Entry*> own{this}, own_member{this};
    std::list<Entry*>::iterator node = own.begin(), member = own_member.begin();
    bool waiting = false, closing = false, added = false;
  };

  static Network network_of(const boost::asio::ip::address& address);

  explicit ConnectionTable(const Limits& limits) : limits_(limits) {}

  // Decides about a new connection. When the server is full, the connection that has waited longest for a request is
  // closed, and the new one takes its place. Connections that are being closed do not count. One call at a time.
  Place place_for(const boost::asio::ip::address& address);

  // A new connection waits.
  void add(Entry& entry);
  void remove(Entry& entry) noexcept;
  // A waiting connection has no request in progress and may be closed for another one.
  void set_waiting(Entry& entry, bool waiting) noexcept;
  // The connection is closed, and will be removed.
  void set_closing(Entry& entry) noexcept;

  int open() const;
  // Connections that are being closed. While there are many, no new ones should be accepted: each has a descriptor.
  int closing() const;
  void for_each(const std::function<void(Connection&)>& visit);  // under the table's lock

 private:
  // The normal places, or the reserve.
  struct Part {
    std::list<Entry*> waiting{};  // the longest-waiting connection first
    int connections = 0;          // without those that are being closed
    int closing = 0;
  };
  Part& part_of(const Entry& entry) { return entry.place == Place::kNormal ? normal_ : reserve_; }
  bool close_longest(Part& part);
  void begin_closing(Entry& entry, Part& part) noexcept;

  const Limits limits_;
  mutable std::mutex mutex_;
  std::list<Entry*> entries_;  // all, the oldest first
  Part normal_, reserve_;
  std::map<Network, int> networks_;  // connections of each
};

}  // namespace sluice::server
