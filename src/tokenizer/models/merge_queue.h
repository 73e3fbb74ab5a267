// Orders the merges of a long word in BPE: by rank, then from left to right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tokenizer/flat_map.h"

namespace sluice::tokenizer {

// A priority queue of (rank, position), lowest first. Entries of one rank arrive nearly sorted by position. So each
// rank keeps a list that is sorted when its turn comes; entries that arrive later and out of order go into a heap for
// that rank. A word of n symbols costs little more than n. One binary heap of n entries would cost n log n cache
// misses. The worst case is n log n.
class MergeQueue {
 public:
  struct Entry {
    uint32_t rank;
    uint32_t position;
  };

  void push(uint32_t rank, uint32_t position) {
    uint32_t& index = index_of_rank_[rank];
    if (index == 0) {
      ranks_.emplace_back();
      index = static_cast<uint32_t>(ranks_.size());  // one-based
    }
    Rank& r = ranks_[index - 1];
    if (!r.waiting) {
      r.waiting = true;
      order_.push_back(uint64_t{rank} << 32 | (index - 1));
      std::push_heap(order_.begin(), order_.end(), std::greater<>());
    }
    if (!r.started || r.list.empty() || position >= r.list.back()) {
      r.sorted = r.sorted && (r.list.empty() || position >= r.list.back());
      r.list.push_back(position);
    } else {
      r.late.push_back(position);
      std::push_heap(r.late.begin(), r.late.end(), std::greater<>());
    }
  }

  std::optional<Entry> pop() {
    if (order_.empty()) return std::nullopt;
    const auto rank = static_cast<uint32_t>(order_.front() >> 32);
    Rank& r = ranks_[static_cast<uint32_t>(order_.front())];
    if (!r.started) {
      if (!r.sorted) std::sort(r.list.begin(), r.list.end());
      r.started = true;
    }
    const uint32_t position = r.take();
    if (r.next == r.list.size() && r.late.empty()) {
      r.reset();
      std::pop_heap(order_.begin(), order_.end(), std::greater<>());
      order_.pop_back();
    }
    return Entry{rank, position};
  }

 private:
  struct Rank {
    std::vector<uint32_t> list;  // entries before `next` are taken
    size_t next = 0;
    std::vector<uint32_t> late;  // a heap, lowest first
    bool sorted = true;
    bool started = false;  // sorted, and entries are being taken
    bool waiting = false;  // present in order_

    uint32_t take() {
      if (late.empty() || (next < list.size() && list[next] <= late.front())) return list[next++];
      std::pop_heap(late.begin(), late.end(), std::greater<>());
      const uint32_t position = late.back();
      late.pop_back();
      return position;
    }
    void reset() {
      list.clear();
      next = 0;
      sorted = true;
      started = waiting = false;
    }
  };

  FlatMap<uint32_t, uint32_t> index_of_rank_;  // index into ranks_, plus one
  std::vector<Rank> ranks_;
  std::vector<uint64_t> order_;  // a heap of rank << 32 | index, for ranks that have entries
};

}  // namespace sluice::tokenizer
