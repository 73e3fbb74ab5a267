// Filters that change or measure text.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

// Returns the text of any value; a string is returned unchanged with its safe mark.
Value soft_str(Runtime& rt, const Value& value) {
  return value.is(Kind::kString) ? value : rt.string(to_str(rt, value));
}

template <std::string (*kChange)(std::string_view)>
Value change(Runtime& rt, const Value& value, const Args&) {
  const Value text = soft_str(rt, value);
  rt.heap.expect(text.text().size());
  rt.spend_unicode(text.text().size());
  return rt.string(kChange(text.text()), text.is_safe());
}

// Words begin after whitespace, hyphens and opening brackets.
std::string title_words(std::string_view s) {
  std::string out;
  const auto splits = [](char32_t c) {
    return text::is_space(c) ||
           (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
  };
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    const char32_t first = text::next(s, at);
    if (splits(first)) {
      out += s.substr(begin, at - begin);
      continue;
    }
    const size_t rest = at;
    while (at < s.size()) {
      size_t after = at;
      if (splits(text::next(s, after))) break;
      at = after;
    }
    out += text::upper(s.substr(begin, rest - begin));
    out += text::lower(s.substr(rest, at - rest));
  }
  return out;
}

Value to_string(Runtime& rt, const Value& value, const Args&) { return soft_str(rt, value); }
Value mark_safe(Runtime& rt, const Value& value, const Args&) { return rt.string(to_str(rt, value), true); }
Value escape_value(Runtime& rt, const Value& value, const Args&) { return rt.string(escape(rt, value), true); }
Value force_escape(Runtime& rt, const Value& value, const Args&) {
  return rt.string(escape(rt, rt.string(to_str(rt, value))), true);
}

Value trim(Runtime& rt, const Value& value, const Args& args) {
  const Value text = soft_str(rt, value);
  const Value* characters = args.given(0);
  return rt.string(characters ? text::strip(text.text(), expect_text(rt, *characters, "chars"), text::kBoth)
                              : text::strip(text.text()),
                   text.is_safe());
}

Value replace(Runtime& rt, const Value& value, const Args& args) {
  const std::string s = to_str(rt, value);
  const std::string old = to_str(rt, args[0]);
  const std::string with = to_str(rt, args[1]);
  const int64_t limit = args.given(2) ? expect_int(rt, args[2], "count") : -1;
  rt.spend_copy(s.size());
  const size_t matches = text::count_matches(s, old);
  rt.heap.expect(s.size());
  if (with.size() > old.size() && matches > 0) rt.heap.expect(s.size() + matches * (with.size() - old.size()));
  rt.spend_copy(matches * (with.size() + 64));
  return rt.string(text::replace(s, old, with, limit));
}

Value center(Runtime& rt, const Value& value, const Args& args) {
  const Value text = soft_str(rt, value);
  const int64_t width = args.find(0) ? expect_int(rt, args[0], "width") : 80;
  const int64_t missing = width - code_points(text.as<Str>());
  if (missing <= 0) return text;
  rt.heap.expect(text.text().size() + static_cast<size_t>(missing));
  rt.spend_copy(static_cast<size_t>(missing));
  const int64_t left = missing / 2 + (missing & width & 1);
  std::string out(static_cast<size_t>(left), ' ');
  out += text.text();
  out.append(static_cast<size_t>(missing - left), ' ');
  return rt.string(std::move(out), text.is_safe());
}

Value format(Runtime& rt, const Value& value, const Args& args) {
  const Value text = soft_str(rt, value);
  if (!args.rest().empty() && !args.named().empty()) {
    rt.fail("can't handle positional and keyword arguments at the same time");
  }
  Value values;
  if (args.named().empty()) {
    values = rt.tuple({args.rest().begin(), args.rest().end()});
  } else {
    Dict named;
    for (const auto& [name, item] : args.named()) named.set(rt.string(name), item);
    values = rt.dict(std::move(named));
  }
  return rt.string(format_percent(rt, text.text(), values, text.is_safe()), text.is_safe());
}

Value word_count(Runtime& rt, const Value& value, const Args&) {
  const Value text = soft_str(rt, value);
  rt.spend_scan(text.text().size());
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.text().size();) {
    const bool word = text::is_word(text::next(text.text(), at));
    words += word && !inside;
    inside = word;
  }
  return Value::integer(words);
}

void append_url_quoted(Runtime& rt, std::string& out, std::string_view s, bool query) {
  rt.spend_scan(s.size());
  rt.heap.expect(out.size() + 3 * s.size());
  for (const char c : s) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
}

Value url_encode(Runtime& rt, const Value& value, const Args&) {
  std::string out;
  if (value.is(Kind::kString) || !is_iterable(value)) {
    append_url_quoted(rt, out, to_str(rt, value), false);
    return rt.string(std::move(out));
  }
  Cursor pairs(rt, value.is(Kind::kDict) ? Value(Kind::kView, rt.heap.make<View>(0, value, View::kItems)) : value);
  for (Value pair; pairs.next(pair);) {
    const std::vector<Value> items = to_vector(rt, pair);
    if (items.size() != 2) rt.fail("urlencode needs pairs of key and value");
    if (!out.empty()) out += '&';
    append_url_quoted(rt, out, to_str(rt, items[0]), true);
    out += '=';
    append_url_quoted(rt, out, to_str(rt, items[1]), true);
  }
  return rt.string(std::move(out));
}

Value xml_attributes(Runtime& rt, const Value& value, const Args& args) {
  if (!value.is(Kind::kDict)) rt.fail(fmt::format("xmlattr needs a mapping, not {}", type_name(value)));
  std::string out;
  for (const auto& [key, item] : value.dict().items()) {
    if (item.is(Kind::kNone) || item.is(Kind::kUndefined)) continue;
    const std::string_view name = expect_text(rt, key, "the name of an attribute");
    if (name.find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos) {
      rt.fail(fmt::format("invalid character in attribute name: '{}'", text::clip(name)));
    }
    rt.append(out, out.empty() ? "" : " ");
    rt.append(out, escape(rt, key));
    rt.append(out, "=\"");
    rt.append(out, escape(rt, item));
    rt.append(out, "\"");
  }
  if (!out.empty() && (!args.find(0) || truthy(args[0]))) out.insert(0, 1, ' ');
  return rt.string(std::move(out));
}

// Removes each span from `open` to the next `close`, from left to right, until one of them is missing.
std::string without_spans(std::string_view s, std::string_view open, std::string_view close) {
  std::string out;
  size_t from = 0;
  while (true) {
    const size_t begin = text::find(s, open, from);
    const size_t end = begin == std::string_view::npos ? begin : text::find(s, close, begin);
    if (end == std::string_view::npos) break;
    out += s.substr(from, begin - from);
    from = end + close.size();
  }
  return out += s.substr(from);
}

// Resolves numeric references and the five entities of XML. Other names are errors, because a wrong guess would go
// unnoticed.
std::string unescape_html(Runtime& rt, std::string_view s) {
  constexpr std::pair<std::string_view, char> kNames[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string out;
  for (size_t at = 0; at < s.size();) {
    if (s[at] != '&' || at + 1 == s.size()) {
      out += s[at++];
      continue;
    }
    const std::string_view rest = s.substr(at);
    const auto* name =
        std::find_if(std::begin(kNames), std::end(kNames), [&](const auto& n) { return rest.starts_with(n.first); });
    if (name != std::end(kNames)) {
      out += name->second;
      at += name->first.size();
    } else if (rest.starts_with("&#")) {
      const bool hex = rest.size() > 2 && (rest[2] | 0x20) == 'x';
      const char* begin = rest.data() + (hex ? 3 : 2);
      uint32_t code = 0;
      const auto read = std::from_chars(begin, rest.data() + rest.size(), code, hex ? 16 : 10);
      const bool valid = read.ec == std::errc() && code >= 0x20 && code <= 0x10FFFF && !(code >= 0x7F && code < 0xA0) &&
                         !(code >= 0xD800 && code < 0xE000);
      if (!valid) rt.fail("striptags: unsupported character reference");
      text::append(out, code);
      at += static_cast<size_t>(read.ptr - rest.data());
      if (at < s.size() && s[at] == ';') ++at;
    } else if ((rest[1] >= 'a' && rest[1] <= 'z') || (rest[1] >= 'A' && rest[1] <= 'Z')) {
      rt.fail(fmt::format("striptags: unsupported entity '{}'", text::clip(rest)));
    } else {
      out += s[at++];
    }
  }
  return out;
}

Value strip_tags(Runtime& rt, const Value& value, const Args&) {
  const std::string text = to_str(rt, value);
  rt.spend_scan(2 * text.size());
  rt.heap.expect(3 * text.size());
  const std::string plain = without_spans(without_spans(text, "<!--", "-->"), "<", ">");
  std::string joined;
  for (std::string_view rest = text::strip(plain); !rest.empty();) {
    size_t end = 0;
    for (size_t at = 0; at < rest.size(); end = at) {
      if (text::is_space(text::next(rest, at))) break;
    }
    if (!joined.empty()) joined += ' ';
    joined += rest.substr(0, end);
    rest = text::strip(rest.substr(end), text::kLeft);
  }
  return rt.string(unescape_html(rt, joined));
}

constexpr Builtin kTextFilters[] = {
    {"capitalize", "", change<text::capitalize>},
    {"lower", "", change<text::lower>},
    {"upper", "", change<text::upper>},
    {"title", "", change<title_words>},
    {"string", "", to_string},
    {"safe", "", mark_safe},
    {"e", "", escape_value},
    {"escape", "", escape_value},
    {"forceescape", "", force_escape},
    {"trim", "chars=", trim},
    {"replace", "old new count=", replace},
    {"center", "width=", center},
    {"format", "* **", format},
    {"wordcount", "", word_count},
    {"urlencode", "", url_encode},
    {"xmlattr", "autospace=", xml_attributes},
    {"striptags", "", strip_tags},
};

}  // namespace

std::span<const Builtin> text_filters() { return kTextFilters; }

}  // namespace sluice::jinja
