// The shortest prefix of an order that has enough of something, without sorting everything.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

namespace sluice::kernels {

// Puts the shortest prefix in the order `before` whose amounts add up to `enough` in front, and returns its end. All
// items are the prefix if they do not add up. Items differ in order.
template <class Iterator, class Before, class Amount>
Iterator shortest_prefix(Iterator first, Iterator last, Before before, Amount amount, uint64_t enough) {
  constexpr int kSmall = 32;  // up to this many items are sorted instead of divided
  Iterator begin = first, end = last;
  uint64_t sum = 0;  // of the items before `begin`
  // Quickselect. As items differ, the median of three always leaves some on both sides.
  while (end - begin > kSmall) {
    typename std::iterator_traits<Iterator>::value_type probes[] = {*begin, *(begin + (end - begin) / 2), *(end - 1)};
    std::ranges::sort(probes, before);
    const auto middle = std::partition(begin, end, [&](const auto& item) { return before(item, probes[1]); });
    uint64_t part = 0;
    for (auto it = begin; it != middle; ++it) part += amount(*it);
    if (sum + part >= enough) {
      end = middle;
    } else {
      sum += part;
      begin = middle;
    }
  }
  std::sort(begin, end, before);
  while (begin != end && sum < enough) sum += amount(*begin++);
  return begin;
}

}  // namespace sluice::kernels
