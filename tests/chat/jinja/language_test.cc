// Tests of the Jinja language: jinja2's output for more than a thousand templates (tests/goldens/jinja_cases.jsonl,
// made by jinja_cases.py), and behaviour that depends on types that JSON cannot hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <thread>
#include <vector>

#include "chat/jinja/jinja.h"
#include "sluice/error.h"

namespace sluice::jinja::language_test {
namespace {

using ::testing::HasSubstr;

// 2026-01-15 12:34:56 local time, as in jinja_cases.py.
RenderOptions options() {
  std::tm time{};
  time.tm_year = 2026 - 1900;
  time.tm_mday = 15;
  time.tm_hour = 12;
  time.tm_min = 34;
  time.tm_sec = 56;
  time.tm_isdst = -1;
  RenderOptions out;
  out.now = std::chrono::system_clock::from_time_t(std::mktime(&time));
  return out;
}

std::string render(std::string_view source, const Json& variables = Json::object()) {
  return Template(source).render(variables, options());
}

std::string error_of(std::string_view source, const Json& variables = Json::object()) {
  try {
    return "rendered: " + render(source, variables);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
    return e.what();
  }
}

TEST(JinjaLanguage, RendersWhatJinja2Renders) {
  std::ifstream in(SLUICE_SOURCE_DIR "/tests/goldens/jinja_cases.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  const Json variables = parse_json(line)["variables"];
  int cases = 0;
  while (std::getline(in, line)) {
    ++cases;
    const Json row = parse_json(line);
    const std::string source = row["template"].get<std::string>();
    SCOPED_TRACE(source);
    std::string text, error;
    try {
      text = render(source, variables);
    } catch (const Error& e) {
      error = e.what();
    }
    if (row.contains("text")) {
      EXPECT_EQ(error, "");
      EXPECT_EQ(text, row["text"].get<std::string>());
    } else {
      EXPECT_NE(error, "") << "should end in an error but renders: " << text;
    }
  }
  EXPECT_GT(cases, 1200);
}

TEST(JinjaLanguage, ErrorsNameTheLine) {
  EXPECT_THAT(error_of("a\n{{ x.y }}"), HasSubstr("line 2: 'x' is undefined"));
  EXPECT_THAT(error_of("a\n\n{% if %}"), HasSubstr("line 3: expected an expression"));
  EXPECT_THAT(error_of("{% for x in y %}\n{{ x }}"),
              HasSubstr("line 2: unexpected end of template, expected 'endfor' or 'else'"));
  EXPECT_THAT(error_of("{{ 'a' + {} }}"), HasSubstr("can only concatenate str (not \"dict\") to str"));
  EXPECT_THAT(error_of("{{ {}.x.y }}"), HasSubstr("'dict object' has no attribute 'x'"));
  EXPECT_THAT(error_of("{{ [].append(1) }}"), HasSubstr("access to attribute 'append' of 'list' object is unsafe"));
  EXPECT_THAT(error_of("\n{{ 1|nope }}"), HasSubstr("line 2: no filter named 'nope'"));
  EXPECT_THAT(error_of("{% include 'x' %}"), HasSubstr("the tag 'include' is not supported"));
}

TEST(JinjaLanguage, MessagesAreCutBetweenCharacters) {
  for (const int n : {58, 59, 60, 61, 99, 100, 101}) {
    const std::string error = error_of("{{ {}['" + std::string(n, 'x') + "é世界']['y'] }}");
    EXPECT_THAT(error, HasSubstr("has no attribute"));
    EXPECT_NO_THROW(Json(error).dump()) << n;
  }
  EXPECT_NO_THROW(Json(error_of("{{ '%é' % 1 }}")).dump());
}

TEST(JinjaLanguage, RaiseExceptionGivesItsOwnMessage) {
  try {
    render("{{ raise_exception('Only ' ~ n ~ ' roles') }}", {{"n", 2}});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "Only 2 roles");
    EXPECT_EQ(e.param, "messages");
  }
}

TEST(JinjaLanguage, IntegersBeyond64BitsAreErrors) {
  const Json variables = {{"u", UINT64_MAX}, {"i", INT64_MIN}};
  EXPECT_EQ(render("{{ u }} {{ i }} {{ [u]|tojson }} {{ u > i }} {{ u == u }} {{ u - 1 }}", variables),
            "18446744073709551615 -9223372036854775808 [18446744073709551615] True True 18446744073709551614");
  EXPECT_THAT(error_of("{{ u + 1 }}", variables), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ i - 1 }}", variables), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ -u }}", variables), HasSubstr("64 bits"));
  EXPECT_THAT(error_of("{{ 99999999999999999999 }}"), HasSubstr("too large"));
}

TEST(JinjaLanguage, StringsAreIndexedByCodePoint) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += i % 3 == 0 ? "a" : i % 3 == 1 ? "é" : "世";
  const Json variables = {{"s", text}};
  EXPECT_EQ(render("{{ s|length }} {{ s[999] }}{{ s[998] }}{{ s[-2] }}{{ s[500:503] }}{{ s[::-1][:3] }}", variables),
            "1000 a世世世aéa世é");
  EXPECT_EQ(render("{% for i in range(1000) %}{{ s[i] }}{% endfor %}", variables), text);
}

TEST(JinjaLanguage, DictionariesOfAnySizeKeepTheirOrder) {
  Json object = Json::object();
  for (int i = 0; i < 500; ++i) object[std::to_string(i * 7919 % 1000)] = i;
  std::string expected;
  for (const auto& [key, value] : object.items()) expected += key + "=" + value.dump() + ";";
  EXPECT_EQ(render("{% for k in d %}{{ k }}={{ d[k] }};{% endfor %}{{ 'x' in d }}", {{"d", object}}),
            expected + "False");
}

// Many threads render the same tree, each with its own values (run with TSan).
TEST(JinjaLanguage, ATemplateRendersInManyThreads) {
  const Template shared(
      "{% macro m(x) %}<{{ x|upper }}>{% endmacro %}{% for w in words %}{{ m(w) ~ loop.index }}{% endfor %}");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&shared, t] {
      const std::string word = std::string(1, static_cast<char>('a' + t));
      const std::string upper = std::string(1, static_cast<char>('A' + t));
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(shared.render({{"words", {word, word}}}, options()), "<" + upper + ">1<" + upper + ">2");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sluice::jinja::language_test
