// The graph that Builder makes: what a grammar is before it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "grammar/builder.h"
#include "grammar/counted_text.h"

namespace sluice::grammar {

struct RegularNode {
  Automaton language;
};
struct CountedNode {
  std::shared_ptr<const CountedText> text;
};
struct SpecialNode {
  TokenId token = 0;
};
struct SequenceNode {
  std::vector<NodeId> parts;
};
struct ChoiceNode {
  std::vector<NodeId> alternatives;
};
struct RepeatNode {
  NodeId item = 0;
  int least = 0;
  int most = -1;  // < 0: no limit
};
struct FreeTextNode {
  std::vector<Builder::End> ends;
  bool must_end = false;
};
struct DeclaredNode {
  std::string name;
  NodeId body = -1;  // -1: not defined yet
};
using Node = std::variant<RegularNode, CountedNode, SpecialNode, SequenceNode, ChoiceNode, RepeatNode, Members,
                          FreeTextNode, DeclaredNode>;

// What Builder::finish finds out about the nodes.
struct NodeGraph {
  std::vector<Node> nodes;
  NodeId start = 0;              // a sequence of its own, so that no node calls it
  std::vector<bool> productive;  // the node has a text
  std::vector<bool> nullable;    // the empty text is one of them
};

}  // namespace sluice::grammar
