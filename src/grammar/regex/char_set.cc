#include "grammar/regex/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>

namespace sluice::grammar {
namespace {

struct Category {
  std::string_view name, long_name;
};

// In the order of utf8proc_category_t.
constexpr std::array<Category, 30> kCategories = {{{"Cn", "Unassigned"},
                                                   {"Lu", "Uppercase_Letter"},
                                                   {"Ll", "Lowercase_Letter"},
                                                   {"Lt", "Titlecase_Letter"},
                                                   {"Lm", "Modifier_Letter"},
                                                   {"Lo", "Other_Letter"},
                                                   {"Mn", "Nonspacing_Mark"},
                                                   {"Mc", "Spacing_Mark"},
                                                   {"Me", "Enclosing_Mark"},
                                                   {"Nd", "Decimal_Number"},
                                                   {"Nl", "Letter_Number"},
                                                   {"No", "Other_Number"},
                                                   {"Pc", "Connector_Punctuation"},
                                                   {"Pd", "Dash_Punctuation"},
                                                   {"Ps", "Open_Punctuation"},
                                                   {"Pe", "Close_Punctuation"},
                                                   {"Pi", "Initial_Punctuation"},
                                                   {"Pf", "Final_Punctuation"},
                                                   {"Po", "Other_Punctuation"},
                                                   {"Sm", "Math_Symbol"},
                                                   {"Sc", "Currency_Symbol"},
                                                   {"Sk", "Modifier_Symbol"},
                                                   {"So", "Other_Symbol"},
                                                   {"Zs", "Space_Separator"},
                                                   {"Zl", "Line_Separator"},
                                                   {"Zp", "Paragraph_Separator"},
                                                   {"Cc", "Control"},
                                                   {"Cf", "Format"},
                                                   {"Cs", "Surrogate"},
                                                   {"Co", "Private_Use"}}};
constexpr std::array<Category, 9> kGroups = {{{"L", "Letter"},
                                              {"M", "Mark"},
                                              {"N", "Number"},
                                              {"P", "Punctuation"},
                                              {"S", "Symbol"},
                                              {"Z", "Separator"},
                                              {"C", "Other"},
                                              {"M", "Combining_Mark"},
                                              {"P", "punct"}}};

// Categories by number, as a set of bits. 0: unknown.
uint32_t categories(std::string_view name) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kCategories.size(); ++i) {
    const bool cased = name == "LC" || name == "Cased_Letter";
    if (name == kCategories[i].name || name == kCategories[i].long_name || (cased && i >= 1 && i <= 3)) bits |= 1u << i;
    for (const Category& group : kGroups) {
      const bool named = name == group.name || name == group.long_name;
      if (named && kCategories[i].name.substr(0, 1) == group.name) bits |= 1u << i;
    }
  }
  return bits;
}

CharSet of_categories(uint32_t bits) {
  CharSet set;
  char32_t first = 0;
  bool inside = false;
  for (char32_t c = 0; c <= CharSet::kLast + 1; ++c) {
    const bool member = c <= CharSet::kLast && (bits >> utf8proc_category(static_cast<utf8proc_int32_t>(c)) & 1) != 0;
    if (member && !inside) first = c;
    if (!member && inside) set.add(first, c - 1);
    inside = member;
  }
  return set;
}

}  // namespace

void CharSet::normalize() const {
  std::sort(ranges_.begin(), ranges_.end());
  size_t kept = 0;
  for (const Range& r : ranges_) {
    if (kept > 0 && r.first <= ranges_[kept - 1].second + 1) {
      ranges_[kept - 1].second = std::max(ranges_[kept - 1].second, r.second);
    } else {
      ranges_[kept++] = r;
    }
  }
  ranges_.resize(kept);
  normalized_ = true;
}

const std::vector<CharSet::Range>& CharSet::ranges() const {
  if (!normalized_) normalize();
  return ranges_;
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalized_ = false;
}

CharSet CharSet::complement() const {
  CharSet out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges()) {
    if (first > next) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [c](const Range& r) { return r.first <= c && c <= r.second; });
}

CharSet CharSet::with_cases() const {
  CharSet out = *this;
  for (const auto& [first, last] : ranges()) {
    for (char32_t c = first; c <= last; ++c) {
      const auto code = static_cast<utf8proc_int32_t>(c);
      for (const utf8proc_int32_t other : {utf8proc_tolower(code), utf8proc_toupper(code)}) {
        if (other != code) out.add(static_cast<char32_t>(other), static_cast<char32_t>(other));
      }
    }
  }
  return out;
}

std::optional<CharSet> unicode_property(std::string_view name) {
  if (name == "Any") return CharSet{{0, CharSet::kLast}};
  if (name == "ASCII") return CharSet{{0, 0x7f}};
  if (name == "White_Space" || name == "space") {
    return CharSet{{0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
                   {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
  }
  for (const std::string_view prefix : {"General_Category=", "gc="}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  const uint32_t bits = categories(name);
  if (bits == 0) return std::nullopt;
  static std::mutex mutex;
  static std::map<uint32_t, CharSet> known;  // a walk over all characters takes milliseconds
  const std::scoped_lock lock(mutex);
  const auto [place, fresh] = known.try_emplace(bits);
  if (fresh) place->second = of_categories(bits);
  return place->second;
}

}  // namespace sluice::grammar
