// The tojson filter: the same bytes as Python's json.dumps.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/ops.h"
#include "chat/jinja/text.h"

namespace sluice::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& rt, bool ascii, bool sort_keys, std::string item_separator, std::string key_separator,
             std::optional<std::string> indent)
      : rt_(rt),
        ascii_(ascii),
        sort_keys_(sort_keys),
        item_separator_(std::move(item_separator)),
        key_separator_(std::move(key_separator)),
        indent_(std::move(indent)) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& value, int level) {
    rt_.spend();
    const Runtime::Depth depth(rt_);
    switch (value.kind()) {
      case Kind::kString:
        return write_string(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value.items(), level);
      case Kind::kDict:
        return write_dict(value.dict(), level);
      default:
        return rt_.append(out_, scalar(value));
    }
  }

  std::string scalar(const Value& value) const {
    switch (value.kind()) {
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return value.as_bool() ? "true" : "false";
      case Kind::kInt:
      case Kind::kBig:
        return to_str(rt_, value);
      case Kind::kFloat: {
        const double d = value.as_float();
        if (std::isnan(d)) return "NaN";
        if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
        return float_repr(d);
      }
      default:
        rt_.fail(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
  }

  void write_string(std::string_view s) {
    rt_.spend_scan(s.size());
    std::string piece = "\"";
    for (size_t at = 0; at < s.size();) {
      const auto byte = static_cast<unsigned char>(s[at]);
      if (byte >= 0x80) {
        const size_t begin = at;
        const char32_t c = text::next(s, at);
        ascii_ ? append_unicode_escape(piece, c) : void(piece += s.substr(begin, at - begin));
      } else {
        append_ascii(piece, s[at++]);
      }
      if (piece.size() > 4096) {
        rt_.append(out_, piece);
        piece.clear();
      }
    }
    piece += '"';
    rt_.append(out_, piece);
  }

  void append_ascii(std::string& out, char c) const {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\b':
        out += "\\b";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || (c == 0x7F && ascii_)) {
          append_unit(out, static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }

  static void append_unit(std::string& out, uint32_t unit) {
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[unit >> shift & 15];
  }

  // Escapes a code point as UTF-16.
  static void append_unicode_escape(std::string& out, char32_t c) {
    if (c < 0x10000) return append_unit(out, c);
    append_unit(out, 0xD800 + ((c - 0x10000) >> 10));
    append_unit(out, 0xDC00 + ((c - 0x10000) & 0x3FF));
  }

  void new_line(int level) {
    if (!indent_) return;
    rt_.append(out_, "\n");
    for (int i = 0; i < level; ++i) rt_.append(out_, *indent_);
  }

  void write_list(const std::vector<Value>& items, int level) {
    if (items.empty()) return rt_.append(out_, "[]");
    rt_.append(out_, "[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) rt_.append(out_, item_separator_);
      new_line(level + 1);
      write(items[i], level + 1);
    }
    new_line(level);
    rt_.append(out_, "]");
  }

  void write_dict(const Dict& dict, int level) {
    if (dict.size() == 0) return rt_.append(out_, "{}");
    std::vector<const Dict::Item*> items;
    for (const Dict::Item& item : dict.items()) items.push_back(&item);
    if (sort_keys_) {
      std::stable_sort(items.begin(), items.end(),
                       [this](const auto* a, const auto* b) { return less(rt_, a->first, b->first); });
    }
    rt_.append(out_, "{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) rt_.append(out_, item_separator_);
      new_line(level + 1);
      write_key(items[i]->first);
      rt_.append(out_, key_separator_);
      write(items[i]->second, level + 1);
    }
    new_line(level);
    rt_.append(out_, "}");
  }

  void write_key(const Value& key) {
    if (key.is(Kind::kString)) return write_string(key.text());
    if (key.is_object()) {
      rt_.fail(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
    rt_.append(out_, fmt::format("\"{}\"", scalar(key)));
  }

  Runtime& rt_;
  const bool ascii_, sort_keys_;
  const std::string item_separator_, key_separator_;
  const std::optional<std::string> indent_;  // indentation of one level; nullopt: everything on one line
  std::string out_;
};

}  // namespace

std::string to_json(Runtime& rt, const Value& value, const Value* ensure_ascii, const Value* indent,
                    const Value* separators, const Value* sort_keys) {
  std::optional<std::string> unit;
  if (indent && !indent->is(Kind::kNone)) {
    if (indent->is(Kind::kString)) {
      unit = indent->text();
    } else {
      const int64_t width = std::max<int64_t>(0, expect_int(rt, *indent, "indent"));
      rt.heap.expect(static_cast<size_t>(width));
      unit = std::string(static_cast<size_t>(width), ' ');
    }
  }
  std::string item_separator = unit ? "," : ", ";
  std::string key_separator = ": ";
  if (separators && !separators->is(Kind::kNone)) {
    const auto pair = to_vector(rt, *separators);
    if (pair.size() != 2) rt.fail("separators must be a pair of strings");
    item_separator = expect_text(rt, pair[0], "separator");
    key_separator = expect_text(rt, pair[1], "separator");
  }
  JsonWriter writer(rt, ensure_ascii && truthy(*ensure_ascii), sort_keys && truthy(*sort_keys),
                    std::move(item_separator), std::move(key_separator), std::move(unit));
  return writer.run(value);
}

}  // namespace sluice::jinja
