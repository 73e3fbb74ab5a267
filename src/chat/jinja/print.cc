// Prints values: str(), repr() and HTML escapes.
#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

void append_items(Runtime& rt, std::string& out, const std::vector<Value>& items) {
  bool first = true;
  for (const Value& item : items) {
    if (!first) rt.append(out, ", ");
    first = false;
    append_repr(rt, out, item);
  }
}

void append_dict(Runtime& rt, std::string& out, const Dict& dict) {
  rt.append(out, "{");
  bool first = true;
  for (const auto& [key, value] : dict.items()) {
    if (!first) rt.append(out, ", ");
    first = false;
    append_repr(rt, out, key);
    rt.append(out, ": ");
    append_repr(rt, out, value);
  }
  rt.append(out, "}");
}

std::string integer_text(const Value& value) {
  return value.is(Kind::kBig) ? std::to_string(static_cast<uint64_t>(value.wide()))
                              : std::to_string(static_cast<int64_t>(value.wide()));
}

}  // namespace

// The shortest digits that parse back to the same number, in Python's layout.
std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), end, exponent);
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", text.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  std::string out(buffer, fixed_end);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_quoted(Runtime& rt, std::string& out, std::string_view s) {
  rt.spend_scan(s.size());
  const bool double_quotes = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  const auto plain = [&](char c) { return c >= 0x20 && c < 0x7F && c != '\\' && c != quote; };
  std::string quoted(1, quote);
  for (size_t at = 0; at < s.size();) {
    const size_t begin = at;
    while (at < s.size() && plain(s[at])) ++at;
    if (at > begin) {
      rt.append(out, quoted);
      rt.append(out, s.substr(begin, at - begin));
      quoted.clear();
      continue;
    }
    const char32_t c = text::next(s, at);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      quoted += '\\';
      quoted += static_cast<char>(c);
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\r') {
      quoted += "\\r";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (text::is_printable(c)) {
      quoted += s.substr(begin, at - begin);
    } else {
      const auto code = static_cast<uint32_t>(c);
      quoted += code < 0x100     ? fmt::format("\\x{:02x}", code)
                : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                 : fmt::format("\\U{:08x}", code);
    }
    if (quoted.size() > 4096) {
      rt.append(out, quoted);
      quoted.clear();
    }
  }
  quoted += quote;
  rt.append(out, quoted);
}

void append_str(Runtime& rt, std::string& out, const Value& value) {
  if (value.is(Kind::kString)) {
    rt.append(out, value.text());
  } else if (!value.is(Kind::kUndefined)) {
    append_repr(rt, out, value);
  }
}

void append_repr(Runtime& rt, std::string& out, const Value& value) {
  rt.spend();
  const Runtime::Depth depth(rt);
  switch (value.kind()) {
    case Kind::kNone:
      return rt.append(out, "None");
    case Kind::kBool:
      return rt.append(out, value.as_bool() ? "True" : "False");
    case Kind::kInt:
    case Kind::kBig:
      return rt.append(out, integer_text(value));
    case Kind::kFloat:
      return rt.append(out, float_repr(value.as_float()));
    case Kind::kUndefined:
      return rt.append(out, "Undefined");
    case Kind::kString:
      if (value.is_safe()) rt.append(out, "Markup(");
      append_quoted(rt, out, value.text());
      if (value.is_safe()) rt.append(out, ")");
      return;
    case Kind::kList:
      rt.append(out, "[");
      append_items(rt, out, value.items());
      return rt.append(out, "]");
    case Kind::kTuple:
      rt.append(out, "(");
      append_items(rt, out, value.items());
      return rt.append(out, value.items().size() == 1 ? ",)" : ")");
    case Kind::kDict:
      return append_dict(rt, out, value.dict());
    case Kind::kView:
      rt.append(out, type_name(value) + "([");
      append_items(rt, out, to_vector(rt, value));
      return rt.append(out, "])");
    case Kind::kRange: {
      const auto& range = value.as<Range>();
      return rt.append(out, range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                                            : fmt::format("range({}, {}, {})", range.start, range.stop, range.step));
    }
    case Kind::kNamespace:
      rt.append(out, "<Namespace ");
      append_dict(rt, out, value.as<Namespace>().attributes);
      return rt.append(out, ">");
    case Kind::kIterator:
      rt.fail("a generator cannot be printed: pass it through the list filter");
    default:
      rt.fail(fmt::format("a {} cannot be printed", type_name(value)));
  }
}

std::string to_str(Runtime& rt, const Value& value) {
  std::string out;
  append_str(rt, out, value);
  return out;
}

std::string escape(Runtime& rt, const Value& value) {
  if (value.is_safe()) return rt.copy(value.text());
  std::string printed;
  if (!value.is(Kind::kString)) append_str(rt, printed, value);
  const std::string_view text = value.is(Kind::kString) ? value.text() : std::string_view(printed);
  rt.spend_scan(text.size());
  std::string out;
  for (size_t from = 0; from <= text.size();) {
    const size_t at = std::min(text.find_first_of("&<>'\"", from), text.size());
    rt.append(out, text.substr(from, at - from));
    if (at == text.size()) break;
    const char c = text[at];
    rt.append(out, c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '\'' ? "&#39;" : "&#34;");
    from = at + 1;
  }
  return out;
}

}  // namespace sluice::jinja
