// The spellings of a text as a JSON string (RFC 8259, section 7).
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "grammar/automata/maker.h"

namespace sluice::grammar {
namespace {

class JsonString {
 public:
  JsonString(const Automaton& text, Budget& budget) : text_(text), maker_(budget) {}

  Automaton make(bool quoted) {
    int32_t end = 0;
    if (quoted) {
      const int32_t begin = maker_.add_state();
      end = maker_.add_state(true);
      maker_.add_edge(begin, {'"', '"', end + 1});
    }
    inside_ = maker_.add_states(text_.states());
    for (int s = 0; s < text_.states(); ++s) {
      if (text_.accepts(s) && quoted) maker_.add_edge(inside_ + s, {'"', '"', end});
      if (text_.accepts(s) && !quoted) maker_.accept(inside_ + s);
      add_plain(s);
      add_escapes(s);
    }
    return maker_.finish();
  }

 private:
  struct Range {  // of characters that lead to one state
    uint32_t first, last;
    int to;
  };

  // Characters by themselves. Bytes below 0x80 are whole characters wherever they are.
  void add_plain(int s) {
    static constexpr std::pair<int, int> kPlain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0xff}};
    for (const Automaton::Edge& e : text_.edges(s)) {
      for (const auto& [first, last] : kPlain) {
        const int low = std::max<int>(e.first, first), high = std::min<int>(e.last, last);
        if (low > high) continue;
        maker_.add_edge(inside_ + s, {static_cast<uint8_t>(low), static_cast<uint8_t>(high), inside_ + e.to});
      }
    }
  }

  // If every text of `more` continuation bytes leads to one state: that state.
  std::optional<int> after_any(int s, int more) {
    if (more == 0) return s;
    const auto [place, fresh] = after_any_.try_emplace({s, more}, std::nullopt);
    if (!fresh) return place->second;
    maker_.budget().step();
    std::optional<int> target;
    int next = 0x80;  // first byte that was not seen yet
    for (const Automaton::Edge& e : text_.edges(s)) {
      const std::optional<int> to = e.first == next ? after_any(e.to, more - 1) : std::nullopt;
      if (!to || (target && *target != *to)) return std::nullopt;
      target = to;
      next = e.last + 1;
    }
    if (next != 0xc0) return std::nullopt;
    return after_any_[{s, more}] = target;
  }

  // Characters that begin with the bits `prefix` and have `more` further bytes.
  void collect(int s, uint32_t prefix, int more, std::vector<Range>& out) {
    for (const Automaton::Edge& e : text_.edges(s))
      add_bytes(e, prefix, e.first & 0x3fu, e.last & 0x3fu, more - 1, out);
  }
  void add_bytes(const Automaton::Edge& e, uint32_t prefix, uint32_t first, uint32_t last, int more,
                 std::vector<Range>& out) {
    const std::optional<int> to = after_any(e.to, more);
    const int shift = 6 * more;
    maker_.budget().step();
    if (to) {
      const uint32_t low = (prefix << 6 | first) << shift, high = ((prefix << 6 | last) + 1) << shift;
      return add({low, high - 1, *to}, out);
    }
    for (uint32_t bits = first; bits <= last; ++bits) collect(e.to, prefix << 6 | bits, more, out);
  }
  static void add(Range r, std::vector<Range>& out) {
    if (!out.empty() && out.back().to == r.to && out.back().last + 1 == r.first) {
      out.back().last = r.last;
    } else {
      out.push_back(r);
    }
  }

  std::vector<Range> characters(int s) {
    struct Lead {
      uint8_t first, last, bits;
      int more;
    };
    static constexpr Lead kLeads[] = {{0xc2, 0xdf, 0x1f, 1}, {0xe0, 0xef, 0x0f, 2}, {0xf0, 0xf4, 0x07, 3}};
    std::vector<Range> out;
    for (const Automaton::Edge& e : text_.edges(s)) {
      if (e.first < 0x80) add({e.first, std::min<uint32_t>(e.last, 0x7f), e.to}, out);
      for (const Lead& lead : kLeads) {
        for (int byte = std::max(e.first, lead.first); byte <= std::min(e.last, lead.last); ++byte) {
          collect(e.to, static_cast<uint32_t>(byte) & lead.bits, lead.more, out);
        }
      }
    }
    return out;
  }

  // What may be escaped: not the letters, digits and signs of ASCII that no encoder escapes.
  static std::vector<Range> escaped(const std::vector<Range>& characters) {
    static constexpr std::pair<uint32_t, uint32_t> kEscaped[] = {
        {0, 0x1f}, {'"', '"'}, {'&', '\''}, {'/', '/'}, {'<', '<'}, {'>', '>'}, {'\\', '\\'}, {0x7f, 0x10ffff}};
    std::vector<Range> out;
    for (const Range& r : characters) {
      for (const auto& [first, last] : kEscaped) {
        const uint32_t low = std::max(r.first, first), high = std::min(r.last, last);
        if (low <= high) out.push_back({low, high, r.to});
      }
    }
    return out;
  }

  void add_escapes(int s) {
    static constexpr std::pair<char, uint8_t> kShort[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', 0x08},
                                                          {'f', 0x0c}, {'n', 0x0a},  {'r', 0x0d}, {'t', 0x09}};
    const std::vector<Range> ranges = escaped(characters(s));
    if (ranges.empty()) return;
    const int32_t escape = maker_.add_states(2), hex = escape + 1;
    maker_.add_edge(inside_ + s, {'\\', '\\', escape});
    maker_.add_edge(escape, {'u', 'u', hex});
    for (const Range& r : ranges) {
      for (const auto& [letter, character] : kShort) {
        const auto byte = static_cast<uint8_t>(letter);
        if (r.first <= character && character <= r.last) maker_.add_edge(escape, {byte, byte, inside_ + r.to});
      }
      if (r.first <= 0xffff) add_digits(hex, kBasic, 0, r.first, std::min<uint32_t>(r.last, 0xffff), r.to);
      if (r.last > 0xffff) {
        const uint32_t low = std::max<uint32_t>(r.first, 0x10000) - 0x10000;
        add_digits(after(hex, 'D', 'd'), kSurrogates, 0, low, r.last - 0x10000, r.to);
      }
    }
  }

  // Hexadecimal digits of a number: each has some bits, and is written as they are plus a base. A surrogate pair is a
  // number of 20 bits; its second half begins with "\uD".
  struct Digit {
    int bits;
    uint32_t base;
    bool second_half;  // begins with this digit
  };
  using Digits = std::vector<Digit>;
  static inline const Digits kBasic = {{4, 0, false}, {4, 0, false}, {4, 0, false}, {4, 0, false}};
  static inline const Digits kSurrogates = {{2, 8, false}, {4, 0, false}, {4, 0, false},
                                            {2, 12, true}, {4, 0, false}, {4, 0, false}};

  int32_t after(int32_t from, char a, char b) {
    const int32_t to = maker_.add_state();
    for (const char c : {a, b}) maker_.add_edge(from, {static_cast<uint8_t>(c), static_cast<uint8_t>(c), to});
    return to;
  }

  // Adds the numbers first .. last of the digits from `level` on.
  void add_digits(int32_t from, const Digits& digits, size_t level, uint32_t first, uint32_t last, int target) {
    if (digits[level].second_half) from = after(after(after(from, '\\', '\\'), 'u', 'u'), 'D', 'd');
    int below = 0;  // bits of the digits after this one
    for (size_t i = level + 1; i < digits.size(); ++i) below += digits[i].bits;
    const uint32_t mask = (1u << below) - 1;
    const uint32_t high = last >> below;
    for (uint32_t digit = first >> below; digit <= high;) {
      const uint32_t low_rest = digit == first >> below ? first & mask : 0;
      const uint32_t high_rest = digit == high ? last & mask : mask;
      uint32_t same = digit;  // further digits that all numbers may follow
      const bool all = low_rest == 0 && high_rest == mask;
      while (all && same < high && (same + 1 < high || (last & mask) == mask)) ++same;
      int32_t to = inside_ + target;
      if (below > 0 && all) {
        to = any_digits(digits, level + 1, target);
      } else if (below > 0) {
        to = maker_.add_state();
        add_digits(to, digits, level + 1, low_rest, high_rest, target);
      }
      add_digit_edges(from, digits[level].base + digit, digits[level].base + same, to);
      digit = same + 1;
    }
  }

  // The state from which any digits from `level` on lead to the target.
  int32_t any_digits(const Digits& digits, size_t level, int target) {
    const auto [place, fresh] = any_digits_.try_emplace({&digits, level, target}, 0);
    if (!fresh) return place->second;
    const int32_t state = place->second = maker_.add_state();
    int bits = 0;
    for (size_t i = level; i < digits.size(); ++i) bits += digits[i].bits;
    add_digits(state, digits, level, 0, (1u << bits) - 1, target);
    return state;
  }

  void add_digit_edges(int32_t from, uint32_t first, uint32_t last, int32_t to) {
    static constexpr std::tuple<uint32_t, uint32_t, char> kForms[] = {{0, 9, '0'}, {10, 15, 'A'}, {10, 15, 'a'}};
    for (const auto& [low, high, letter] : kForms) {
      const uint32_t a = std::max(first, low), b = std::min(last, high);
      if (a > b) continue;
      const uint32_t zero = static_cast<uint32_t>(letter) - low;
      maker_.add_edge(from, {static_cast<uint8_t>(zero + a), static_cast<uint8_t>(zero + b), to});
    }
  }

  const Automaton& text_;
  AutomatonMaker maker_;
  int32_t inside_ = 0;  // state s of the text is inside_ + s
  std::map<std::pair<int, int>, std::optional<int>> after_any_;
  std::map<std::tuple<const Digits*, size_t, int>, int32_t> any_digits_;
};

}  // namespace

Automaton json_string(const Automaton& utf8, Budget& budget) {
  if (utf8.empty()) return Automaton::none();
  return JsonString(utf8, budget).make(true);
}

Automaton json_string_body(const Automaton& utf8, Budget& budget) {
  if (utf8.empty()) return Automaton::none();
  return JsonString(utf8, budget).make(false);
}

}  // namespace sluice::grammar
