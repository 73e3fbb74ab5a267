// The methods of Python's str.
#include <fmt/core.h>

#include <algorithm>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

// Methods of a safe string return safe strings; text inserted into one is escaped.
Value like(Runtime& rt, const Value& self, std::string_view text) { return rt.string(text, self.is_safe()); }
Value like(Runtime& rt, const Value& self, std::string text) { return rt.string(std::move(text), self.is_safe()); }

std::string inserted(Runtime& rt, const Value& self, const Value& argument, std::string_view what) {
  expect_text(rt, argument, what);
  return self.is_safe() ? escape(rt, argument) : rt.copy(argument.text());
}

template <std::string (*kChange)(std::string_view)>
Value changed(Runtime& rt, const Value& self, const Args&) {
  rt.heap.expect(self.text().size());
  rt.spend_unicode(self.text().size());
  return like(rt, self, kChange(self.text()));
}

template <text::Side kSide>
Value strip(Runtime& rt, const Value& self, const Args& args) {
  const Value* characters = args.given(0);
  return like(rt, self,
              characters ? text::strip(self.text(), expect_text(rt, *characters, "the argument of strip"), kSide)
                         : text::strip(self.text(), kSide));
}

Value list_of(Runtime& rt, const Value& self, const std::vector<std::string_view>& pieces) {
  rt.heap.expect(pieces.size() * (sizeof(Str) + sizeof(Value)));
  std::vector<Value> out;
  out.reserve(pieces.size());
  for (const std::string_view piece : pieces) {
    rt.spend();
    out.push_back(like(rt, self, piece));
  }
  return rt.list(std::move(out));
}

size_t most_pieces_of_text(const Runtime& rt) {
  return std::min<size_t>(rt.fuel_left(), rt.heap.available() / (sizeof(Str) + 2 * sizeof(Value)));
}

template <bool kFromRight>
Value split(Runtime& rt, const Value& self, const Args& args) {
  const int64_t limit = args.find(1) ? expect_int(rt, args[1], "maxsplit") : -1;
  rt.spend_copy(2 * self.text().size());
  if (!args.given(0)) {
    return list_of(rt, self,
                   kFromRight ? text::rsplit(self.text(), limit, most_pieces_of_text(rt))
                              : text::split(self.text(), limit, most_pieces_of_text(rt)));
  }
  const std::string_view separator = expect_text(rt, args[0], "the separator of split");
  if (separator.empty()) rt.fail("empty separator");
  return list_of(rt, self,
                 kFromRight ? text::rsplit(self.text(), separator, limit, most_pieces_of_text(rt))
                            : text::split(self.text(), separator, limit, most_pieces_of_text(rt)));
}

Value split_lines(Runtime& rt, const Value& self, const Args& args) {
  rt.spend_scan(self.text().size());
  return list_of(rt, self, text::splitlines(self.text(), args.find(0) && truthy(args[0]), most_pieces_of_text(rt)));
}

template <bool kFromRight>
Value partition(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view s = self.text();
  const std::string_view separator = expect_text(rt, args[0], "the separator of partition");
  if (separator.empty()) rt.fail("empty separator");
  rt.spend_copy(2 * s.size());
  const size_t at = kFromRight ? text::rfind(s, separator) : text::find(s, separator);
  if (at == std::string_view::npos) {
    const Value empty = like(rt, self, std::string());
    return kFromRight ? rt.tuple({empty, empty, self}) : rt.tuple({self, empty, empty});
  }
  return rt.tuple(
      {like(rt, self, s.substr(0, at)), like(rt, self, separator), like(rt, self, s.substr(at + separator.size()))});
}

// The part of the string between two optional bounds in code points, and its start. nullopt if the first bound is
// beyond the end.
struct Window {
  std::string_view text;
  int64_t begin;
};
std::optional<Window> window(Runtime& rt, const Value& self, const Value* start, const Value* stop) {
  const Str& str = self.as<Str>();
  rt.spend_look(str.text.size());
  if (!start && !stop) return Window{str.text, 0};
  const int64_t n = code_points(str);
  const auto bound = [&](const Value* value, int64_t fallback) {
    if (!value || value->is(Kind::kNone)) return fallback;
    const int64_t at = expect_int(rt, *value, "slice indices");
    return at < 0 ? std::max<int64_t>(at + n, 0) : at;
  };
  const int64_t begin = bound(start, 0);
  const int64_t end = std::min(bound(stop, n), n);
  if (begin > n || begin > end) return std::nullopt;
  const size_t from = byte_offset(rt, str, begin);
  return Window{std::string_view(str.text).substr(from, byte_offset(rt, str, end) - from), begin};
}

template <bool kFromRight>
int64_t search(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view what = expect_text(rt, args[0], "the argument of find");
  const auto part = window(rt, self, args.find(1), args.find(2));
  if (!part) return -1;
  const size_t at = kFromRight ? text::rfind(part->text, what) : text::find(part->text, what);
  if (at == std::string_view::npos) return -1;
  return part->begin + static_cast<int64_t>(text::count(part->text.substr(0, at)));
}

template <bool kFromRight>
Value find(Runtime& rt, const Value& self, const Args& args) {
  return Value::integer(search<kFromRight>(rt, self, args));
}

template <bool kFromRight>
Value index(Runtime& rt, const Value& self, const Args& args) {
  const int64_t at = search<kFromRight>(rt, self, args);
  if (at < 0) rt.fail("substring not found");
  return Value::integer(at);
}

Value count(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view what = expect_text(rt, args[0], "the argument of count");
  const auto part = window(rt, self, args.find(1), args.find(2));
  return Value::integer(part ? static_cast<int64_t>(text::count_matches(part->text, what)) : 0);
}

template <bool kEnd>
Value has_affix(Runtime& rt, const Value& self, const Args& args) {
  const auto part = window(rt, self, args.find(1), args.find(2));
  const auto matches = [&](const Value& affix) {
    const std::string_view text = expect_text(rt, affix, "the argument of startswith and endswith");
    return part && (kEnd ? part->text.ends_with(text) : part->text.starts_with(text));
  };
  if (!args[0].is(Kind::kTuple)) return Value::boolean(matches(args[0]));
  const auto& affixes = args[0].items();
  return Value::boolean(std::any_of(affixes.begin(), affixes.end(), matches));
}

template <bool kEnd>
Value remove_affix(Runtime& rt, const Value& self, const Args& args) {
  std::string_view s = self.text();
  const std::string_view affix = expect_text(rt, args[0], "the affix");
  if (!(kEnd ? s.ends_with(affix) : s.starts_with(affix))) return self;
  kEnd ? s.remove_suffix(affix.size()) : s.remove_prefix(affix.size());
  return like(rt, self, s);
}

Value replace_method(Runtime& rt, const Value& self, const Args& args) {
  const std::string_view old = expect_text(rt, args[0], "the first argument of replace");
  const std::string with = inserted(rt, self, args[1], "the second argument of replace");
  const int64_t limit = args.find(2) ? expect_int(rt, args[2], "count") : -1;
  const size_t size = self.text().size();
  rt.spend_copy(2 * size);
  const size_t matches = text::count_matches(self.text(), old);
  rt.heap.expect(size + (with.size() > old.size() ? matches * (with.size() - old.size()) : 0));
  rt.spend_copy(matches * (with.size() + 64));
  return like(rt, self, text::replace(self.text(), old, with, limit));
}

Value join_method(Runtime& rt, const Value& self, const Args& args) {
  std::string out;
  Cursor cursor(rt, args[0]);
  int64_t i = 0;
  for (Value item; cursor.next(item); ++i) {
    if (i > 0) rt.append(out, self.text());
    if (self.is_safe()) {
      rt.append(out, escape(rt, item));
      continue;
    }
    if (!item.is(Kind::kString)) {
      rt.fail(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item)));
    }
    rt.append(out, item.text());
  }
  return like(rt, self, std::move(out));
}

Value format_method(Runtime& rt, const Value& self, const Args& args) {
  Dict named;
  for (const auto& [name, value] : args.named()) named.set(rt.string(name), value);
  return like(rt, self, format_braces(rt, self.text(), args.rest(), named, self.is_safe()));
}

Value format_map(Runtime& rt, const Value& self, const Args& args) {
  if (!args[0].is(Kind::kDict)) rt.fail("format_map() needs a mapping");
  return like(rt, self, format_braces(rt, self.text(), {}, args[0].dict(), self.is_safe()));
}

enum class Place { kLeft, kRight, kCenter };

template <Place kPlace>
Value justify(Runtime& rt, const Value& self, const Args& args) {
  const int64_t width = expect_int(rt, args[0], "width");
  const std::string fill = args.find(1) ? inserted(rt, self, args[1], "fillchar") : " ";
  if (text::count(fill) != 1) rt.fail("the fill character must be exactly one character long");
  const int64_t missing = width - code_points(self.as<Str>());
  if (missing <= 0) return self;
  rt.heap.expect(static_cast<size_t>(missing));
  rt.spend_copy(static_cast<size_t>(missing));
  const int64_t left = kPlace == Place::kLeft    ? 0
                       : kPlace == Place::kRight ? missing
                                                 : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) rt.append(out, fill);
  rt.append(out, self.text());
  for (int64_t i = left; i < missing; ++i) rt.append(out, fill);
  return like(rt, self, std::move(out));
}

Value zero_fill(Runtime& rt, const Value& self, const Args& args) {
  const int64_t missing = expect_int(rt, args[0], "width") - code_points(self.as<Str>());
  if (missing <= 0) return self;
  rt.heap.expect(self.text().size() + static_cast<size_t>(missing));
  rt.spend_copy(static_cast<size_t>(missing));
  const bool sign = self.text().starts_with('-') || self.text().starts_with('+');
  std::string out(self.text());
  out.insert(sign ? 1 : 0, static_cast<size_t>(missing), '0');
  return like(rt, self, std::move(out));
}

Value expand_tabs(Runtime& rt, const Value& self, const Args& args) {
  const int64_t size = args.find(0) ? expect_int(rt, args[0], "tabsize") : 8;
  std::string out;
  int64_t column = 0;
  rt.spend_scan(self.text().size());
  for (const char c : self.text()) {
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      rt.heap.expect(static_cast<size_t>(spaces));
      rt.append(out, std::string(static_cast<size_t>(spaces), ' '));
      column += spaces;
      continue;
    }
    rt.append(out, std::string_view(&c, 1));
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
    if (c == '\n' || c == '\r') column = 0;
  }
  return like(rt, self, std::move(out));
}

// True for a non-empty string whose code points all have the property.
template <bool (*kIs)(char32_t), bool kEmpty = false>
Value all_are(Runtime& rt, const Value& self, const Args&) {
  rt.spend_scan(self.text().size());
  bool result = kEmpty || !self.text().empty();
  for (size_t at = 0; result && at < self.text().size();) result = kIs(text::next(self.text(), at));
  return Value::boolean(result);
}

bool is_ascii(char32_t c) { return c < 0x80; }

template <bool kUpper>
Value is_case(Runtime& rt, const Value& self, const Args&) {
  rt.spend_scan(self.text().size());
  bool found = false;
  for (size_t at = 0; at < self.text().size();) {
    const char32_t c = text::next(self.text(), at);
    if (text::is_title(c) || (kUpper ? text::is_lower(c) : text::is_upper(c))) return Value::boolean(false);
    found |= kUpper ? text::is_upper(c) : text::is_lower(c);
  }
  return Value::boolean(found);
}

Value is_title(Runtime& rt, const Value& self, const Args&) {
  rt.spend_scan(self.text().size());
  bool found = false, inside = false;
  for (size_t at = 0; at < self.text().size();) {
    const char32_t c = text::next(self.text(), at);
    const bool capital = text::is_upper(c) || text::is_title(c);
    const bool small = text::is_lower(c);
    if ((capital && inside) || (small && !inside)) return Value::boolean(false);
    inside = capital || small;
    found |= inside;
  }
  return Value::boolean(found);
}

Value is_identifier(Runtime& rt, const Value& self, const Args&) {
  rt.spend_scan(self.text().size());
  return Value::boolean(text::is_identifier(self.text()));
}

Value refuse(Runtime& rt, const Value&, const Args&) { rt.fail("encode, maketrans and translate are not supported"); }

constexpr Builtin kMethods[] = {
    {"capitalize", "", changed<text::capitalize>},
    {"casefold", "", changed<text::casefold>},
    {"center", "/ width fillchar=", justify<Place::kCenter>},
    {"count", "/ sub start= end=", count},
    {"encode", "* **", refuse},
    {"endswith", "/ suffix start= end=", has_affix<true>},
    {"expandtabs", "tabsize=", expand_tabs},
    {"find", "/ sub start= end=", find<false>},
    {"format", "* **", format_method},
    {"format_map", "/ mapping", format_map},
    {"index", "/ sub start= end=", index<false>},
    {"isalnum", "", all_are<text::is_alnum>},
    {"isalpha", "", all_are<text::is_alpha>},
    {"isascii", "", all_are<is_ascii, true>},
    {"isdecimal", "", all_are<text::is_decimal>},
    {"isdigit", "", all_are<text::is_digit>},
    {"isidentifier", "", is_identifier},
    {"islower", "", is_case<false>},
    {"isnumeric", "", all_are<text::is_numeric>},
    {"isprintable", "", all_are<text::is_printable, true>},
    {"isspace", "", all_are<text::is_space>},
    {"istitle", "", is_title},
    {"isupper", "", is_case<true>},
    {"join", "/ iterable", join_method},
    {"ljust", "/ width fillchar=", justify<Place::kLeft>},
    {"lower", "", changed<text::lower>},
    {"lstrip", "/ chars=", strip<text::kLeft>},
    {"maketrans", "* **", refuse},
    {"partition", "/ sep", partition<false>},
    {"removeprefix", "/ prefix", remove_affix<false>},
    {"removesuffix", "/ suffix", remove_affix<true>},
    {"replace", "/ old new count=", replace_method},
    {"rfind", "/ sub start= end=", find<true>},
    {"rindex", "/ sub start= end=", index<true>},
    {"rjust", "/ width fillchar=", justify<Place::kRight>},
    {"rpartition", "/ sep", partition<true>},
    {"rsplit", "sep= maxsplit=", split<true>},
    {"rstrip", "/ chars=", strip<text::kRight>},
    {"split", "sep= maxsplit=", split<false>},
    {"splitlines", "keepends=", split_lines},
    {"startswith", "/ prefix start= end=", has_affix<false>},
    {"strip", "/ chars=", strip<text::kBoth>},
    {"swapcase", "", changed<text::swapcase>},
    {"title", "", changed<text::title>},
    {"translate", "* **", refuse},
    {"upper", "", changed<text::upper>},
    {"zfill", "/ width", zero_fill},
};

}  // namespace

std::span<const Builtin> text_methods() { return kMethods; }

}  // namespace sluice::jinja
