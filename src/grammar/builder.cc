#include "grammar/builder.h"

#include <algorithm>

#include "base/check.h"
#include "grammar/compiled.h"
#include "grammar/members.h"
#include "grammar/node.h"

namespace sluice::grammar {
namespace {

// Which nodes have a text, and which have the empty one: the least solution, by passes until nothing changes.
class Analysis {
 public:
  Analysis(NodeGraph& graph, Budget& budget) : graph_(graph), budget_(budget) {
    graph_.productive.assign(graph_.nodes.size(), false);
    graph_.nullable.assign(graph_.nodes.size(), false);
    settle(graph_.productive, [this](const auto& node) { return has_text(node); });
    settle(graph_.nullable, [this](const auto& node) { return has_empty(node); });
  }

 private:
  template <class Rule>
  void settle(std::vector<bool>& known, Rule rule) {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < graph_.nodes.size(); ++i) {
        budget_.step();
        if (known[i] || !std::visit(rule, graph_.nodes[i])) continue;
        known[i] = changed = true;
      }
    }
  }
  bool text(NodeId node) const { return graph_.productive[static_cast<size_t>(node)]; }
  bool none(NodeId node) const { return graph_.nullable[static_cast<size_t>(node)]; }

  bool has_text(const RegularNode& node) { return !node.language.empty(); }
  bool has_text(const CountedNode& node) {
    return !node.text->language.empty() && node.text->least[0] <= node.text->most;
  }
  bool has_text(const SpecialNode&) { return true; }
  bool has_text(const SequenceNode& node) {
    budget_.step(static_cast<int64_t>(node.parts.size()));
    return std::all_of(node.parts.begin(), node.parts.end(), [this](NodeId n) { return text(n); });
  }
  bool has_text(const ChoiceNode& node) {
    budget_.step(static_cast<int64_t>(node.alternatives.size()));
    return std::any_of(node.alternatives.begin(), node.alternatives.end(), [this](NodeId n) { return text(n); });
  }
  bool has_text(const RepeatNode& node) { return node.least == 0 || text(node.item); }
  bool has_text(const Members& node) {
    std::vector<bool> values;
    for (const Members::Class& c : node.classes) values.push_back(text(node.colon) && text(c.value) && !c.key.empty());
    budget_.step(static_cast<int64_t>(values.size()));
    return MemberPositions(node, std::move(values)).satisfiable();
  }
  bool has_text(const FreeTextNode& node) {
    if (!node.must_end) return true;
    // An end can come if no other one comes within it.
    return std::any_of(node.ends.begin(), node.ends.end(), [&](const Builder::End& end) {
      return text(end.then) && std::none_of(node.ends.begin(), node.ends.end(), [&](const Builder::End& other) {
               return !other.special && !end.special && other.bytes != end.bytes &&
                      end.bytes.find(other.bytes) < end.bytes.size() - other.bytes.size();
             });
    });
  }
  bool has_text(const DeclaredNode& node) { return text(node.body); }

  bool has_empty(const RegularNode& node) { return node.language.accepts_empty(); }
  bool has_empty(const CountedNode& node) { return node.text->language.accepts_empty(); }
  bool has_empty(const SpecialNode&) { return false; }
  bool has_empty(const SequenceNode& node) {
    return std::all_of(node.parts.begin(), node.parts.end(), [this](NodeId n) { return none(n); });
  }
  bool has_empty(const ChoiceNode& node) {
    return std::any_of(node.alternatives.begin(), node.alternatives.end(), [this](NodeId n) { return none(n); });
  }
  bool has_empty(const RepeatNode& node) { return node.least == 0 || none(node.item); }
  bool has_empty(const Members& node) {
    return node.least == 0 &&
           std::none_of(node.classes.begin(), node.classes.end(), [](const Members::Class& c) { return c.required; });
  }
  bool has_empty(const FreeTextNode& node) { return !node.must_end; }
  bool has_empty(const DeclaredNode& node) { return none(node.body); }

  NodeGraph& graph_;
  Budget& budget_;
};

}  // namespace

struct Builder::Impl {
  Budget& budget;
  std::vector<Node> nodes;

  NodeId add(Node node) {
    budget.step();
    budget.allocate(static_cast<int64_t>(sizeof(Node)));
    nodes.push_back(std::move(node));
    return static_cast<NodeId>(nodes.size() - 1);
  }
  const Automaton* regular(NodeId id) const {
    const auto* node = std::get_if<RegularNode>(&nodes[static_cast<size_t>(id)]);
    return node != nullptr ? &node->language : nullptr;
  }
};

Builder::Builder(Budget& budget) : impl_(new Impl{budget, {}}) {}
Builder::~Builder() = default;

NodeId Builder::empty() { return literal(""); }
NodeId Builder::nothing() { return regular(Automaton::none()); }
NodeId Builder::literal(std::string_view bytes) { return regular(Automaton::literal(bytes)); }
NodeId Builder::regular(const Automaton& language) { return impl_->add(RegularNode{language}); }
NodeId Builder::counted(CountedText text) {
  return impl_->add(CountedNode{std::make_shared<const CountedText>(std::move(text))});
}
NodeId Builder::special(TokenId token) { return impl_->add(SpecialNode{token}); }

NodeId Builder::sequence(std::span<const NodeId> parts) {
  if (parts.empty()) return empty();
  if (parts.size() == 1) return parts[0];
  impl_->budget.allocate(static_cast<int64_t>(parts.size_bytes()));
  return impl_->add(SequenceNode{{parts.begin(), parts.end()}});
}

NodeId Builder::choice(std::span<const NodeId> alternatives) {
  if (alternatives.empty()) return nothing();
  if (alternatives.size() == 1) return alternatives[0];
  // One automaton for all that is regular keeps sets of stacks small.
  std::vector<NodeId> nodes;
  std::vector<Automaton> languages;
  for (const NodeId alternative : alternatives) {
    const Automaton* language = impl_->regular(alternative);
    if (language != nullptr) {
      languages.push_back(*language);
    } else {
      nodes.push_back(alternative);
    }
  }
  if (!languages.empty()) nodes.push_back(regular(unite(languages, impl_->budget)));
  if (nodes.size() == 1) return nodes[0];
  impl_->budget.allocate(static_cast<int64_t>(nodes.size() * sizeof(NodeId)));
  return impl_->add(ChoiceNode{std::move(nodes)});
}

NodeId Builder::repeat(NodeId item, int least, int most) {
  CHECK(least >= 0 && (most < 0 || most >= least), "repeat {} .. {}", least, most);
  if (least == 1 && most == 1) return item;
  if (most == 0) return empty();
  return impl_->add(RepeatNode{item, least, most});
}

NodeId Builder::separated(NodeId item, NodeId separator, int least, int most) {
  CHECK(least >= 0 && (most < 0 || most >= least), "separated {} .. {}", least, most);
  if (most == 0) return empty();
  const NodeId further[] = {separator, item};
  const NodeId list[] = {item, repeat(sequence(further), std::max(least - 1, 0), most < 0 ? -1 : most - 1)};
  const NodeId some = sequence(list);
  if (least > 0) return some;
  const NodeId either[] = {empty(), some};
  return choice(either);
}

NodeId Builder::members(Members members) {
  impl_->budget.step(static_cast<int64_t>(members.classes.size()));
  impl_->budget.allocate(static_cast<int64_t>(members.classes.size() * sizeof(Members::Class)));
  return impl_->add(std::move(members));
}

NodeId Builder::free_text(std::vector<End> ends, bool must_end) {
  for (const End& end : ends) {
    CHECK(end.special || !end.bytes.empty(), "an end of free text is empty");
    impl_->budget.allocate(static_cast<int64_t>(1100 * end.bytes.size() + sizeof(End)));
  }
  return impl_->add(FreeTextNode{std::move(ends), must_end});
}

NodeId Builder::declare(std::string_view name) { return impl_->add(DeclaredNode{std::string(name), -1}); }

void Builder::define(NodeId declared, NodeId body) {
  std::get<DeclaredNode>(impl_->nodes[static_cast<size_t>(declared)]).body = body;
}

std::shared_ptr<const Grammar> Builder::finish(NodeId start) {
  auto graph = std::make_shared<NodeGraph>();
  graph->start = impl_->add(SequenceNode{{start}});
  graph->nodes = std::move(impl_->nodes);
  for (const Node& node : graph->nodes) {
    const auto* declared = std::get_if<DeclaredNode>(&node);
    CHECK(declared == nullptr || declared->body >= 0, "'{}' was declared but not defined", declared->name);
  }
  const Analysis analysis(*graph, impl_->budget);
  if (!graph->productive[static_cast<size_t>(graph->start)]) throw GrammarError("no text satisfies the grammar");
  return std::make_shared<const Grammar>(std::move(graph));
}

}  // namespace sluice::grammar
