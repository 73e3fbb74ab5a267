// What the tests of call syntaxes share: parsers fed at every split, hostile answers, and random texts of grammars.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/tool_syntax.h"
#include "support/sanitized.h"

namespace sluice::tool_testing {

struct Call {
  std::string name{}, arguments{}, id{};
  bool operator==(const Call&) const = default;
};

// The deltas of an answer, put together.
struct Parsed {
  std::string text{};
  std::vector<Call> calls{};
  bool operator==(const Parsed&) const = default;
};
void PrintTo(const Parsed& parsed, std::ostream* out);

Parsed parse(std::string_view syntax, const std::vector<std::string>& pieces, const ToolFunctions& functions = {});

// An answer and what it means.
struct Answer {
  std::string text;
  Parsed expected;
};
// Parses the answers whole, byte by byte, and split in two at every place.
void expect_parsed(std::string_view syntax, const std::vector<Answer>& answers, const ToolFunctions& functions = {});

// Parses each piece, repeated up to a size, behind each of the beginnings and alone, whole and byte by byte. The time
// must be linear, and all must come out as text unless there is a call.
void expect_linear(std::string_view syntax, const std::vector<std::string>& beginnings,
                   const std::vector<std::string>& pieces, size_t size = kHostileBytes);

// Whether the text is an answer that the grammar of `calls` allows. `special`: texts that are special tokens, written
// as such wherever they are in the text; none: all is ordinary text.
bool accepts(std::string_view syntax, const CallGrammar& calls, std::string_view text,
             const std::vector<std::string>& special = {});

// Walks at random through grammars of functions whose arguments are constants, and parses what it finds in random
// pieces: the calls must be those, and there must be no text. With `strings`, all values are strings of letters,
// digits and spaces, for syntaxes that cannot write every string.
struct RoundTrip {
  std::vector<std::string> special{};  // as above
  bool plain_strings = false;
  int rounds = 30;
};
void expect_round_trip(std::string_view syntax, const RoundTrip& options = {});

// Walks at random through the grammar of answers with text and calls, by bytes, special tokens and random parts of
// `texts`. Whatever the parser takes for a call must then be a call that the grammar allows.
void expect_sound(std::string_view syntax, const std::vector<std::string>& texts,
                  const std::vector<std::string>& special = {});

// Renders an assistant's message with calls by a template of goldens/chat_template and parses the assistant's part.
// `begin` and `end` are the texts around that part: the part is what lies behind the last `begin` that `end` follows.
// Skips the test, with a reason, where the goldens are missing.
struct TemplateCalls {
  std::string file;        // "Qwen3-Coder.jinja"
  std::string begin, end;  // "<|im_start|>assistant\n", "<|im_end|>"; empty: the end of the text
  int calls = 2;           // of the message
  std::string content{};   // of the message, before the calls
  bool strings = false;    // arguments are given as strings, and no content as null
};
void expect_template_calls(std::string_view syntax, const TemplateCalls& test);

}  // namespace sluice::tool_testing
