// Makes a grammar: a graph of nodes, each the language of some texts. Front ends (JSON Schema, GBNF, Lark, structural
// tags, call syntaxes) write nodes; Builder::finish gives the Grammar that makes masks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/grammar.h"
#include "sluice/request.h"

namespace sluice::grammar {

using NodeId = int32_t;

// Members of a JSON object in any order, without braces: `member` ( `separator` `member` )* or nothing. With
// `keys_only` a member is its key: items of a list that must differ.
struct Members {
  // Keys of one class share their value. A key may be in several classes: its member is of one of them.
  struct Class {
    Automaton key;               // JSON text of the key, with quotes
    NodeId value = 0;            // what follows the colon
    bool once = false;           // at most one member; declared properties are such classes
    bool required = false;       // at least one member
    std::vector<int> implies{};  // classes that a member of this class makes required
  };
  std::vector<Class> classes{};
  // None of these nor a value has the empty text.
  NodeId colon = 0;      // ":" with the whitespace around it
  NodeId separator = 0;  // "," with the whitespace around it
  int least = 0;         // members
  int most = -1;         // members; < 0: no limit
  bool keys_only = false;
  bool in_order = false;  // classes must come in the order of the list, each at most once if `once`
};

struct CountedText;

class Builder {
 public:
  explicit Builder(Budget& budget);
  ~Builder();

  NodeId empty();    // the empty text
  NodeId nothing();  // no text at all
  NodeId literal(std::string_view bytes);
  NodeId regular(const Automaton& language);
  NodeId counted(CountedText text);
  // One special token, by its id. It is in no text: only this node allows it.
  NodeId special(TokenId token);
  NodeId sequence(std::span<const NodeId> parts);
  NodeId choice(std::span<const NodeId> alternatives);
  NodeId repeat(NodeId item, int least, int most);  // most < 0: no limit. Counters cost no states in advance
  NodeId separated(NodeId item, NodeId separator, int least, int most);
  NodeId members(Members members);
  // Text of whole UTF-8 characters up to the first occurrence of one of `ends` (the longest that matches there), and
  // then what follows that end. Without `must_end` the text may also go on forever or stop anywhere. An end is bytes or
  // a special token.
  struct End {
    std::string bytes{};  // empty: the special token
    std::optional<TokenId> special{};
    NodeId then = 0;  // comes after the end
  };
  NodeId free_text(std::vector<End> ends, bool must_end);

  // A node that is defined later, for recursion. Every kind of recursion is allowed.
  NodeId declare(std::string_view name);
  void define(NodeId declared, NodeId body);

  // The grammar of one node. Throws GrammarError if it has no text at all.
  std::shared_ptr<const Grammar> finish(NodeId start);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::grammar
