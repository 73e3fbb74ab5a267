// Parsers fed at every split, hostile answers, and random texts of grammars.
#include "chat/tools/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <random>
#include <sstream>

#include "chat/chat_template.h"

namespace sluice::tool_testing {
namespace {

// Adds deltas to what was parsed so far, and checks their order.
void collect(std::vector<Delta>& deltas, Parsed& into) {
  for (const Delta& delta : deltas) {
    if (const auto* text = std::get_if<TextDelta>(&delta)) {
      EXPECT_NE(text->text, "");
      into.text += text->text;
    } else if (const auto* begin = std::get_if<ToolCallBegin>(&delta)) {
      ASSERT_EQ(static_cast<size_t>(begin->index), into.calls.size());
      into.calls.push_back({.name = begin->name, .id = begin->id});
    } else if (const auto* arguments = std::get_if<ToolCallArguments>(&delta)) {
      ASSERT_EQ(static_cast<size_t>(arguments->index) + 1, into.calls.size());
      into.calls.back().arguments += arguments->json;
    }
  }
  deltas.clear();
}

// Members of objects may come in any order.
void expect_same_json(const std::string& text, const Json& expected) {
  nlohmann::json value;
  ASSERT_NO_THROW(value = nlohmann::json::parse(text)) << text;
  EXPECT_EQ(value, nlohmann::json::parse(dump_json(expected)));
}

std::vector<std::string> bytes_of(std::string_view text) {
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  return bytes;
}

std::vector<std::string> random_pieces(std::string_view text, std::mt19937& random) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t size = std::min<size_t>(text.size(), 1 + random() % 12);
    pieces.emplace_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

// Byte tokens 0 .. 255, the special tokens behind them, and further tokens.
std::shared_ptr<const grammar::Vocabulary> vocabulary_of(const std::vector<std::string>& special,
                                                         const std::vector<std::string>& further) {
  std::vector<std::string> tokens;
  for (int c = 0; c < 256; ++c) tokens.emplace_back(1, static_cast<char>(c));
  tokens.resize(256 + special.size());
  tokens.insert(tokens.end(), further.begin(), further.end());
  return std::make_shared<const grammar::Vocabulary>(
      tokens, grammar::Vocabulary::Options{.width = static_cast<int>(tokens.size())});
}

grammar::Matcher matcher_of(std::string_view syntax, const CallGrammar& calls, const std::vector<std::string>& special,
                            const std::vector<std::string>& further = {}) {
  grammar::Budget budget({.time = time_limit(grammar::Limits{}.time)});
  const auto find = [&](std::string_view text) -> std::optional<TokenId> {
    const auto it = std::ranges::find(special, text);
    if (it == special.end()) return std::nullopt;
    return static_cast<TokenId>(256 + (it - special.begin()));
  };
  const auto grammar =
      grammar::compile("tool_calls", tool_calls_grammar(syntax, calls), {.budget = budget, .special = find});
  return {grammar, vocabulary_of(special, further)};
}

Json random_string(std::mt19937& random, bool plain) {
  static const std::vector<std::string> nasty = {"\"",  "\\",     "\n",   "{",  "}",   "[",    "]",    "é",
                                                 "</",  "<",      ">",    "<|", "|>",  "true", "null", "\t",
                                                 "```", "[ARGS]", "\x01", "1",  "\\n", "{\"",  "😀"};
  std::string out;
  for (size_t n = random() % 8; n > 0; --n) {
    if (plain || random() % 2) {
      out += "abcXYZ 019"[random() % 10];
    } else {
      out += nasty[random() % nasty.size()];
    }
  }
  // White space at the ends of a text is not certain to be a part of it.
  return plain ? "s" + out + "e" : out;
}

Json random_value(std::mt19937& random, int depth, bool plain_strings) {
  if (plain_strings) return random_string(random, true);
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return static_cast<int>(random() % 2000) - 1000;
    case 1:
      return 1.5;
    case 2:
      return random() % 2 == 0;
    case 3:
      return nullptr;
    case 4:
      return random_string(random, false);
    case 5: {
      Json array = Json::array();
      for (size_t n = random() % 3; n > 0; --n) array.push_back(random_value(random, depth - 1, false));
      return array;
    }
    default: {
      Json object = Json::object();
      for (size_t n = random() % 3; n > 0; --n) {
        object["k" + std::to_string(n)] = random_value(random, depth - 1, false);
      }
      return object;
    }
  }
}

ToolFunctions random_functions(std::mt19937& random, bool plain_strings, std::vector<Json>& arguments) {
  ToolFunctions functions;
  for (const char* name : {"f", "get_weather", "Do-it_2"}) {
    Json value = Json::object(), properties = Json::object(), required = Json::array();
    for (const char* key : {"city", "n_2", "x"}) {
      if (random() % 3 == 0) continue;
      value[key] = random_value(random, 2, plain_strings);
      properties[key] = {{"const", value[key]}};
      if (plain_strings) properties[key]["type"] = "string";
      required.push_back(key);
    }
    functions.push_back(
        {.name = name,
         .parameters = {
             {"type", "object"}, {"properties", properties}, {"required", required}, {"additionalProperties", false}}});
    arguments.push_back(std::move(value));
  }
  return functions;
}

// A random token from `first` to `last` of `width` that may come next; negative: none.
TokenId random_token(const grammar::Matcher& matcher, size_t first, size_t last, size_t width, std::mt19937& random) {
  std::vector<uint32_t> words((width + 31) / 32);
  matcher.fill_mask(words);
  std::vector<TokenId> allowed;
  for (size_t id = first; id < last; ++id) {
    if (words[id / 32] >> id % 32 & 1) allowed.push_back(static_cast<TokenId>(id));
  }
  return allowed.empty() ? -1 : allowed[random() % allowed.size()];
}

// A random text of the grammar.
std::string walk(grammar::Matcher matcher, const std::vector<std::string>& special, std::mt19937& random) {
  const size_t width = 256 + special.size();
  std::string text;
  while (text.size() < 20'000) {
    if (matcher.complete() && (matcher.ended() || random() % 2)) return text;
    const TokenId token = random_token(matcher, 0, width, width, random);
    if (token < 0 || !matcher.accept(token)) break;
    if (token < 256) {
      text += static_cast<char>(token);
    } else {
      text += special[static_cast<size_t>(token) - 256];
    }
  }
  ADD_FAILURE() << "the grammar does not end: " << text.substr(0, 200);
  return text;
}

}  // namespace

void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << "text " << dump_json(Json(parsed.text));
  for (const Call& call : parsed.calls) *out << "; " << call.name << " [" << call.id << "] " << call.arguments;
}

Parsed parse(std::string_view syntax, const std::vector<std::string>& pieces, const ToolFunctions& functions) {
  const ToolSyntax* found = tool_syntax(syntax);
  if (found == nullptr) {
    ADD_FAILURE() << "no syntax " << syntax;
    return {};
  }
  const auto parser = found->parser(functions.empty() ? nullptr : std::make_shared<const ToolFunctions>(functions));
  Parsed out;
  std::vector<Delta> deltas;
  for (const std::string& piece : pieces) {
    parser->push(piece, deltas);
    collect(deltas, out);
  }
  parser->finish(deltas);
  collect(deltas, out);
  return out;
}

void expect_parsed(std::string_view syntax, const std::vector<Answer>& answers, const ToolFunctions& functions) {
  for (const auto& [text, expected] : answers) {
    SCOPED_TRACE(std::string(syntax) + ": " + text);
    ASSERT_EQ(parse(syntax, {text}, functions), expected);
    ASSERT_EQ(parse(syntax, bytes_of(text), functions), expected);
    for (size_t i = 0; i <= text.size(); ++i) {
      ASSERT_EQ(parse(syntax, {text.substr(0, i), text.substr(i)}, functions), expected) << "split at " << i;
    }
  }
}

void expect_linear(std::string_view syntax, const std::vector<std::string>& beginnings,
                   const std::vector<std::string>& pieces, size_t size) {
  std::vector<std::string> all = {""};
  all.insert(all.end(), beginnings.begin(), beginnings.end());
  for (const std::string& beginning : all) {
    for (const std::string& piece : pieces) {
      SCOPED_TRACE(std::string(syntax) + ": " + beginning + " and many " + piece);
      std::string text = beginning;
      while (text.size() < size) text += piece;
      const auto begin = std::chrono::steady_clock::now();
      const Parsed whole = parse(syntax, {text});
      parse(syntax, bytes_of(text));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      if (whole.calls.empty()) {
        EXPECT_EQ(whole.text.size(), text.size());
      }
    }
  }
}

bool accepts(std::string_view syntax, const CallGrammar& calls, std::string_view text,
             const std::vector<std::string>& special) {
  grammar::Matcher matcher = matcher_of(syntax, calls, special);
  for (size_t at = 0; at < text.size();) {
    const auto begins = [&](const std::string& s) { return text.substr(at).starts_with(s); };
    const auto it = std::ranges::find_if(special, begins);
    const bool found = it != special.end();
    const bool accepted =
        found ? matcher.accept(static_cast<TokenId>(256 + (it - special.begin()))) : matcher.accept(text.substr(at, 1));
    if (!accepted) return false;
    at += found ? it->size() : 1;
  }
  return matcher.complete();
}

void expect_round_trip(std::string_view syntax, const RoundTrip& options) {
  std::mt19937 random(20260115);
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<Json> arguments;
    const ToolFunctions functions = random_functions(random, options.plain_strings, arguments);
    const bool parallel = random() % 2;
    const CallGrammar calls{.functions = functions, .required = true, .parallel = parallel};
    const std::string text = walk(matcher_of(syntax, calls, options.special), options.special, random);
    SCOPED_TRACE(std::string(syntax) + ": " + text);
    const Parsed parsed = parse(syntax, random_pieces(text, random), functions);
    ASSERT_EQ(parsed.text, "");
    ASSERT_FALSE(parsed.calls.empty());
    if (!parallel) {
      ASSERT_EQ(parsed.calls.size(), 1u);
    }
    for (const Call& call : parsed.calls) {
      const auto it = std::ranges::find(functions, call.name, &ToolFunction::name);
      ASSERT_NE(it, functions.end()) << call.name;
      expect_same_json(call.arguments, arguments[static_cast<size_t>(it - functions.begin())]);
    }
    const CallGrammar optional{.functions = functions, .required = false, .parallel = parallel};
    ASSERT_TRUE(accepts(syntax, optional, text, options.special));
    ASSERT_TRUE(accepts(syntax, optional, "Hello"));
    ASSERT_FALSE(accepts(syntax, calls, "Hello"));
  }
}

void expect_sound(std::string_view syntax, const std::vector<std::string>& texts,
                  const std::vector<std::string>& special) {
  std::mt19937 random(20260116);
  size_t found = 0;
  for (int round = 0; round < 25; ++round) {
    std::vector<Json> arguments;
    const ToolFunctions functions = random_functions(random, false, arguments);
    std::vector<std::string> parts;
    for (const std::string& text : texts) {
      const size_t begin = random() % text.size();
      parts.push_back(text.substr(begin, 1 + random() % (text.size() - begin)));
      parts.push_back(text.substr(0, begin + 1));
    }
    const CallGrammar calls{.functions = functions, .required = false, .parallel = true};
    grammar::Matcher matcher = matcher_of(syntax, calls, special, parts);
    const size_t plain = 256 + special.size(), all = plain + parts.size();
    std::string text;
    for (int step = 0; step < 3000 && !(step > 20 && matcher.complete()); ++step) {
      const bool part = random() % 2 == 0;
      TokenId token = random_token(matcher, part ? 256 : 0, part ? all : 256, all, random);
      if (token < 0) token = random_token(matcher, 0, plain, all, random);
      if (token < 0 || !matcher.accept(token)) break;
      const auto id = static_cast<size_t>(token);
      text += id < 256 ? std::string(1, static_cast<char>(id)) : id < plain ? special[id - 256] : parts[id - plain];
    }
    if (!matcher.complete()) continue;
    SCOPED_TRACE(std::string(syntax) + ": " + dump_json(Json(text)));
    for (const Call& call : parse(syntax, {text}, functions).calls) {
      const auto it = std::ranges::find(functions, call.name, &ToolFunction::name);
      ASSERT_NE(it, functions.end()) << call.name;
      expect_same_json(call.arguments, arguments[static_cast<size_t>(it - functions.begin())]);
      ++found;
    }
  }
  EXPECT_GT(found, 0u) << syntax << ": no walk had a call";
}

void expect_template_calls(std::string_view syntax, const TemplateCalls& test) {
  const char* goldens = std::getenv("SLUICE_GOLDENS");
  if (!goldens) GTEST_SKIP() << "SLUICE_GOLDENS is not set: calls in " << test.file << " were not checked";
  std::ifstream in(std::filesystem::path(goldens) / "chat_template" / test.file);
  ASSERT_TRUE(in) << test.file;
  const std::string source((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(find_tool_syntax(source), tool_syntax(syntax)) << test.file;

  const std::vector<Call> expected = {
      {.name = "get_weather", .arguments = R"({"city": "Zürich & \"so\"", "days": 3, "units": ["C", "F"]})"},
      {.name = "stop", .arguments = R"({"now": true})"}};
  const Json tools = parse_json(R"([
    {"type": "function", "function": {"name": "get_weather", "description": "Get the weather", "parameters": {
      "type": "object", "properties": {"city": {"type": "string", "description": "City"},
        "days": {"type": "integer", "description": "Days"},
        "units": {"type": "array", "items": {"type": "string"}, "description": "Units"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "stop", "description": "Stop", "parameters": {
      "type": "object", "properties": {"now": {"type": "boolean", "description": "Now"}}, "required": []}}}])");
  Json calls = Json::array();
  for (int i = 0; i < test.calls; ++i) {
    const Call& call = expected[static_cast<size_t>(i)];
    Json arguments = test.strings ? Json(call.arguments) : parse_json(call.arguments);
    calls.push_back({{"id", "call0000" + std::to_string(i)},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", std::move(arguments)}}}});
  }
  const Json content = test.strings && test.content.empty() ? Json() : Json(test.content);
  ChatInput input;
  input.messages = {{{"role", "user"}, {"content", "Weather?"}},
                    {{"role", "assistant"}, {"content", content}, {"tool_calls", calls}}};
  input.tools = tools;
  input.add_generation_prompt = false;
  const Json special = {{"bos_token", "<BOS>"}, {"eos_token", "<EOS>"}, {"pad_token", "<PAD>"}, {"unk_token", "<UNK>"}};
  const std::string text = ChatTemplate::from_source(source, special).render(input);

  const size_t end = test.end.empty() ? text.size() : text.rfind(test.end);
  ASSERT_NE(end, std::string::npos) << text;
  const size_t begin = text.rfind(test.begin, end);
  ASSERT_NE(begin, std::string::npos) << text;
  const std::string part = text.substr(begin + test.begin.size(), end - begin - test.begin.size());
  SCOPED_TRACE(part);
  for (const auto& pieces : {std::vector<std::string>{part}, bytes_of(part)}) {
    const Parsed parsed = parse(syntax, pieces, tool_functions(tools));
    EXPECT_EQ(parsed.text, test.content);
    ASSERT_EQ(parsed.calls.size(), static_cast<size_t>(test.calls));
    for (size_t i = 0; i < parsed.calls.size(); ++i) {
      EXPECT_EQ(parsed.calls[i].name, expected[i].name);
      expect_same_json(parsed.calls[i].arguments, parse_json(expected[i].arguments));
    }
  }
}

}  // namespace sluice::tool_testing
