// Ranks on several machines: threads whose machines share no memory but exchange messages by a link. They compute what
// ranks of one machine compute, and notice what happens on other machines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "parallel/collectives.h"
#include "parallel/communicator.h"
#include "sluice/error.h"

namespace sluice::machines_test {
namespace {

using namespace collectives;
using Clock = std::chrono::steady_clock;

// What is between all machines.
class Network {
 public:
  void send(int from, int to, Channel channel, std::span<const std::byte> message) {
    const std::scoped_lock lock(mutex_);
    if (cut_ != from) messages_[{from, to, channel}].emplace_back(message.begin(), message.end());
  }
  std::optional<size_t> receive(int from, int to, Channel channel, std::span<std::byte> buffer) {
    const std::scoped_lock lock(mutex_);
    auto& queue = messages_[{from, to, channel}];
    if (queue.empty()) return std::nullopt;
    const std::vector<std::byte> message = std::move(queue.front());
    queue.pop_front();
    if (message.size() <= buffer.size()) std::ranges::copy(message, buffer.begin());
    return message.size();
  }
  // Nothing that the rank sends from now on arrives.
  void cut(int rank) {
    const std::scoped_lock lock(mutex_);
    cut_ = rank;
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<int, int, Channel>, std::deque<std::vector<std::byte>>> messages_;
  int cut_ = -1;
};

class NetworkLink final : public Link {
 public:
  NetworkLink(std::shared_ptr<Network> network, int rank, int size)
      : network_(std::move(network)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void send(int to, Channel channel, std::span<const std::byte> message) override {
    network_->send(rank_, to, channel, message);
  }
  bool sent(Channel) override { return true; }
  std::optional<size_t> receive(int from, Channel channel, std::span<std::byte> buffer) override {
    return network_->receive(from, rank_, channel, buffer);
  }

 private:
  std::shared_ptr<Network> network_;
  int rank_, size_;
};

// Runs a body on every rank; machines[r] is the machine of rank r.
void on_machines(const std::vector<int>& machines, const std::function<void(Communicator&)>& body,
                 const std::shared_ptr<Network>& network = std::make_shared<Network>()) {
  const int size = static_cast<int>(machines.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      body(*Communicator::connect(std::make_shared<NetworkLink>(network, rank, size), machines, /*processes=*/false));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void all_collectives(Communicator& c) {
  sums_of_many_sizes(c, 20);
  mixed_rounds(c, 200);
  large_messages(c);
  c.leave();
}

TEST(Machines, ComputeWhatOneMachineComputes) {
  for (const std::vector<int>& machines : {std::vector{0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {3, 7, 5}, {0, 0}}) {
    on_machines(machines, all_collectives);
  }
}

// Groups inside of machines and across them; messages between machines and inside of them.
TEST(Machines, GroupsAndMessages) {
  for (const std::vector<int>& machines : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 2, 3}, {0, 1, 1, 1}}) {
    on_machines(machines, [](Communicator& c) {
      groups_and_messages(c, 60);
      c.leave();
    });
  }
}

TEST(Machines, PairsInGroups) {
  for (const std::vector<int>& machines : {std::vector{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 0, 1, 1, 2, 2}}) {
    on_machines(machines, [](Communicator& c) {
      pairs_in_groups(c, 4, 40);
      c.leave();
    });
  }
}

// Calls body on a rank and returns the message of its Error.
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Machines, ARankThatCannotGoOnIsAnErrorOnAll) {
  on_machines({0, 0, 1, 2}, [](Communicator& c) {
    c.barrier();
    const auto begin = Clock::now();
    if (c.rank() == 1) {
      c.fail("its disk is full");
      return;
    }
    EXPECT_EQ(error_of([&] { c.barrier(); }), "rank 1 of 4 was lost: its disk is full");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  });
}

TEST(Machines, ALossIsSeenWithoutACollective) {
  on_machines({0, 1}, [](Communicator& c) {
    c.barrier();
    if (c.rank() == 1) return c.fail("its disk is full");
    const auto begin = Clock::now();
    while (!c.lost() && Clock::now() - begin < std::chrono::seconds(2)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_EQ(c.lost(), "rank 1 of 2 was lost: its disk is full");
  });
}

// A machine that loses its power says nothing.
TEST(Machines, ASilentMachineIsLost) {
  const auto network = std::make_shared<Network>();
  on_machines(
      {0, 1, 1},
      [&](Communicator& c) {
        c.barrier();
        if (c.rank() == 1) network->cut(1);
        if (c.rank() == 0) {
          const auto begin = Clock::now();
          EXPECT_EQ(error_of([&] { c.barrier(); }), "rank 1 of 3 was lost: it was not heard of for 2 s");
          EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4));
        } else {
          EXPECT_THAT(error_of([&] {
                        c.barrier();  // rank 0 is in it
                        c.barrier();
                      }),
                      ::testing::StartsWith("rank 1 of 3 was lost"));
        }
      },
      network);
}

TEST(Machines, RanksThatCallDifferentCollectivesAreAnError) {
  on_machines({0, 1}, [](Communicator& c) {
    std::vector<float> values(static_cast<size_t>(c.rank() + 1));
    EXPECT_THROW(c.all_reduce_sum(values), Error);
  });
}

TEST(Machines, AnUnexpectedMessageIsAnError) {
  on_machines({0, 1}, [](Communicator& c) {
    std::vector<std::byte> message(c.rank() == 0 ? 8 : 9);
    if (c.rank() == 0) return c.send(1, message);
    EXPECT_EQ(error_of([&] { c.receive(0, message); }),
              "rank 0 of 2 was lost: it sends something else than rank 1 expects");
  });
}

// What comes over the network is checked before it is copied.
TEST(Machines, ADamagedMessageIsAnError) {
  for (const size_t bytes : {size_t{0}, size_t{15}, size_t{16}, size_t{40}, size_t{3} << 20}) {
    const auto network = std::make_shared<Network>();
    on_machines(
        {0, 1},
        [&](Communicator& c) {
          c.barrier();
          if (c.rank() == 1) {
            network->send(1, 0, Channel::kAll, std::vector<std::byte>(bytes, std::byte{0xff}));
            c.barrier();  // rank 0 is in it
            EXPECT_THROW(c.barrier(), Error);
          } else {
            EXPECT_THAT(error_of([&] { c.barrier(); }), ::testing::HasSubstr("that are not what 1 ranks show"));
          }
        },
        network);
  }
}

}  // namespace
}  // namespace sluice::machines_test
