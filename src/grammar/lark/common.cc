// The terminals of Lark's library "common", as regular expressions.
#include <utility>

#include "grammar/lark/document.h"

namespace sluice::grammar::lark {
namespace {

constexpr std::pair<std::string_view, std::string_view> kTerminals[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"ESCAPED_STRING", R"("([^"\\\n]|\\[^\n])*")"},
    {"_STRING_INNER", R"([^\n]*)"},
    {"_STRING_ESC_INNER", R"(([^\\\n]|\\[^\n])*)"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[a-zA-Z]"},
    {"WORD", "[a-zA-Z]+"},
    {"CNAME", "[_a-zA-Z][_a-zA-Z0-9]*"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(//[^\n]*)"},
    {"C_COMMENT", R"(/\*[^*]*\*+([^/*][^*]*\*+)*/)"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
};

}  // namespace

std::string_view common_terminal(std::string_view name) {
  for (const auto& [key, pattern] : kTerminals) {
    if (key == name) return pattern;
  }
  return {};
}

}  // namespace sluice::grammar::lark
