// Most syntaxes of calls are marks around bodies: a section holds calls, a call holds a body, and the body has the name
// of the function and its arguments. A syntax of this kind is data, a CallFormat; the parser and the grammar are made
// from it.
//
//   answer  := text [section text]...
//   section := section_begin calls section_end
//   calls   := call (separator call)*   or   "[" call (separator call)* "]"
//   call    := call_begin body call_end
//
// The grammar writes exactly these bytes. The parser also takes white space (" \t\r\n") around marks and bodies, and a
// missing end of a section or call. What turns out to be no call is text, its marks included.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/tool_syntax.h"

namespace sluice {

// Receives what a reader finds in a call.
class CallSink {
 public:
  virtual ~CallSink() = default;
  // Whether a call of this function may stand here. If not, the reader returns kOther.
  virtual bool takes(std::string_view name) const = 0;
  virtual void begin(std::string name, std::string id) = 0;  // once per call; id: of the model, or empty
  virtual void arguments(std::string json) = 0;              // the next piece of the JSON text of the arguments
};

// Reads the body of one call.
class BodyReader {
 public:
  enum class State {
    kMore,   // more text is needed
    kDone,   // the body is complete: begin() was called and all arguments were given
    kOther,  // this is not a call
  };
  struct Result {
    State state;
    size_t used;  // bytes from the front of `text` that will not be shown again
  };
  virtual ~BodyReader() = default;
  // Reads on in `text`: all text of the answer behind the begin of the call that was not used yet. It has grown at its
  // end since the last call. Nothing may be used before begin() was called, so that other text can stay text; a
  // reader remembers how far it has looked, so that the time is linear. Returns kOther only before begin(); afterwards
  // it goes on as well as it can and passes on unknown parts of the arguments unchanged. `last`: no text follows,
  // and kMore means that the call is cut off there.
  virtual Result read(std::string_view text, bool last, CallSink& sink) = 0;
};

// The form of bodies. Immutable; one object serves all calls.
class CallBody {
 public:
  virtual ~CallBody() = default;
  // `functions` outlives the reader. It may lack the function that a model calls.
  virtual std::unique_ptr<BodyReader> reader(const ToolFunctions& functions) const = 0;
  // The body of a call of this function. Throws GrammarError.
  virtual grammar::NodeId build(grammar::Builder& builder, const ToolFunction& function,
                                const grammar::CompileContext& context) const = 0;
};

struct CallFormat {
  // Marks. The first of a list is what the grammar writes, and may be empty; the parser takes each. Without a list
  // there is no mark. White space around a mark is written by the grammar and not needed by the parser. A mark, or a
  // part of it, may be special tokens of the vocabulary or ordinary text; the grammar allows both.
  std::vector<std::string> section_begin{}, section_end{};
  std::vector<std::string> call_begin{}, call_end{};
  // Models forget the first mark of a call, so that the parser also takes calls that begin with one of these: with
  // call_begin where there are sections, else with what begins a body. The call must be one of a function of the
  // request, if it has any. The grammar does not allow these texts there.
  std::vector<std::string> unmarked{};
  std::string separator{};  // between calls of a section; its trimmed text may also be missing
  // The calls of a section are a JSON array. The parser also takes a single call without brackets.
  bool list = false;
  std::string list_begin = "[", list_end = "]";  // what the grammar writes: the brackets, with white space
  // Not empty: an answer may begin with calls without section_begin, and the grammar writes them so. The first visible
  // character of the answer must then be one of these, or else the answer begins with text.
  std::string_view bare{};
  std::vector<std::string> ignored{};  // marks to remove from the text, such as those around an answer
  bool text_after = true;              // text and further sections may follow a section; else the answer ends with it
  std::shared_ptr<const CallBody> body{};
};

// `format` must outlive the parser.
std::unique_ptr<OutputParser> make_call_parser(const CallFormat& format,
                                               std::shared_ptr<const ToolFunctions> functions);
grammar::NodeId build_calls(grammar::Builder& builder, const CallFormat& format, const CallGrammar& calls,
                            const grammar::CompileContext& context);
// The syntax of a format, which is a constant of the file that registers it.
template <const CallFormat& format>
ToolSyntax call_syntax(std::string_view name, bool (*in_template)(std::string_view),
                       std::initializer_list<std::string_view> aliases = {}) {
  return {
      .name = name,
      .aliases = aliases,
      .in_template = in_template,
      .parser =
          [](std::shared_ptr<const ToolFunctions> functions) { return make_call_parser(format, std::move(functions)); },
      .build = [](grammar::Builder& builder, const CallGrammar& calls,
                  const grammar::CompileContext& context) { return build_calls(builder, format, calls, context); }};
}

// Whether the source of a template has all of the texts, and none of `others`.
inline bool has_texts(std::string_view source, std::initializer_list<std::string_view> all,
                      std::initializer_list<std::string_view> others = {}) {
  const auto has = [&](std::string_view text) { return source.find(text) != std::string_view::npos; };
  return std::ranges::all_of(all, has) && std::ranges::none_of(others, has);
}

// The text of a mark. What of it is a special token may be written as the token.
grammar::NodeId build_mark(grammar::Builder& builder, std::string_view mark, const grammar::CompileContext& context);
// The schema of a function's arguments, which are always an object. Throws GrammarError if it is of another type.
Json arguments_schema(const ToolFunction& function);

// Bodies.

// {"name": "f", "arguments": {...}}: an object with these keys, in this order for the grammar and in any order for the
// parser, which also knows "parameters" and "arguments" as names of each other, arguments as a string that holds JSON,
// and {"type": "function", "function": {...}} around it. Arguments may be missing in a call of a known function.
struct JsonCallKeys {
  std::string name = "name";  // empty: {"f": {...}}, the key is the name
  std::string arguments = "arguments";
  std::string id{};  // key of the call's id, which the grammar writes first as a number; empty: none
};
std::shared_ptr<const CallBody> json_body(JsonCallKeys keys = {});

// What `body` reads, and what json_body() reads if it begins with a brace. The grammar writes the former.
std::shared_ptr<const CallBody> or_json_body(std::shared_ptr<const CallBody> body);

// name{between}{...}: the name of the function, a text, the arguments as JSON. `prefix` comes before the name. The name
// has no white space, quotes or brackets. `between` may be missing. `id`, if not empty: the name may be followed by
// `id` and the id of the call (Mistral: "[CALL_ID]"). `namespaced`: the name is written functions.NAME:INDEX, which is
// also the id (Kimi K2).
struct NamedCallMarks {
  std::string prefix{};
  std::string between{};
  std::string id{};
  bool namespaced = false;
};
std::shared_ptr<const CallBody> named_body(NamedCallMarks marks);

// Parameters in tags, each with its value: text for strings, else JSON. Types come from the schemas of the functions;
// values of unknown types are JSON if they are a JSON value and else strings.
struct TaggedCallMarks {
  std::string name_begin{}, name_end{};            // <function=f>
  std::string parameter_begin{}, parameter_end{};  // before and after the key: <parameter=k>
  std::string value_begin{};                       // between parameter_end and the value, as in <arg_value>
  std::string string_begin{};                      // the same before strings, where values say that they are strings
  std::string value_end{};                         // </parameter>
  std::string separator{};                         // between parameters
  std::string body_end{};                          // </function>; empty: the call's end ends the body
  bool strip_newlines = true;                      // one line break at each end of a value is not a part of it
  // Not empty: the parser takes a value whose value_end the model forgot. Such a value ends before a line that begins
  // a parameter of the function that the call lacks, or a line with body_end and then this text.
  std::string behind_body{};
};
std::shared_ptr<const CallBody> tagged_body(TaggedCallMarks marks);

// f(a=1, b="x"): a call in Python with keyword arguments of literals.
std::shared_ptr<const CallBody> python_body();

// call:f{a:1,b:<|"|>x<|"|>}: a call in the notation of Gemma. `quote` stands around strings.
std::shared_ptr<const CallBody> gemma_body(std::string_view quote);

}  // namespace sluice
