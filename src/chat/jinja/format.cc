// printf-style formatting ("%s" % x) and str.format with Python's format specifications.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxPrecision = 1000;

struct Spec {
  std::string fill = " ";  // one code point
  char align = '\0';       // < > = ^
  char sign = '-';         // + - or space
  bool alternate = false;
  char grouping = '\0';  // , or _
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

std::string pad(Runtime& rt, const Spec& spec, std::string text, char default_align, size_t sign_length = 0) {
  const auto n = static_cast<int64_t>(text::count(text));
  if (spec.width <= n) return text;
  const auto missing = static_cast<size_t>(spec.width - n);
  rt.heap.expect(text.size() + missing * spec.fill.size());
  rt.spend_copy(missing * spec.fill.size());
  const auto fill = [&](size_t count) {
    if (spec.fill.size() == 1) return std::string(count, spec.fill[0]);
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (spec.align ? spec.align : default_align) {
    case '<':
      return fmt::format("{}{}", text, fill(missing));
    case '^':
      return fmt::format("{}{}{}", fill(missing / 2), text, fill(missing - missing / 2));
    case '=':
      return text.insert(sign_length, fill(missing));
    default:
      return text.insert(0, fill(missing));
  }
}

std::string print_float(Runtime& rt, double value, char type, int64_t precision, bool alternate) {
  if (precision > kMaxPrecision) rt.fail("precision too big");
  const bool upper = type == 'E' || type == 'F' || type == 'G';
  if (!std::isfinite(value)) {
    const std::string name = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    return upper ? text::upper(name) : name;
  }
  const std::string format = fmt::format("%{}.*{}", alternate ? "#" : "", type);
  std::string out(static_cast<size_t>(precision) + 400, '\0');
  const int n = std::snprintf(out.data(), out.size(), format.c_str(), static_cast<int>(precision), value);
  out.resize(static_cast<size_t>(n));
  return out;
}

std::string integer_digits(uint64_t value, unsigned base, bool upper) {
  constexpr std::string_view kLower = "0123456789abcdef";
  constexpr std::string_view kUpper = "0123456789ABCDEF";
  const std::string_view digits = upper ? kUpper : kLower;
  std::string out;
  do {
    out += digits[value % base];
    value /= base;
  } while (value > 0);
  std::reverse(out.begin(), out.end());
  return out;
}

// Groups the digits before the decimal point or exponent. Zeros that pad to the width are grouped too.
std::string group_digits(std::string digits, const Spec& spec, size_t size, size_t prefix_length) {
  size_t end = 0;
  while (end < digits.size() && std::isxdigit(static_cast<unsigned char>(digits[end])) &&
         !(size == 3 && (digits[end] | 0x20) == 'e')) {
    ++end;
  }
  if (spec.fill == "0" && spec.align == '=') {
    const auto grouped = [&] { return prefix_length + digits.size() + (end - 1) / size; };
    while (end > 0 && grouped() < static_cast<size_t>(spec.width)) {
      digits.insert(0, 1, '0');
      ++end;
    }
  }
  for (size_t at = end; at > size; at -= size) digits.insert(at - size, 1, spec.grouping);
  return digits;
}

std::string with_sign(bool negative, char sign) { return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : ""; }

// --- printf style

class PercentFormatter {
 public:
  PercentFormatter(Runtime& rt, std::string_view format, const Value& values, bool safe)
      : rt_(rt), format_(format), values_(values), safe_(safe) {}

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const size_t percent = std::min(format_.find('%', at_), format_.size());
      rt_.append(out, format_.substr(at_, percent - at_));
      at_ = percent;
      if (at_ == format_.size()) break;
      ++at_;
      rt_.spend();
      rt_.append(out, conversion());
    }
    const bool mapping = values_.is(Kind::kDict) || values_.is(Kind::kList) || values_.is(Kind::kRange) ||
                         values_.is(Kind::kUndefined);  // Python treats these as having items, which may stay unused
    const size_t count = values_.is(Kind::kTuple) ? values_.items().size() : mapping ? used_ : 1;
    if (used_ < count) rt_.fail("not all arguments converted during string formatting");
    return out;
  }

 private:
  char take() {
    if (at_ >= format_.size()) rt_.fail("incomplete format");
    return format_[at_++];
  }

  Value next_value() {
    if (values_.is(Kind::kTuple)) {
      if (used_ >= values_.items().size()) rt_.fail("not enough arguments for format string");
      return values_.items()[used_++];
    }
    if (used_++ > 0) rt_.fail("not enough arguments for format string");
    return values_;
  }

  Value named_value() {
    size_t nesting = 1;
    const size_t begin = at_;
    while (nesting > 0) {
      const char c = take();
      nesting += c == '(' ? 1 : 0;
      nesting -= c == ')' ? 1 : 0;
    }
    if (!values_.is(Kind::kDict)) rt_.fail("format requires a mapping");
    const std::string_view name = format_.substr(begin, at_ - 1 - begin);
    const Value* value = values_.dict().find(name);
    if (!value) rt_.fail(fmt::format("format: no key '{}'", text::clip(name)));
    return *value;
  }

  int64_t number(int64_t limit) {
    if (at_ < format_.size() && format_[at_] == '*') {
      ++at_;
      return expect_int(rt_, next_value(), "*");
    }
    int64_t value = 0;
    while (at_ < format_.size() && format_[at_] >= '0' && format_[at_] <= '9') {
      value = value * 10 + (format_[at_++] - '0');
      if (value > limit) rt_.fail("width or precision too big");
    }
    return value;
  }

  std::string conversion() {
    Spec spec;
    bool zero = false;
    std::optional<Value> named;
    char c = take();
    if (c == '(') {
      named = named_value();
      c = take();
    }
    for (; std::string_view("#0- +").find(c) != std::string_view::npos; c = take()) {
      if (c == '#') spec.alternate = true;
      if (c == '0') zero = true;
      if (c == '-') spec.align = '<';
      if (c == '+') spec.sign = '+';
      if (c == ' ' && spec.sign != '+') spec.sign = ' ';
    }
    --at_;
    spec.width = number(kMaxWidth);
    if (spec.width < 0) {
      spec.align = '<';
      spec.width = -spec.width;
    }
    if (spec.width > kMaxWidth) rt_.fail("width too big");
    if (at_ < format_.size() && format_[at_] == '.') {
      ++at_;
      spec.precision = std::max<int64_t>(0, number(kMaxPrecision));
    }
    c = take();
    while (c == 'l' || c == 'h' || c == 'L') c = take();
    if (c == '%') return "%";
    const Value value = named ? *std::move(named) : next_value();
    return convert(c, spec, zero, value);
  }

  std::string convert(char type, Spec& spec, bool zero, const Value& value) {
    switch (type) {
      case 's':
      case 'r':
      case 'a': {
        std::string text;
        type == 's' ? append_str(rt_, text, value) : append_repr(rt_, text, value);
        if (safe_ && !value.is_safe()) text = escape(rt_, rt_.string(std::move(text)));
        if (spec.precision >= 0) text.resize(text::skip(text, 0, static_cast<size_t>(spec.precision)));
        return pad(rt_, spec, std::move(text), '>');
      }
      case 'c': {
        std::string text;
        if (value.is(Kind::kString)) {
          text = value.text();
        } else {
          const int64_t code = expect_int(rt_, value, "%c");
          if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) rt_.fail("%c: not a valid character");
          text::append(text, static_cast<char32_t>(code));
        }
        if (text::count(text) != 1) rt_.fail("%c requires int or char");
        return pad(rt_, spec, std::move(text), '>');
      }
      case 'd':
      case 'i':
      case 'u':
      case 'o':
      case 'x':
      case 'X':
        return convert_integer(type, spec, zero, value);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': {
        if (!value.is_number()) rt_.fail(fmt::format("must be real number, not {}", type_name(value)));
        const double d = value.as_float();
        std::string digits =
            print_float(rt_, std::abs(d), type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
        return finish(spec, zero, with_sign(std::signbit(d) && !std::isnan(d), spec.sign), std::move(digits));
      }
      default:
        rt_.fail(fmt::format("unsupported format character '{}'", text::clip(format_.substr(at_ - 1))));
    }
  }

  std::string convert_integer(char type, Spec& spec, bool zero, const Value& value) {
    const bool decimal = type == 'd' || type == 'i' || type == 'u';
    __int128 number = 0;
    if (value.is_integer()) {
      number = value.wide();
    } else if (decimal && value.is(Kind::kFloat)) {
      if (!(std::abs(value.as_float()) < 0x1p63)) rt_.fail("an integer needs more than 64 bits");
      number = static_cast<__int128>(value.as_float());
    } else {
      rt_.fail(fmt::format("%{} format: a number is required, not {}", type, type_name(value)));
    }
    const bool negative = number < 0;
    std::string digits = integer_digits(static_cast<uint64_t>(negative ? -number : number),
                                        decimal       ? 10
                                        : type == 'o' ? 8
                                                      : 16,
                                        type == 'X');
    if (spec.precision > static_cast<int64_t>(digits.size())) {
      digits.insert(0, static_cast<size_t>(spec.precision) - digits.size(), '0');
    }
    std::string prefix = with_sign(negative, spec.sign);
    if (spec.alternate && !decimal) prefix += type == 'o' ? "0o" : type == 'x' ? "0x" : "0X";
    return finish(spec, zero, prefix, std::move(digits));
  }

  std::string finish(Spec& spec, bool zero, const std::string& prefix, std::string digits) {
    if (zero && spec.align == '\0') {
      spec.fill.assign(1, '0');
      spec.align = '=';
    }
    return pad(rt_, spec, prefix + digits, '>', prefix.size());
  }

  Runtime& rt_;
  const std::string_view format_;
  const Value& values_;
  const bool safe_;
  size_t at_ = 0;
  size_t used_ = 0;
};

// --- format specifications

Spec parse_spec(Runtime& rt, std::string_view s) {
  Spec spec;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '=' || c == '^'; };
  size_t at = 0;
  if (!s.empty()) {
    const size_t second = text::skip(s, 0, 1);
    if (second < s.size() && is_align(s[second])) {
      spec.fill = s.substr(0, second);
      spec.align = s[second];
      at = second + 1;
    } else if (is_align(s[0])) {
      spec.align = s[0];
      at = 1;
    }
  }
  const auto take_if = [&](std::string_view set) {
    return at < s.size() && set.find(s[at]) != set.npos ? s[at++] : '\0';
  };
  const auto number = [&]() -> std::optional<int64_t> {
    int64_t value = 0;
    const auto read = std::from_chars(s.data() + at, s.data() + s.size(), value);
    if (read.ec == std::errc::invalid_argument || s[at] == '-') return std::nullopt;
    if (read.ec != std::errc() || value > kMaxWidth) rt.fail("width or precision too big");
    at = static_cast<size_t>(read.ptr - s.data());
    return value;
  };
  if (const char sign = take_if("+- ")) spec.sign = sign;
  if (take_if("#")) spec.alternate = true;
  if (at < s.size() && s[at] == '0') {
    ++at;
    if (spec.align == '\0') {
      spec.fill.assign(1, '0');
      spec.align = '0';  // '=' for numbers, '<' for strings
    }
  }
  if (at < s.size()) spec.width = number().value_or(0);
  if (const char grouping = take_if(",_")) spec.grouping = grouping;
  if (take_if(".")) {
    const auto precision = at < s.size() ? number() : std::nullopt;
    if (!precision) rt.fail("format specifier missing precision");
    spec.precision = *precision;
  }
  if (at < s.size()) spec.type = s[at++];
  if (at < s.size()) rt.fail(fmt::format("invalid format specifier '{}'", text::clip(s)));
  return spec;
}

[[noreturn]] void fail_code(Runtime& rt, char code, const Value& value) {
  rt.fail(fmt::format("unknown format code '{}' for object of type '{}'", code, type_name(value)));
}

std::string format_text(Runtime& rt, const Value& value, Spec spec) {
  if (spec.type != '\0' && spec.type != 's') fail_code(rt, spec.type, value);
  if (spec.align == '=' || spec.sign != '-' || spec.alternate || spec.grouping) {
    rt.fail("sign, '=', '#' and ',' are not allowed in the format of a string");
  }
  if (spec.align == '0') spec.align = '<';
  std::string text(value.text());
  if (spec.precision >= 0) text.resize(text::skip(text, 0, static_cast<size_t>(spec.precision)));
  return pad(rt, spec, std::move(text), '<');
}

std::string format_integer(Runtime& rt, const Value& value, const Spec& spec) {
  if (spec.precision >= 0) rt.fail("precision not allowed in integer format specifier");
  const __int128 number = value.wide();
  const bool negative = number < 0;
  const auto size = static_cast<uint64_t>(negative ? -number : number);
  std::string prefix = with_sign(negative, spec.sign);
  if (spec.type == 'c') {
    if (negative || size > 0x10FFFF || (size >= 0xD800 && size < 0xE000)) rt.fail("%c arg not in range(0x110000)");
    std::string text;
    text::append(text, static_cast<char32_t>(size));
    return pad(rt, spec, std::move(text), '<');
  }
  const unsigned base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : (spec.type | 0x20) == 'x' ? 16 : 10;
  std::string digits = integer_digits(size, base, spec.type == 'X');
  if (spec.alternate && base != 10) prefix += {'0', spec.type};
  if (spec.grouping) digits = group_digits(std::move(digits), spec, base == 10 ? 3 : 4, prefix.size());
  return pad(rt, spec, prefix + digits, '>', prefix.size());
}

std::string format_real(Runtime& rt, const Value& value, const Spec& spec) {
  double d = value.as_float();
  const bool negative = std::signbit(d) && !std::isnan(d);
  if (spec.type == '%') d *= 100;
  std::string digits;
  if (spec.type == '\0' && spec.precision < 0) {
    digits = float_repr(std::abs(d));
  } else if (spec.type == '\0') {
    digits = print_float(rt, std::abs(d), 'g', std::max<int64_t>(1, spec.precision), false);
    if (std::isfinite(d) && digits.find_first_of(".e") == std::string::npos) digits += ".0";
  } else {
    const char type = spec.type == '%' ? 'f' : spec.type == 'n' ? 'g' : spec.type;
    digits = print_float(rt, std::abs(d), type, spec.precision < 0 ? 6 : spec.precision, spec.alternate);
  }
  if (spec.type == '%') digits += '%';
  const std::string prefix = with_sign(negative, spec.sign);
  if (spec.grouping) digits = group_digits(std::move(digits), spec, 3, prefix.size());
  return pad(rt, spec, prefix + digits, '>', prefix.size());
}

std::string format_value(Runtime& rt, const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return to_str(rt, value);
  if (!value.is(Kind::kString) && !value.is_number()) {
    rt.fail(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  Spec spec = parse_spec(rt, spec_text);
  if (value.is(Kind::kString)) return format_text(rt, value, spec);
  if (spec.align == '0') spec.align = '=';
  constexpr std::string_view kIntegerTypes = "bcdoxXn";
  constexpr std::string_view kFloatTypes = "eEfFgGn%";
  if (value.is_integer() && (spec.type == '\0' || kIntegerTypes.find(spec.type) != std::string_view::npos)) {
    return format_integer(rt, value, spec);
  }
  if (spec.type != '\0' && kFloatTypes.find(spec.type) == std::string_view::npos) fail_code(rt, spec.type, value);
  return format_real(rt, value, spec);
}

// --- str.format

class BraceFormatter {
 public:
  BraceFormatter(Runtime& rt, std::span<const Value> positional, const Dict& named, bool safe)
      : rt_(rt), positional_(positional), named_(named), safe_(safe) {}

  std::string run(std::string_view format, int levels = 2) {
    if (levels == 0) rt_.fail("max string recursion exceeded");
    std::string out;
    for (size_t at = 0; at < format.size();) {
      const size_t brace = std::min(format.find_first_of("{}", at), format.size());
      rt_.append(out, format.substr(at, brace - at));
      at = brace;
      if (at == format.size()) break;
      const char c = format[at];
      if (at + 1 < format.size() && format[at + 1] == c) {
        out += c;
        at += 2;
        continue;
      }
      if (c == '}') rt_.fail("single '}' encountered in format string");
      const size_t end = field_end(format, at);
      rt_.spend();
      rt_.append(out, field(format.substr(at + 1, end - at - 1), levels));
      at = end + 1;
    }
    return out;
  }

 private:
  size_t field_end(std::string_view format, size_t open) const {
    int nesting = 0;
    for (size_t at = open; at < format.size(); ++at) {
      nesting += format[at] == '{' ? 1 : 0;
      nesting -= format[at] == '}' ? 1 : 0;
      if (nesting == 0) return at;
    }
    rt_.fail("expected '}' before end of string");
  }

  // "name!conversion:spec"
  std::string field(std::string_view text, int levels) {
    size_t name_end = 0;
    for (bool in_brackets = false; name_end < text.size(); ++name_end) {
      const char c = text[name_end];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (!in_brackets && (c == '!' || c == ':')) break;
    }
    Value value = lookup(text.substr(0, name_end));
    std::string_view rest = text.substr(name_end);
    if (rest.starts_with('!')) {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':')) rt_.fail("expected ':' after conversion specifier");
      value = convert(rest[1], value);
      rest.remove_prefix(2);
    }
    const std::string spec = rest.empty() ? "" : run(rest.substr(1), levels - 1);
    std::string out = format_value(rt_, value, spec);
    return safe_ && !value.is_safe() ? escape(rt_, rt_.string(std::move(out))) : out;
  }

  Value convert(char conversion, const Value& value) {
    if (conversion == 's') return rt_.string(to_str(rt_, value));
    if (conversion != 'r') rt_.fail("unknown conversion specifier after '!'");
    std::string out;
    append_repr(rt_, out, value);
    return rt_.string(std::move(out));
  }

  static std::optional<int64_t> index_of(std::string_view text) {
    int64_t index = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), index);
    if (text.empty() || text[0] == '-' || read.ec != std::errc() || read.ptr != text.data() + text.size()) {
      return std::nullopt;
    }
    return index;
  }

  Value first(std::string_view name) {
    const auto index = index_of(name);
    if (name.empty() || index) {
      const bool automatic = name.empty();
      if (numbering_ && *numbering_ != automatic) {
        rt_.fail("cannot mix automatic and manual field numbering");
      }
      numbering_ = automatic;
      const auto i = automatic ? next_++ : static_cast<size_t>(*index);
      if (i >= positional_.size()) rt_.fail("Replacement index out of range for positional args tuple");
      return positional_[i];
    }
    const Value* value = named_.find(name);
    if (!value) rt_.fail(fmt::format("format: no argument named '{}'", text::clip(name)));
    return *value;
  }

  // "first.attribute[item]"
  Value lookup(std::string_view path) {
    size_t at = std::min(path.find_first_of(".["), path.size());
    Value value = first(path.substr(0, at));
    while (at < path.size()) {
      if (path[at] == '.') {
        const size_t end = std::min(path.find_first_of(".[", at + 1), path.size());
        value = get_attribute(rt_, value, path.substr(at + 1, end - at - 1));
        at = end;
      } else if (path[at] == '[') {
        const size_t end = path.find(']', at);
        if (end == std::string_view::npos) rt_.fail("missing ']' in format string");
        const std::string_view key = path.substr(at + 1, end - at - 1);
        const auto index = index_of(key);
        value = get_item(rt_, value, index ? Value::integer(*index) : rt_.string(key));
        at = end + 1;
      } else {
        rt_.fail("only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Runtime& rt_;
  const std::span<const Value> positional_;
  const Dict& named_;
  const bool safe_;
  std::optional<bool> numbering_;  // true: automatic numbering
  size_t next_ = 0;
};

}  // namespace

std::string format_percent(Runtime& rt, std::string_view format, const Value& values, bool safe) {
  return PercentFormatter(rt, format, values, safe).run();
}

std::string format_braces(Runtime& rt, std::string_view format, std::span<const Value> positional, const Dict& named,
                          bool safe) {
  return BraceFormatter(rt, positional, named, safe).run(format);
}

}  // namespace sluice::jinja
