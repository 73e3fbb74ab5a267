#include "grammar/json_schema/distinct.h"

#include "grammar/json_schema/numbers.h"

namespace sluice::grammar::json_schema {
namespace {

// One text for each number: no exponent, no zeros at the ends.
const Automaton& shortest_decimals() {
  static const Automaton decimals = [] {
    Budget budget;
    return parse_regex(R"(0|-?(?:[1-9][0-9]*(?:\.[0-9]*[1-9])?|0\.[0-9]*[1-9]))", RegexSyntax::kEcma, true, budget);
  }();
  return decimals;
}

// Adds the texts of each number of the language. Returns false if there are more than `most`, or numbers that have no
// such decimal in it.
bool add_numbers(const Automaton& texts, size_t most, std::map<std::string, Automaton>& values, Budget& budget) {
  const auto words = intersect(texts, shortest_decimals(), budget).enumerate(most, budget);
  if (!words) return false;
  std::vector<Automaton> all;
  for (const std::string& word : *words) {
    all.push_back(intersect(texts, equal_to(parse_json(word), budget), budget));
    const auto [place, fresh] = values.try_emplace(word, all.back());
    if (!fresh) place->second = unite(std::vector{place->second, all.back()}, budget);
  }
  return includes(unite(all, budget), texts, budget);
}

bool add_strings(const Alternative& a, size_t most, std::map<std::string, Automaton>& values, Budget& budget) {
  const bool bounded = a.least > 0 || a.most >= 0;
  Automaton texts = a.string ? *a.string : any_text();
  if (bounded) texts = intersect(texts, text_of_length(a.least, a.most, budget), budget);
  const auto words = texts.enumerate(most, budget);
  if (!words) return false;
  for (const std::string& word : *words) {
    values.try_emplace('"' + word, json_string(Automaton::literal(word), budget));
  }
  return true;
}

}  // namespace

std::optional<std::vector<Automaton>> distinct_values(const Alternatives& alternatives, size_t most, Budget& budget) {
  std::map<std::string, Automaton> values;  // by a text that only the value has
  for (const Alternative& a : alternatives) {
    bool finite = true;
    switch (a.type) {
      case Type::kNull:
        values.try_emplace("null", Automaton::literal("null"));
        break;
      case Type::kTrue:
        values.try_emplace("true", Automaton::literal("true"));
        break;
      case Type::kFalse:
        values.try_emplace("false", Automaton::literal("false"));
        break;
      case Type::kNumber:
        finite = a.number && add_numbers(*a.number, most, values, budget);
        break;
      case Type::kString:
        finite = add_strings(a, most, values, budget);
        break;
      case Type::kArray:
      case Type::kObject:
        finite = false;
    }
    if (!finite || values.size() > most) return {};
  }
  std::vector<Automaton> out;
  for (auto& [text, language] : values) out.push_back(std::move(language));
  return out;
}

}  // namespace sluice::grammar::json_schema
