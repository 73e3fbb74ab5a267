// Languages of UTF-8 text (RFC 3629).
#include <array>

#include "grammar/automata/fragments.h"

namespace sluice::grammar {
namespace {

// The bytes of characters of one length whose code points are a range: one range per byte, where all but the first
// differing byte of the two bounds have their full range.
void add_range(Fragments& fragments, Fragment& all, char32_t low, char32_t high, int length) {
  static constexpr std::array<uint8_t, 5> kLead = {0, 0x00, 0xc0, 0xe0, 0xf0};
  if (low > high) return;
  for (int level = length - 1; level > 0; --level) {
    const char32_t mask = (char32_t{1} << (6 * level)) - 1;  // bits of the last `level` bytes
    if ((low & ~mask) == (high & ~mask)) continue;
    // Cut off a part with a low end, or a high end, that is not on the boundary.
    if ((low & mask) != 0) {
      add_range(fragments, all, low, low | mask, length);
      return add_range(fragments, all, (low | mask) + 1, high, length);
    }
    if ((high & mask) != mask) {
      add_range(fragments, all, low, (high & ~mask) - 1, length);
      return add_range(fragments, all, high & ~mask, high, length);
    }
  }
  const auto byte = [&](char32_t c, int level) {
    const char32_t bits = c >> (6 * level);
    if (level == length - 1) return static_cast<uint8_t>(kLead[static_cast<size_t>(length)] | bits);
    return static_cast<uint8_t>(0x80 | (bits & 0x3f));
  };
  Fragment character = fragments.bytes(byte(low, length - 1), byte(high, length - 1));
  for (int level = length - 2; level >= 0; --level) {
    character = fragments.concatenate(std::move(character), fragments.bytes(byte(low, level), byte(high, level)));
  }
  all = fragments.unite(std::move(all), std::move(character));
}

}  // namespace

Automaton Automaton::code_points(std::span<const std::pair<char32_t, char32_t>> ranges) {
  struct Plane {
    char32_t first, last;
    int length;
  };
  // By length; surrogates are in no text.
  static constexpr std::array<Plane, 5> kPlanes = {
      {{0, 0x7f, 1}, {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3}, {0xe000, 0xffff, 3}, {0x10000, 0x10ffff, 4}}};
  Budget budget({.fuel = INT64_MAX / 2, .bytes = INT64_MAX / 2, .time = std::chrono::hours(24)});
  Fragments fragments(budget);
  Fragment all = fragments.none();
  for (const auto& [first, last] : ranges) {
    for (const Plane& plane : kPlanes) {
      add_range(fragments, all, std::max(first, plane.first), std::min(last, plane.last), plane.length);
    }
  }
  return determinize(fragments.finish(all), budget);
}

const Automaton& any_text() {
  static const Automaton text = [] {
    Budget budget;
    const std::pair<char32_t, char32_t> all[] = {{0, 0x10ffff}};
    return determinize(repeat(Automaton::code_points(all), 0, -1, budget), budget);
  }();
  return text;
}

Automaton text_of_length(int least, int most, Budget& budget) {
  static const Automaton character = [] {
    const std::pair<char32_t, char32_t> all[] = {{0, 0x10ffff}};
    return Automaton::code_points(all);
  }();
  return repeat(character, least, most, budget);
}

}  // namespace sluice::grammar
