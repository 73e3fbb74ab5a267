// JSON Schema in a normal form: what a value may be, as alternatives of one type each.
#pragma once

#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/automaton.h"

namespace sluice::grammar::json_schema {

// The value of a keyword; null if the schema does not have it.
inline const Json* member(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

// A subschema that a value must satisfy, or must not.
struct Condition {
  const Json* schema = nullptr;
  bool negated = false;
  auto operator<=>(const Condition&) const = default;
};
// All of them, sorted. Empty: any value.
using Goal = std::vector<Condition>;
Goal both(const Goal& a, const Goal& b);

enum class Type { kNull, kTrue, kFalse, kNumber, kString, kArray, kObject };
inline constexpr std::array<Type, 7> kTypes = {Type::kNull,   Type::kTrue,  Type::kFalse, Type::kNumber,
                                               Type::kString, Type::kArray, Type::kObject};

// What one schema says of the items of an array, or of the members of an object.
struct ItemRules {
  std::vector<Goal> prefix;
  Goal rest;
  bool evaluates = false;  // for unevaluatedItems: not within "not" and not of a constant
};
struct MemberRules {
  std::map<std::string, Goal> properties;
  std::vector<std::pair<std::string, Goal>> patterns;
  Goal additional;
  bool evaluates = false;  // for unevaluatedProperties
};
struct Contains {
  Goal item{};
  int least = 1, most = -1;  // most < 0: no limit
};

// There is at least one member with such a name and such a value.
struct SomeMember {
  Automaton names;  // decoded
  Goal value;
};

// Values of one type. Unset members do not restrict.
struct Alternative {
  Type type = Type::kNull;
  std::optional<Automaton> number{};  // its texts
  std::optional<Automaton> string{};  // decoded
  int least = 0, most = -1;           // characters, items or members{}; most < 0: no limit
  std::vector<ItemRules> items{};
  std::vector<Contains> contains{};
  bool unique = false;
  std::string unique_path{};
  std::vector<MemberRules> members{};
  std::set<std::string> required{};
  std::vector<SomeMember> some{};
  std::optional<Automaton> names{};                        // of members, decoded
  std::map<std::string, std::set<std::string>> implied{};  // a member requires others
};
using Alternatives = std::vector<Alternative>;

// Changes a count while it lives.
class Changed {
 public:
  Changed(int& count, int to) : count_(count), before_(count) { count_ = to; }
  ~Changed() { count_ = before_; }
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;

 private:
  int& count_;
  const int before_;
};

// One document: finds what references mean, and brings goals into the normal form.
class Document {
 public:
  Document(const Json& root, Budget& budget);

  Goal root() const { return {{&root_, false}}; }
  // The values that satisfy the goal. Throws GrammarError that names the path of what is not supported.
  const Alternatives& normal_form(const Goal& goal);
  // Whether no value satisfies the goal, as far as that can be told quickly. False while the goal's own normal form is
  // being made, and within too many others.
  bool impossible(const Goal& goal);
  // What the rules say of the value of a name.
  Goal rules_of(const MemberRules& rules, const std::string& name);
  const Automaton& pattern(const std::string& text, const std::string& path);
  Budget& budget() { return budget_; }
  std::string path(const Json& schema) const;  // "schema.properties.x"

 private:
  struct Place {
    const Json* parent;
    std::string key;
    const Json* resource;  // the schema whose $id is the base of references
  };

  void index();
  void add_identifiers(const Json& schema, const Json& resource);
  const Json* resolve(const Json& from, const std::string& reference) const;
  const Json* by_pointer(const Json& base, std::string_view pointer) const;
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword, std::string_view why) const;
  const Json& keep(Json made, const Json& origin);

  Alternatives apply(const Alternatives& to, const Condition& condition, int depth);
  Alternatives apply_one(const Alternative& to, const Condition& condition, int depth);
  Alternatives positive(const Alternative& to, const Json& schema, int depth);
  Alternatives negative(const Alternative& to, const Json& schema, int depth);
  Alternatives all_of(Alternatives to, const Json& list, bool negated, int depth);
  Alternatives any_of(const Alternatives& to, const Json& list, bool negated, int depth);
  Alternatives one_of(const Alternatives& to, const Json& schema, const Json& list, int depth);
  Alternatives conditional(const Alternatives& to, const Json& schema, int depth);
  Alternatives values(const Alternative& to, const Json& schema, const Json& list, bool negated, int depth);
  bool restrict(Alternative& to, const Json& schema);
  void restrict_number(Alternative& to, const Json& schema);
  void restrict_string(Alternative& to, const Json& schema);
  void restrict_array(Alternative& to, const Json& schema);
  void restrict_object(Alternative& to, const Json& schema);
  Alternatives dependent_schemas(Alternatives to, const Json& schema, int depth);
  void violate_number(const Alternative& to, const Json& schema, Alternatives& out);
  void violate_string(const Alternative& to, const Json& schema, Alternatives& out);
  void violate_array(const Alternative& to, const Json& schema, Alternatives& out);
  void violate_object(const Alternative& to, const Json& schema, Alternatives& out);
  bool apart(const Alternative& a, const Alternative& b);
  void add(Alternatives& out, Alternative one);
  int count(const Json& schema, const char* keyword, int otherwise) const;
  void check_annotations(const Json& schema) const;
  bool has_unevaluated(const Json& schema) const;
  Alternatives keywords(const Alternative& to, const Json& schema, int depth);
  Alternatives unevaluated(Alternatives to, const Alternative& from, const Json& schema);
  Alternatives any_together(const Alternatives& to, const Json& schema, const Json& list, int depth);
  const Json* dynamic_target(const Json& schema) const;
  bool evaluates() const { return unseen_ == 0; }

  const Json root_;
  Budget& budget_;
  bool old_draft_ = false;       // siblings of $ref are ignored: draft 7 and before
  bool plain_integers_ = false;  // an integer has neither fraction nor exponent: draft 4 and before
  bool asserts_format_ = true;   // "format" is an annotation where $schema names 2019-09 or 2020-12
  int unseen_ = 0;               // schemas around this one whose rules evaluate nothing
  int forming_ = 0;              // normal forms that are being made, one for another
  int watched_ = 0;              // schemas around this one with unevaluatedProperties or unevaluatedItems
  std::map<const Json*, Place> places_;
  std::map<std::string, const Json*> identifiers_;  // of $id, $anchor and their forms of old drafts
  std::vector<std::unique_ptr<Json>> made_;         // schemas for parts of constants
  std::map<Goal, std::unique_ptr<Alternatives>> forms_;
  std::map<std::string, Automaton> patterns_;
};

extern const Json kFalse;

}  // namespace sluice::grammar::json_schema
