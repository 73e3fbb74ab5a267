// Grammars that are made to cost time or memory, or to be malformed.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>
#include <vector>

namespace sluice::grammar {

struct Hostile {
  std::string name, kind, text;
};

inline std::string times(size_t n, const std::string& text) {
  std::string out;
  out.reserve(n * text.size());
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

// "0,1,2": what `part` makes of the numbers below n.
inline std::string list(size_t n, const std::function<std::string(size_t)>& part, const std::string& separator = ",") {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += (i > 0 ? separator : "") + part(i);
  return out;
}

class HostileGrammars {
 public:
  static std::vector<Hostile> all() {
    HostileGrammars h;
    h.deep_schemas();
    h.references();
    h.wide_schemas();
    h.counts();
    h.intersections();
    h.objects();
    h.values();
    h.malformed_schemas();
    h.regexes();
    h.gbnf();
    h.lark();
    h.structural_tags();
    return std::move(h.all_);
  }

 private:
  void add(std::string kind, std::string name, std::string text) {
    all_.push_back({std::move(kind) + ": " + std::move(name), "", std::move(text)});
    all_.back().kind = all_.back().name.substr(0, all_.back().name.find(':'));
  }
  void schema(std::string name, std::string text) { add("json_schema", std::move(name), std::move(text)); }

  void deep_schemas() {
    const std::pair<const char*, const char*> around[] = {{R"({"items":)", "}"},
                                                          {R"({"properties":{"a":)", "}}"},
                                                          {R"({"additionalProperties":)", "}"},
                                                          {R"({"allOf":[)", "]}"},
                                                          {R"({"anyOf":[{"type":"null"},)", "]}"},
                                                          {R"({"oneOf":[{"type":"null"},)", "]}"},
                                                          {R"({"not":)", "}"},
                                                          {R"({"if":{"type":"array"},"then":)", "}"},
                                                          {R"({"dependentSchemas":{"a":)", "}}"},
                                                          {R"({"contains":)", "}"},
                                                          {R"({"propertyNames":)", "}"},
                                                          {R"({"prefixItems":[)", "]}"}};
    for (const auto& [before, after] : around) {
      for (const size_t depth : {30u, 150u, 450u, 100'000u}) {
        schema(fmt::format("{} {} deep", before, depth),
               times(depth, before) + "{\"type\":\"string\"}" + times(depth, after));
      }
    }
  }

  void references() {
    schema("itself", R"({"$ref": "#"})");
    schema("itself in allOf", R"({"allOf": [{"$ref": "#"}]})");
    schema("itself in anyOf", R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})");
    schema("itself in not", R"({"not": {"$ref": "#"}})");
    schema("itself in oneOf", R"({"oneOf": [{"$ref": "#"}, {"$ref": "#"}]})");
    schema("a cycle", R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})");
    schema("no text", R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})");
    schema("a tree", R"({"type": "object", "properties": {"l": {"$ref": "#"}, "r": {"$ref": "#"}}})");
    schema("a deep tree of allOf",
           R"({"allOf": [{"properties": {"a": {"$ref": "#"}}}, {"additionalProperties": {"$ref": "#"}}]})");
    schema("growing goals", R"({"properties": {"a": {"allOf": [{"$ref": "#"}, {"$ref": "#/$defs/b"}]}}, "$defs": {"b":
        {"properties": {"a": {"allOf": [{"$ref": "#"}, {"properties": {"b": {"$ref": "#/$defs/b"}}}]}}}}})");
    for (const size_t n : {100u, 190u, 5'000u}) {
      schema(
          fmt::format("a chain of {}", n),
          fmt::format(R"({{"$ref": "#/$defs/0", "$defs": {{{}, "{}": {{"type": "null"}}}}}})",
                      list(n, [](size_t i) { return fmt::format(R"("{}": {{"$ref": "#/$defs/{}"}})", i, i + 1); }), n));
    }
    for (const size_t n : {10u, 20u, 60u}) {
      for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
        schema(fmt::format("doubled {} times by {}", n, keyword),
               fmt::format(R"({{"$ref": "#/$defs/0", "$defs": {{{}, "{}": {{"type": "string"}}}}}})",
                           list(n,
                                [&](size_t i) {
                                  return fmt::format(
                                      R"("{0}": {{"{2}": [{{"$ref": "#/$defs/{1}"}}, {{"$ref": "#/$defs/{1}"}}]}})", i,
                                      i + 1, keyword);
                                }),
                           n));
      }
    }
    for (const char* reference : {"#/%zz", "#/a~", "#/~2", "http://example.com/x", "#/$defs/\\u0000", "#a", "", "//",
                                  "#//", "urn:x:y", "../..", "#/0/1/2/3/4"}) {
      schema(std::string("to ") + reference, fmt::format(R"({{"$ref": "{}", "$id": "http://a.b/c"}})", reference));
    }
    schema("many identifiers",
           fmt::format(R"({{"$defs": {{{}}}, "allOf": [{}]}})",
                       list(1500, [](size_t i) { return fmt::format(R"("{0}": {{"$id": "x{0}"}})", i); }),
                       list(1500, [](size_t i) { return fmt::format(R"({{"$ref": "x{}"}})", i); })));
  }

  void wide_schemas() {
    const std::pair<const char*, std::function<std::string(size_t)>> branches[] = {
        {"constants", [](size_t i) { return fmt::format(R"({{"const": "value {}"}})", i); }},
        {"numbers", [](size_t i) { return fmt::format(R"({{"minimum": {}, "type": "number"}})", i); }},
        {"bounds", [](size_t i) { return fmt::format(R"({{"type": "string", "maxLength": {}}})", i); }},
        {"patterns", [](size_t i) { return fmt::format(R"({{"type": "string", "pattern": "^a{{{}}}b"}})", i % 97); }},
        {"objects",
         [](size_t i) { return fmt::format(R"({{"required": ["p{0}"], "properties": {{"p{0}": {{}}}}}})", i); }},
        {"tagged objects",
         [](size_t i) {
           return fmt::format(R"({{"type": "object", "required": ["t"], "properties": {{"t": {{"const": {}}}}}}})", i);
         }},
        {"arrays", [](size_t i) { return fmt::format(R"({{"type": "array", "minItems": {}}})", i); }}};
    for (const auto& [name, branch] : branches) {
      for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
        for (const size_t n : {40u, 10'000u}) {
          schema(fmt::format("{} {} of {}", n, name, keyword),
                 fmt::format(R"({{"{}": [{}]}})", keyword, list(n, branch)));
        }
      }
    }
  }

  void counts() {
    for (const char* n : {"1000", "100000", "2147483648", "1e18", "1e300"}) {
      for (const char* keyword : {"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"}) {
        schema(fmt::format("{} {}", keyword, n), fmt::format(R"({{"{}": {}}})", keyword, n));
      }
      schema(fmt::format("contains {}", n),
             fmt::format(R"({{"type": "array", "contains": {{"const": 1}}, "minContains": {}}})", n));
    }
    schema("bounds of a pattern",
           R"({"type": "string", "pattern": "^(ab|ba)*$", "minLength": 5000, "maxLength": 9000})");
    schema("bounds of an array with a prefix",
           R"({"prefixItems": [{}, {}, {}], "minItems": 100000, "maxItems": 200000})");
    schema("wide contains",
           R"({"contains": {"type": "string"}, "minContains": 90, "maxContains": 100, "maxItems": 190})");
    schema("counts of counts",
           R"({"type": "array", "maxItems": 1000, "items": {"type": "array", "maxItems": 1000, "items":
        {"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 1000}}}})");
  }

  void intersections() {
    const auto all = [&](const std::string& name, size_t n, const std::function<std::string(size_t)>& part) {
      schema(name, fmt::format(R"({{"allOf": [{}]}})", list(n, part)));
    };
    const auto pattern = [](const std::string& text) {
      return fmt::format(R"({{"type": "string", "pattern": "{}"}})", text);
    };
    all("characters somewhere", 20, [&](size_t i) { return pattern(std::string(1, static_cast<char>('a' + i))); });
    all("counts modulo primes", 8, [&](size_t i) {
      constexpr int kPrimes[] = {7, 11, 13, 17, 19, 23, 29, 31};
      return pattern(fmt::format("^(.{{{}}})*$", kPrimes[i]));
    });
    all("exponential automata", 3, [&](size_t i) { return pattern(fmt::format("a.{{{}}}$", 15 + i)); });
    all("multiples", 6, [](size_t i) {
      constexpr int kDivisors[] = {7, 11, 13, 17, 19, 23};
      return fmt::format(R"({{"multipleOf": {}}})", kDivisors[i]);
    });
    all("alternatives", 12, [](size_t i) {
      return fmt::format(
          R"({{"anyOf": [{{"required": ["a{0}"]}}, {{"required": ["b{0}"]}}, {{"required": ["c{0}"]}}]}})", i);
    });
    all("negations", 12, [](size_t i) { return fmt::format(R"({{"not": {{"required": ["a{0}", "b{0}"]}}}})", i); });
    all("conditions", 16, [](size_t i) {
      return fmt::format(
          R"({{"if": {{"required": ["a{0}"]}}, "then": {{"required": ["b{0}"]}}, "else": {{"maxProperties": 9}}}})", i);
    });
    schema("a negation of patterns", R"({"type": "string", "not": {"pattern": "a.{18}$"}})");
    schema("oneOf of exponential automata",
           R"({"type": "string", "oneOf": [{"pattern": "a.{14}$"}, {"pattern": "b.{14}$"}, {"pattern": "c.{13}$"}]})");
    for (const char* divisor : {"0.0001", "9999.9999", "1e-300", "123456789", "7e300", "0", "-1"}) {
      schema(std::string("multipleOf ") + divisor,
             fmt::format(R"({{"type": "number", "multipleOf": {}, "minimum": 0.3}})", divisor));
    }
    for (const char* bound :
         {"1e308", "-1e-308", "123456789012345678901234567890", "0.1234567890123456789", "5e-324"}) {
      schema(std::string("between ") + bound,
             fmt::format(R"({{"type": "number", "minimum": {}, "exclusiveMaximum": {}}})", bound, bound));
      schema(std::string("above ") + bound, fmt::format(R"({{"type": "integer", "exclusiveMinimum": {}}})", bound));
    }
  }

  void objects() {
    const auto name = [](size_t i) { return fmt::format(R"("property {}")", i); };
    for (const size_t n : {300u, 10'000u}) {
      const std::string names = list(n, name);
      const std::string properties = list(n, [&](size_t i) { return name(i) + R"(: {"type": "string"})"; });
      schema(fmt::format("{} properties", n), fmt::format(R"({{"type": "object", "properties": {{{}}}}})", properties));
      schema(fmt::format("{} required", n), fmt::format(R"({{"type": "object", "required": [{}]}})", names));
      schema(
          fmt::format("{} closed", n),
          fmt::format(R"({{"type": "object", "properties": {{{}}}, "required": [{}], "additionalProperties": false}})",
                      properties, names));
    }
    for (const size_t n : {12u, 30u, 100u}) {
      schema(fmt::format("{} that require each other", n),
             fmt::format(R"({{"dependentRequired": {{{}}}, "maxProperties": {}}})",
                         list(n,
                              [&](size_t i) {
                                return fmt::format("{}: [{}, {}]", name(i), name((i + 1) % n), name((7 * i) % n));
                              }),
                         n / 2));
      schema(fmt::format("{} dependent schemas", n),
             fmt::format(R"({{"dependentSchemas": {{{}}}}})", list(n, [&](size_t i) {
                           return fmt::format(R"({}: {{"required": [{}]}})", name(i), name((i + 1) % n));
                         })));
    }
    const auto patterns = [&](const std::string& title, size_t n, const std::function<std::string(size_t)>& text) {
      schema(title, fmt::format(R"({{"type": "object", "patternProperties": {{{}}}}})", list(n, [&](size_t i) {
                                  return fmt::format(R"("{}": {{"maxLength": {}}})", text(i), i);
                                })));
    };
    patterns("overlapping patterns", 8, [](size_t i) { return std::string(1, static_cast<char>('a' + i)); });
    patterns("too many patterns", 60, [](size_t i) { return fmt::format("x{}y", i); });
    patterns("exponential patterns", 4, [](size_t i) { return fmt::format("a.{{{}}}$", 12 + i); });
    patterns("counted patterns", 6, [](size_t i) { return fmt::format("^(.{{{}}})+$", 2 * i + 3); });
    schema("names of a pattern", R"({"propertyNames": {"pattern": "^(a|b)*a(a|b){14}$"}, "minProperties": 3})");
    schema("objects in enum", fmt::format(R"({{"enum": [{}]}})", list(3000, [](size_t i) {
                                            return fmt::format(R"({{"a": {0}, "b": [{0}, {{"c": "{0}"}}]}})", i);
                                          })));
  }

  void values() {
    schema("100 000 strings",
           fmt::format(R"({{"enum": [{}]}})", list(100'000, [](size_t i) { return fmt::format(R"("value {}")", i); })));
    schema("20 000 long strings", fmt::format(R"({{"enum": [{}]}})", list(20'000, [](size_t i) {
                                                return fmt::format(R"("{}{}")", times(40, "x"), i);
                                              })));
    schema("100 000 numbers",
           fmt::format(R"({{"enum": [{}]}})", list(100'000, [](size_t i) { return fmt::format("{}.5", i * 7); })));
    schema("not 5000 strings", fmt::format(R"({{"type": "string", "not": {{"enum": [{}]}}}})",
                                           list(5000, [](size_t i) { return fmt::format(R"("value {}")", i * 31); })));
    schema("a long string", fmt::format(R"({{"const": "{}"}})", times(300'000, "ab")));
    schema("a deep constant", fmt::format(R"({{"const": {}1{}}})", times(300, "["), times(300, "]")));
    schema("a wide constant",
           fmt::format(R"({{"const": [{}]}})", list(20'000, [](size_t i) { return std::to_string(i); })));
    schema("NUL", R"({"const": "a\u0000b", "enum": ["a\u0000b"]})");
  }

  void malformed_schemas() {
    for (const char* text : {"",
                             "{",
                             "[]",
                             "1",
                             "{\"type\": 1}",
                             "{\"type\": \"what\"}",
                             "{\"enum\": {}}",
                             "{\"pattern\": 1}",
                             "{\"pattern\": \"(\"}",
                             "{\"pattern\": \"\\\\1\"}",
                             "{\"pattern\": \"(?<=a)b\"}",
                             "{\"items\": 1}",
                             "{\"properties\": []}",
                             "{\"required\": [1]}",
                             "{\"minLength\": -1}",
                             "{\"minLength\": 0.5}",
                             "{\"const\": \"\\ud800\"}",
                             "\xff",
                             "{\"anyOf\": []}",
                             "{\"anyOf\": [1]}",
                             "{\"$ref\": 1}",
                             "{\"minimum\": \"a\"}",
                             "{\"multipleOf\": 0}",
                             "{\"allOf\": {}}",
                             "{\"patternProperties\": {\"[\": {}}}",
                             "{\"dependentRequired\": {\"a\": [1]}}",
                             "null",
                             "\"a\""}) {
      schema(std::string("malformed ") + text, text);
    }
  }

  void regexes() {
    const auto regex = [&](const std::string& text) { add("regex", text.substr(0, 60), text); };
    for (const char* text : {"(a+)+",
                             "(a+)+$",
                             "((a*)*)*b",
                             "(a|aa)+",
                             "(a|b|ab)*c",
                             "(.*a.*){12}",
                             "a{1,100000}",
                             "a{100000}",
                             "(a{1,1000}){1,1000}",
                             "((a{0,100}){0,100}){0,100}",
                             "(a|b)*a(a|b){12}",
                             "(a|b)*a(a|b){20}",
                             "(a|b)*a(a|b){400}",
                             ".*a.{30}",
                             "(.{0,300}b){0,300}",
                             "a{0,2147483648}",
                             "a{99999999999999999999}",
                             "a{5,2}",
                             "(?=.*a)(?=.*b)(?=.*c)(?=.*d)(?=.*e)(?=.*f).*",
                             "(?=(a|b)*a(a|b){14}$)(?=(a|b)*b(a|b){13}$)[ab]*",
                             "(?!.*a.{14}$).*",
                             "(?!(?!(?!a)b)c).*",
                             "(a)\\1",
                             "(?<=a)b",
                             "a++",
                             "(?>a)",
                             "[",
                             "(",
                             ")",
                             "a**",
                             "*",
                             "{1}",
                             "[z-a]",
                             "\\p{L}{1,2000}",
                             "\\p{Nope}",
                             "[\\w\\d\\s]{1,500}",
                             "\\w{300}\\d{300}",
                             "[^\\p{L}]*[\\p{L}\\p{N}]{200}",
                             "(?i)[a-z]{1,1000}",
                             "(?i:straße){100}",
                             "\\u{110000}",
                             "\\x",
                             "[\\q]",
                             "(?P<n>a)(?P=n)",
                             "^*",
                             "$*",
                             "(|a)*",
                             "(()())*",
                             "(a?){500}a{500}",
                             "(a*b*c*d*e*){100}",
                             "(aa|aab|aabb)*",
                             "[a-z]+[0-9]+@[a-z]+\\.com{1,5000}",
                             "([ab]{2}|[bc]{3}|[cd]{5})*",
                             "(x+x+)+y",
                             "(.*)*",
                             "(.+)+\\n",
                             "\\b(a|b)+\\b",
                             "((((a{10}){10}){10}){10}){10}"}) {
      regex(text);
    }
    regex(times(2000, "(") + "a" + times(2000, ")"));
    regex(times(200'000, "("));
    regex(times(50'000, "a?"));
    regex(times(100'000, "a|") + "b");
    regex(list(
        20'000, [](size_t i) { return fmt::format("word{}", i * 7919 % 100'003); }, "|"));
    regex("(" +
          list(
              3000, [](size_t i) { return fmt::format("w{}", i); }, "|") +
          "){1,50}");
    regex("[" + times(100'000, "ab") + "]");
    regex(times(300, "(?=.*a)") + ".*");
    regex(times(5000, "[a-z]{3}"));
  }

  void gbnf() {
    const auto rules = [&](const std::string& name, const std::string& text) { add("gbnf", name, text); };
    rules("left recursion", "root ::= root \"a\" | \"b\"");
    rules("endless left recursion", "root ::= root");
    rules("endless pair", "root ::= a\na ::= root");
    rules("hidden left recursion", "root ::= e root \"a\" | \"b\"\ne ::= \"c\"?");
    rules("sums", "root ::= root \"+\" root | root \"*\" root | \"(\" root \")\" | [0-9]+");
    rules("two of itself", "root ::= root root | \"a\"");
    rules("two of itself or nothing", "root ::= root root | \"a\" | \"\"");
    rules("three of itself or nothing", "root ::= root root root | root root | [ab] | \"\"");
    rules("palindromes", "root ::= \"a\" root \"a\" | \"b\" root \"b\" | [ab]?");
    rules("ambiguous lists", "root ::= (a* b*)* c\na ::= [x]+\nb ::= [xy]+\nc ::= \"z\"");
    rules("nullable loops", "root ::= (\"a\"* \"\"*)* ((\"\")*)*");
    rules("a large count", "root ::= [a-z]{1,100000}");
    rules("nested counts", "root ::= (((\"a\" \"b\"){1,1000}){1,1000}){1,1000}");
    rules("counts of nothing", "root ::= ((\"a\"?){0,100000}){0,100000}");
    rules("an undefined rule", "root ::= what");
    rules("no root", "a ::= \"a\"");
    rules("an open literal", "root ::= \"a");
    rules("an open group", "root ::= (\"a\"");
    rules("an open class", "root ::= [a");
    rules("a long literal", "root ::= \"" + times(1'000'000, "a") + "\"");
    rules("deep groups", "root ::= " + times(50'000, "(") + "\"a\"" + times(50'000, ")"));
    rules("200 deep groups", "root ::= " + times(200, "(") + "\"a\" | root \"b\"" + times(200, ")*"));
    for (const size_t n : {300u, 10'000u}) {
      rules(fmt::format("a chain of {} rules", n),
            "root ::= r0\n" +
                list(
                    n, [](size_t i) { return fmt::format("r{} ::= r{}", i, i + 1); }, "\n") +
                fmt::format("\nr{} ::= \"a\"", n));
      rules(fmt::format("{} rules in a left-recursive circle", n),
            "root ::= r0\n" +
                list(
                    n, [n](size_t i) { return fmt::format("r{} ::= r{} \"a\" | [{}]", i, (i + 1) % n, "abc"[i % 3]); },
                    "\n"));
      rules(fmt::format("{} alternatives", n),
            "root ::= (" +
                list(
                    n, [](size_t i) { return fmt::format("\"w{}\" root", i); }, " | ") +
                ")?");
    }
    rules("doubling rules", "root ::= r0\n" +
                                list(
                                    40, [](size_t i) { return fmt::format("r{0} ::= r{1} r{1}", i, i + 1); }, "\n") +
                                "\nr40 ::= \"a\"");
    rules("doubling nullable rules",
          "root ::= r0\n" +
              list(
                  40, [](size_t i) { return fmt::format("r{0} ::= r{1} r{1} | \"x\"", i, i + 1); }, "\n") +
              "\nr40 ::= \"a\"?");
    rules("mutual left recursion", "root ::= r0\n" + list(
                                                         40,
                                                         [](size_t i) {
                                                           return fmt::format("r{} ::= r{} r{} | r{} | [a-c]", i,
                                                                              (i + 1) % 40, (i * 7 + 3) % 40,
                                                                              (i + 5) % 40);
                                                         },
                                                         "\n"));
  }

  void lark() {
    const auto rules = [&](const std::string& name, const std::string& text) { add("lark", name, text); };
    rules("left recursion", "start: start \"a\" | \"b\"");
    rules("endless", "start: start");
    rules("ambiguous", "start: start start | \"a\" | ");
    rules("counts", "start: \"a\"~1..100000");
    rules("counts of a terminal", "start: A\nA: /[ab]c/~1..2000");
    rules("an exponential terminal", "start: A\nA: /(a|b)*a(a|b){18}/ & ~/(a|b)*b(a|b){17}/");
    rules("negations", "start: A\nA: ~(~(~/a.*b/ & ~/c.*d/) & /[a-z]*/)");
    rules("an endless terminal", "start: A\nA: A \"a\"");
    rules("ignored text", "start: (A | B)+\nA: /[a-z]+/\nB: /[a-z0-9]+/\n%ignore /[ a]+/\n%ignore B");
    rules("overlapping terminals", "start: (A|B|C)*\nA: /a*b/\nB: /(ab)*/\nC: /[ab]{3}/");
    rules("a bad regex", "start: /(/");
    rules("an unknown import", "start: A\n%import nothing.A");
    rules("an unknown name", "start: what");
    rules("lazy and long", "start: A \"z\"\nA[lazy]: /(.|\\n)*?a.{12}b/");
    rules("a suffix", "start: A\nA[suffix=\"aaaaaaaaaaaaaaaaaab\"]: /(.|\\n)*/");
    rules("a schema", "start: %json {\"properties\": {\"a\": {\"maxLength\": 100000}}, \"minProperties\": 3}");
    rules("substrings", "start: %regex {\"substring_words\": \"" +
                            list(
                                3000, [](size_t i) { return fmt::format("w{}", i % 50); }, " ") +
                            "\"}");
    rules("many rules",
          "start: r0\n" +
              list(
                  4000, [](size_t i) { return fmt::format("r{}: \"x\" r{} | \"y\"", i, (i + 1) % 4000); }, "\n"));
    rules("deep groups", "start: " + times(20'000, "(") + "\"a\"" + times(20'000, ")"));
  }

  void structural_tags() {
    const auto format = [&](const std::string& name, const std::string& text) {
      add("structural_tag", name, R"({"type": "structural_tag", "format": )" + text + "}");
    };
    format("many triggers",
           fmt::format(
               R"({{"type": "triggered_tags", "triggers": [{}], "tags": [{}]}})",
               list(400, [](size_t i) { return fmt::format(R"("<a{:04}")", i); }), list(400, [](size_t i) {
                 return fmt::format(
                     R"({{"type": "tag", "begin": "<a{:04}>", "content": {{"type": "any_text"}}, "end": "</a{:04}>"}})",
                     i, i);
               })));
    format("a long trigger",
           fmt::format(R"({{"type": "triggered_tags", "triggers": ["{0}"], "tags": [{{"type": "tag", "begin": "{0}",
        "content": {{"type": "any_text"}}, "end": "{0}b"}}]}})",
                       times(3000, "a")));
    format("deep sequences",
           times(200, R"({"type": "sequence", "elements": [)") + R"({"type": "any_text"})" + times(200, "]}"));
    format("nested repeats",
           times(40, R"({"type": "star", "content": )") + R"({"type": "regex", "pattern": "a?"})" + times(40, "}"));
    format("free text after free text",
           R"({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]})");
  }

  std::vector<Hostile> all_;
};

}  // namespace sluice::grammar
