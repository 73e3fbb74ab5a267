// What every kind of connection between ranks must do: bodies that all ranks run at the same time.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "parallel/communicator.h"

namespace sluice::collectives {

// The values that a rank adds in a round. Their sizes differ, so that the order of a sum shows in its bits.
inline std::vector<float> values_of(int rank, int round, size_t size) {
  std::mt19937 random(static_cast<unsigned>(1000 * round + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = std::exp(4 * normal(random)) * (normal(random) < 0 ? -1.0f : 1.0f);
  return values;
}

inline bool same_bytes(const void* a, const void* b, size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

inline void expect_sums(Communicator& c, int round, size_t size) {
  std::vector<float> mine = values_of(c.rank(), round, size), want = values_of(0, round, size);
  for (int rank = 1; rank < c.size(); ++rank) {
    const std::vector<float> more = values_of(rank, round, size);
    for (size_t i = 0; i < size; ++i) want[i] += more[i];
  }
  c.all_reduce_sum(mine);
  EXPECT_TRUE(same_bytes(mine.data(), want.data(), size * sizeof(float))) << "round " << round << ", size " << size;
}

inline void sums_of_many_sizes(Communicator& c, int rounds = 300) {
  std::mt19937 random(7);
  const size_t most = Communicator::kOutboxBytes / sizeof(float);
  int round = 0;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{17}, most - 1, most, most + 1, 2 * most + 333}) {
    expect_sums(c, round++, size);
  }
  for (int i = 0; i < rounds; ++i) expect_sums(c, round++, random() % 5000);
}

inline void mixed_rounds(Communicator& c, int rounds = 4000) {
  std::mt19937 random(11);  // equal on all ranks
  for (int round = 0; round < rounds; ++round) {
    const size_t size = random() % 100;
    const int root = static_cast<int>(random() % static_cast<unsigned>(c.size()));
    switch (random() % 4) {
      case 0:
        c.barrier();
        break;
      case 1:
        expect_sums(c, round, size);
        break;
      case 2: {
        const std::vector<std::byte> mine(size, static_cast<std::byte>(c.rank() + round));
        std::vector<std::byte> all(size * static_cast<size_t>(c.size()));
        c.all_gather(mine, all);
        for (size_t i = 0; i < all.size(); ++i) {
          ASSERT_EQ(all[i], static_cast<std::byte>(static_cast<int>(i / size) + round));
        }
        break;
      }
      default: {
        std::vector<std::byte> message;
        if (c.rank() == root) message.assign(size, static_cast<std::byte>(round));
        c.broadcast(message, root);
        ASSERT_EQ(message, std::vector<std::byte>(size, static_cast<std::byte>(round)));
      }
    }
  }
}

inline void large_messages(Communicator& c) {
  const auto ranks = static_cast<size_t>(c.size());
  for (const size_t size : {Communicator::kOutboxBytes - 9, Communicator::kOutboxBytes - 8, Communicator::kOutboxBytes,
                            3 * Communicator::kOutboxBytes + 5}) {
    std::vector<std::byte> message(3), want(size);
    for (size_t i = 0; i < size; ++i) want[i] = static_cast<std::byte>(i % 251);
    if (c.rank() == 1) message = want;
    c.broadcast(message, 1);
    ASSERT_TRUE(message == want) << size;
    std::vector<std::byte> all(size * ranks);
    c.all_gather(message, all);
    for (size_t rank = 0; rank < ranks; ++rank) ASSERT_TRUE(same_bytes(all.data() + rank * size, want.data(), size));
  }
}

// Two groups of two sum at the same time as messages go between them, and all ranks meet now and then.
inline void groups_and_messages(Communicator& c, int rounds = 200) {
  const int first = c.rank() / 2 * 2, peer = (c.rank() + 2) % 4;
  const std::unique_ptr<Communicator> group = c.group(first, 2);
  EXPECT_EQ(group->rank(), c.rank() - first);
  EXPECT_EQ(group->size(), 2);
  std::mt19937 random(13);  // equal on all ranks
  for (int round = 0; round < rounds; ++round) {
    const size_t size = round % 50 == 7 ? 100'000 : random() % 3000;
    std::vector<float> sum = values_of(c.rank(), round, size), want = values_of(first, round, size);
    group->all_reduce_sum(sum);
    const std::vector<float> second = values_of(first + 1, round, size);
    for (size_t i = 0; i < size; ++i) want[i] += second[i];
    ASSERT_TRUE(same_bytes(sum.data(), want.data(), size * sizeof(float))) << "round " << round;
    c.send(peer, std::as_bytes(std::span(sum)));
    std::vector<float> other(size), expected = values_of(peer / 2 * 2, round, size);
    c.receive(peer, std::as_writable_bytes(std::span(other)));
    const std::vector<float> more = values_of(peer / 2 * 2 + 1, round, size);
    for (size_t i = 0; i < size; ++i) expected[i] += more[i];
    ASSERT_TRUE(same_bytes(other.data(), expected.data(), size * sizeof(float))) << "round " << round;
    if (round % 20 == 0) c.barrier();
  }
}

// Sums of all ranks, of groups and of pairs inside of the groups, in turn.
inline void pairs_in_groups(Communicator& c, int group_size, int rounds = 100) {
  const std::unique_ptr<Communicator> group = c.group(c.rank() / group_size * group_size, group_size);
  const std::unique_ptr<Communicator> pair = group->group(group->rank() / 2 * 2, 2);
  const auto expect_sum = [&](Communicator& ranks, int round, size_t size) {
    const int first = c.rank() - ranks.rank();
    std::vector<float> sum = values_of(c.rank(), round, size), want = values_of(first, round, size);
    ranks.all_reduce_sum(sum);
    for (int other = 1; other < ranks.size(); ++other) {
      const std::vector<float> more = values_of(first + other, round, size);
      for (size_t i = 0; i < size; ++i) want[i] += more[i];
    }
    ASSERT_TRUE(same_bytes(sum.data(), want.data(), size * sizeof(float)))
        << "round " << round << " of " << ranks.size() << " ranks";
  };
  std::mt19937 random(17);  // equal on all ranks
  for (int round = 0; round < rounds; ++round) {
    expect_sum(*pair, round, random() % 3000);
    expect_sum(*group, round, random() % 300);
    if (round % 3 == 0) expect_sum(c, round, random() % 30);
    expect_sum(*pair, round, random() % 30);
  }
}

}  // namespace sluice::collectives
