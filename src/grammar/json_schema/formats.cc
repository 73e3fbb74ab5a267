#include "grammar/json_schema/formats.h"

#include <fmt/core.h>

#include <map>
#include <mutex>
#include <string>

namespace sluice::grammar::json_schema {
namespace {

// RFC 3339, section 5.6. Days exist in their month; 29 February exists in leap years.
std::string date() {
  const std::string leap = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29";
  return "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
         "02-(?:0[1-9]|1[0-9]|2[0-8]))|" +
         leap + ")";
}

// A leap second comes at 23:59:60 UTC, at any offset that makes it that.
std::string time() {
  const std::string offset = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
  std::string out = "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?" + offset;
  out += "|23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+-]00:00)";
  for (int minutes = 0; minutes < 24 * 60; minutes += 15) {
    if (minutes == 0) continue;
    for (const char sign : {'+', '-'}) {
      const int local = (24 * 60 - 1 + (sign == '+' ? minutes : 24 * 60 - minutes)) % (24 * 60);
      out += fmt::format("|{:02}:{:02}:60(?:\\.[0-9]+)?[{}]{:02}:{:02}", local / 60, local % 60,
                         sign == '+' ? "+" : "-", minutes / 60, minutes % 60);
    }
  }
  return out + ")";
}

// RFC 3339, appendix A.
std::string duration() {
  const std::string t = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)";
  const std::string d = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)";
  return "P(?:" + d + "(?:" + t + ")?|" + t + "|[0-9]+W)";
}

const std::string kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
const std::string kHost = kLabel + "(?:\\." + kLabel + ")*";
const std::string kOctet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
const std::string kIpv4 = kOctet + "(?:\\." + kOctet + "){3}";

// RFC 4291, section 2.2.
std::string ipv6() {
  const std::string h = "[0-9A-Fa-f]{1,4}", tail = "(?:" + h + ":" + h + "|" + kIpv4 + ")";
  std::string out = "(?:(?:" + h + ":){6}" + tail;
  for (int before = 0; before <= 7; ++before) {
    // `before` groups, "::", and at most 7 - before groups after it.
    const std::string left = before == 0 ? "" : h + fmt::format("(?::{}){{{}}}", h, before - 1);
    const int most = 7 - before;
    out += "|" + left + "::";
    if (most >= 1) {
      std::string right = fmt::format("{}(?::{}){{0,{}}}", h, h, most - 1);
      if (most >= 2) right += fmt::format("|(?:{}:){{0,{}}}{}", h, most - 2, kIpv4);
      out += "(?:" + right + ")?";
    }
  }
  return out + ")";
}

// RFC 3986, appendix A.
struct Uri {
  std::string unreserved = "A-Za-z0-9._~\\-", escaped = "%[0-9A-Fa-f]{2}", others = "!$&'()*+,;=";
  explicit Uri(std::string more) { unreserved += more; }

  std::string pchar() const { return "(?:[" + unreserved + others + ":@]|" + escaped + ")"; }
  std::string authority() const {
    const std::string plain = "(?:[" + unreserved + others + "]|" + escaped + ")";
    const std::string user = "(?:(?:[" + unreserved + others + ":]|" + escaped + ")*@)?";
    const std::string literal = "\\[(?:" + ipv6() + "|v[0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]";
    return user + "(?:" + literal + "|" + plain + "*)(?::[0-9]*)?";
  }
  std::string tail() const {
    const std::string rest = "(?:" + pchar() + "|[/?])*";
    return "(?:\\?" + rest + ")?(?:#" + rest + ")?";
  }
  std::string absolute_path() const { return "/(?:" + pchar() + "+(?:/" + pchar() + "*)*)?"; }
  std::string uri() const {
    return "[A-Za-z][A-Za-z0-9+.-]*:(?://" + authority() + "(?:/" + pchar() + "*)*|" + absolute_path() + "|" + pchar() +
           "+(?:/" + pchar() + "*)*|)" + tail();
  }
  std::string relative() const {
    const std::string first = "(?:[" + unreserved + others + "@]|" + escaped + ")+";
    return "(?://" + authority() + "(?:/" + pchar() + "*)*|" + absolute_path() + "|" + first + "(?:/" + pchar() +
           "*)*|)" + tail();
  }
};

std::string email(const std::string& letters, const std::string& host) {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~" + letters + "-]+";
  const std::string quoted = "\"(?:[ !#-\\[\\]-~" + letters + "]|\\\\[ -~])*\"";
  return "(?:" + atom + "(?:\\." + atom + ")*|" + quoted + ")@(?:" + host + "|\\[(?:" + kIpv4 + "|IPv6:" + ipv6() +
         ")\\])";
}

// RFC 6570, section 2.
std::string uri_template() {
  const std::string escaped = "%[0-9A-Fa-f]{2}", character = "(?:[A-Za-z0-9_]|" + escaped + ")";
  const std::string variable = character + "(?:\\.?" + character + ")*(?::[1-9][0-9]{0,3}|\\*)?";
  return "(?:[^\\x00-\\x20\"'%<>\\\\^`{|}\\x7f]|" + escaped + "|\\{[+#./;?&=,!@|]?" + variable + "(?:," + variable +
         ")*\\})*";
}

// {n}, {n,} and {n,m} with n up to 999 and m up to 9999, n not above m where both have at most two digits.
std::string regex_counts() {
  std::string pairs = "[0-9],[1-9][0-9]{1,3}|[1-9][0-9],[1-9][0-9]{2,3}|[1-9][0-9]{2},[1-9][0-9]{2,3}";
  for (char tens = '0'; tens <= '9'; ++tens) {
    pairs += fmt::format("|{},[{}-9]", tens, tens);
    if (tens == '0') continue;
    if (tens < '9') pairs += fmt::format("|{}[0-9],[{}-9][0-9]", tens, static_cast<char>(tens + 1));
    for (char ones = '0'; ones <= '9'; ++ones) pairs += fmt::format("|{}{},{}[{}-9]", tens, ones, tens, ones);
  }
  return "\\{(?:[0-9]{1,3},?|" + pairs + ")\\}";
}

// Regular expressions of ECMA 262, with groups at most `depth` deep. Left out is what depends on other parts of the
// expression, such as back-references, and ranges of characters that are no letters or digits.
std::string regex(int depth) {
  const std::string escape = "\\\\(?:[fnrtv0]|[^A-Za-z0-9_\\x00-\\x1f]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})";
  const std::string kind = "\\\\(?:[dDwWsS]|[pP]\\{[A-Za-z0-9_]+(?:=[A-Za-z0-9_]+)?\\})";
  std::string range = "[0-9]-[A-Za-z]|[A-Z]-[a-z]|" + escape + "-" + escape;
  for (const std::string_view letters : {"09", "AZ", "az"}) {
    for (char c = letters[0]; c <= letters[1]; ++c) range += fmt::format("|{}-[{}-{}]", c, c, letters[1]);
  }
  const std::string set = "\\[\\^?(?:-?(?:(?:" + range + "|" + kind + ")-?|[^\\\\\\]-]|" + escape + "|\\\\b)+-?|-)\\]";
  std::string atom = "[^\\\\^$*+?()\\[{|]|" + escape + "|" + kind + "|" + set;
  if (depth > 0) {
    atom += "|\\((?:\\?(?:[:=!]|<[=!]|<[A-Za-z_$][A-Za-z0-9_$]*>))?" + regex(depth - 1) + "\\)";
  }
  return "(?:(?:" + atom + ")(?:(?:[*+?]|" + regex_counts() + ")(?:\\?)?)?|\\^|\\$|\\\\[bB]|\\|)*";
}

std::string pattern_of(std::string_view name) {
  const std::string wide = "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{efffd}";
  const std::string pointer = "(?:/(?:[^~/]|~[01])*)*";
  if (name == "date") return date();
  if (name == "time") return time();
  if (name == "date-time") return date() + "[Tt]" + time();
  if (name == "duration") return duration();
  if (name == "email") return email("", kHost);
  if (name == "idn-email")
    return email(wide, "[A-Za-z0-9" + wide + "](?:[A-Za-z0-9." + wide + "-]*[A-Za-z0-9" + wide + "])?");
  if (name == "hostname") return "(?=.{1,253}$)" + kHost;
  if (name == "ipv4") return kIpv4;
  if (name == "ipv6") return ipv6();
  constexpr int kDeepestGroup = 4;
  if (name == "regex") return regex(kDeepestGroup);
  if (name == "uri-template") return uri_template();
  if (name == "uri") return Uri("").uri();
  if (name == "uri-reference") return "(?:" + Uri("").uri() + "|" + Uri("").relative() + ")";
  if (name == "iri") return Uri(wide).uri();
  if (name == "iri-reference") return "(?:" + Uri(wide).uri() + "|" + Uri(wide).relative() + ")";
  if (name == "uuid") return "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  if (name == "json-pointer") return pointer;
  if (name == "relative-json-pointer") return "(?:0|[1-9][0-9]*)(?:#|" + pointer + ")";
  return "";
}

}  // namespace

const Automaton* format(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, Automaton, std::less<>> known;
  const std::scoped_lock lock(mutex);
  const auto found = known.find(name);
  if (found != known.end()) return &found->second;
  const std::string pattern = pattern_of(name);
  if (pattern.empty()) return nullptr;
  Budget budget({.fuel = int64_t{1} << 32, .bytes = int64_t{1} << 32, .time = std::chrono::minutes(1)});
  // "." and negated sets leave out line terminators only; a format is the whole text.
  Automaton whole = parse_regex(pattern, RegexSyntax::kEcma, true, budget);
  constexpr int kMostMinimized = 2000;  // states; others are left as they are
  if (whole.states() <= kMostMinimized) whole = determinize(whole, budget);
  return &known.emplace(std::string(name), whole).first->second;
}

}  // namespace sluice::grammar::json_schema
