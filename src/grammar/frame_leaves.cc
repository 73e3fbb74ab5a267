// How a frame reads its next byte: the closure over calls, and left recursion.
//
// A left-recursive node begins with itself, directly or through others. Following its calls would not end. Instead, the
// text of such a node A begins with a text of some node X. X is in the same strongly connected component, and reads a
// byte without a call within the component. Then the frame "left corner (A, X)" goes on: a text of X is done, a text of
// A is wanted. It may end if X is A; or X was the beginning of some Z, whose rest comes next, and then (A, Z). This is
// the left-corner transformation (Rosenkrantz and Lewis 1970, "Deterministic left corner parsing"), made while it is
// used.
#include <fmt/core.h>

#include <algorithm>
#include <unordered_set>

#include "grammar/frames.h"

namespace sluice::grammar {
namespace {

// More ways to read one byte than this are an error: the grammar is too ambiguous to run.
constexpr size_t kMostLeaves = 100'000;

constexpr size_t kMostLeftRecursive = 1000;  // nodes that begin with each other

// The nodes with which a text of a node may begin.
std::vector<NodeId> first_parts(const NodeGraph& graph, NodeId id) {
  std::vector<NodeId> out;
  const auto productive = [&](NodeId n) { return graph.productive[static_cast<size_t>(n)]; };
  const Node& node = graph.nodes[static_cast<size_t>(id)];
  if (!productive(id)) return out;
  if (const auto* sequence = std::get_if<SequenceNode>(&node)) {
    for (const NodeId part : sequence->parts) {
      out.push_back(part);
      if (!graph.nullable[static_cast<size_t>(part)]) break;
    }
  } else if (const auto* choice = std::get_if<ChoiceNode>(&node)) {
    std::copy_if(choice->alternatives.begin(), choice->alternatives.end(), std::back_inserter(out), productive);
  } else if (const auto* repeat = std::get_if<RepeatNode>(&node)) {
    if (repeat->most != 0 && productive(repeat->item)) out.push_back(repeat->item);
  } else if (const auto* declared = std::get_if<DeclaredNode>(&node)) {
    out.push_back(declared->body);
  }
  return out;
}

// Strongly connected components that have a cycle (Tarjan 1972), without recursion.
class Components {
 public:
  explicit Components(const NodeGraph& graph) : graph_(graph), index_(graph.nodes.size()), low_(graph.nodes.size()) {
    on_stack_.resize(graph.nodes.size());
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      if (index_[n] == 0) visit(static_cast<NodeId>(n));
    }
  }
  std::vector<std::vector<NodeId>> cycles;

 private:
  struct Visit {
    NodeId node;
    std::vector<NodeId> parts;
    size_t next = 0;
  };

  void open(NodeId node) {
    index_[at(node)] = low_[at(node)] = ++count_;
    stack_.push_back(node);
    on_stack_[at(node)] = true;
    visits_.push_back({node, first_parts(graph_, node)});
  }
  void visit(NodeId root) {
    open(root);
    while (!visits_.empty()) {
      Visit& v = visits_.back();
      if (v.next < v.parts.size()) {
        const NodeId part = v.parts[v.next++];
        if (index_[at(part)] == 0) {
          open(part);
        } else if (on_stack_[at(part)]) {
          low_[at(v.node)] = std::min(low_[at(v.node)], index_[at(part)]);
        }
        continue;
      }
      close(v);
      const NodeId node = v.node;
      visits_.pop_back();
      if (!visits_.empty()) low_[at(visits_.back().node)] = std::min(low_[at(visits_.back().node)], low_[at(node)]);
    }
  }
  void close(const Visit& v) {
    if (low_[at(v.node)] != index_[at(v.node)]) return;
    std::vector<NodeId> component;
    do {
      component.push_back(stack_.back());
      on_stack_[at(stack_.back())] = false;
      stack_.pop_back();
    } while (component.back() != v.node);
    const bool loop = std::find(v.parts.begin(), v.parts.end(), v.node) != v.parts.end();
    if (component.size() > 1 || loop) cycles.push_back(std::move(component));
  }
  static size_t at(NodeId node) { return static_cast<size_t>(node); }

  const NodeGraph& graph_;
  std::vector<uint32_t> index_, low_;
  std::vector<bool> on_stack_;
  std::vector<NodeId> stack_;
  std::vector<Visit> visits_;
  uint32_t count_ = 0;
};

}  // namespace

struct Frames::Expansion {
  std::vector<std::pair<FrameId, uint32_t>> open;
  std::unordered_set<uint64_t> seen;
  std::vector<Leaf> leaves;

  void add(FrameId frame, uint32_t below) {
    if (frame == kFinished) return;
    if (!seen.insert(uint64_t{frame} << 32 | below).second) return;
    if (seen.size() > kMostLeaves)
      throw GrammarError("the grammar is too ambiguous: a byte can be read in too many ways");
    open.emplace_back(frame, below);
  }
};

void Frames::find_left_recursion() {
  components_ = Components(*graph_).cycles;
  for (const std::vector<NodeId>& component : components_) {
    if (component.size() > kMostLeftRecursive) {
      throw GrammarError(fmt::format("left recursion through more than {} parts of rules", kMostLeftRecursive));
    }
  }
  component_.assign(graph_->nodes.size(), -1);
  for (size_t i = 0; i < components_.size(); ++i) {
    for (const NodeId node : components_[i]) component_[static_cast<size_t>(node)] = static_cast<int>(i);
  }
}

// The frames at which a text of the node may still begin: the first one, and those behind empty texts.
std::span<const FrameId> Frames::left_frames(NodeId node) {
  const auto found = left_frames_.find(node);
  if (found != left_frames_.end()) return found->second;
  std::vector<FrameId> frames = {start(node)};
  for (size_t i = 0; i < frames.size(); ++i) {
    if (!(*this)[frames[i]].skips_empty) continue;
    const std::vector<Call> calls = (*this)[frames[i]].calls;
    for (const Call& call : calls) {
      if (call.then.finished || !graph_->nullable[static_cast<size_t>(call.callee)]) continue;
      const FrameId next = at(call.then);
      if (std::find(frames.begin(), frames.end(), next) == frames.end()) frames.push_back(next);
    }
  }
  return left_frames_.emplace(node, std::move(frames)).first->second;
}

const std::vector<Frames::LeftEdge>& Frames::left_edges(NodeId done) {
  const int component = component_[static_cast<size_t>(done)];
  const auto [place, fresh] = left_edges_.try_emplace(component);
  if (fresh) {
    std::unordered_map<NodeId, std::vector<LeftEdge>> edges;
    for (const NodeId into : components_[static_cast<size_t>(component)]) {
      for (const FrameId id : left_frames(into)) {
        for (const Call& call : (*this)[id].calls) edges[call.callee].push_back({call.then, into});
      }
    }
    left_edges_[component] = std::move(edges);
  }
  return left_edges_[component][done];
}

bool Frames::left_corner_nullable(NodeId goal, NodeId done) {
  std::vector<NodeId> reached = {done};
  std::unordered_set<NodeId> seen = {done};
  for (size_t i = 0; i < reached.size(); ++i) {
    if (reached[i] == goal) return true;
    const std::vector<LeftEdge> edges = left_edges(reached[i]);
    for (const LeftEdge& edge : edges) {
      if (nullable(edge.rest) && seen.insert(edge.into).second) reached.push_back(edge.into);
    }
  }
  return false;
}

FrameId Frames::left_corner(NodeId goal, NodeId done) {
  const uint32_t words[] = {static_cast<uint32_t>(goal), static_cast<uint32_t>(done)};
  return frame(kLeftCorner, corners_.add(words));
}

uint32_t Frames::push(uint32_t below, FrameId top) {
  if (top == kFinished) return below;
  const auto [place, fresh] = chain_ids_.emplace(uint64_t{top} << 32 | below, static_cast<uint32_t>(chains_.size()));
  if (fresh) {
    chains_.push_back({top, below});
    bytes_ += 48;
  }
  return place->second;
}

std::span<const Frames::Leaf> Frames::leaves(FrameId id) {
  if (!frames_[id].expanded) {
    Expansion e;
    e.add(id, 0);
    while (!e.open.empty()) {
      const auto [frame, below] = e.open.back();
      e.open.pop_back();
      const Frame& f = (*this)[frame];
      if (f.has_row || !f.specials.empty()) e.leaves.push_back({frame, below});
      if (f.node == kLeftCorner) expand_left_corner(f, below, e);
      for (const Call& call : f.calls) {
        expand_call(call, below, e);
        if (f.skips_empty && graph_->nullable[static_cast<size_t>(call.callee)]) e.add(at(call.then), below);
      }
    }
    bytes_ += e.leaves.size() * sizeof(Leaf);
    frames_[id].leaves = std::move(e.leaves);
    frames_[id].expanded = true;
  }
  return frames_[id].leaves;
}

void Frames::expand_call(const Call& call, uint32_t below, Expansion& e) {
  const uint32_t rest = push(below, at(call.then));
  if (component_[static_cast<size_t>(call.callee)] >= 0) return enter_component(call.callee, rest, e);
  e.add(start(call.callee), rest);
}

// Every way to begin a text of `goal`, which is left-recursive.
void Frames::enter_component(NodeId goal, uint32_t below, Expansion& e) {
  const int component = component_[static_cast<size_t>(goal)];
  for (const NodeId node : components_[static_cast<size_t>(component)]) {
    const uint32_t corner = push(below, left_corner(goal, node));
    const std::vector<FrameId> frames(left_frames(node).begin(), left_frames(node).end());
    for (const FrameId id : frames) {
      const Frame& f = (*this)[id];
      if (f.has_row || !f.specials.empty()) e.leaves.push_back({id, corner});
      for (const Call& call : f.calls) {
        if (component_[static_cast<size_t>(call.callee)] != component) expand_call(call, corner, e);
      }
    }
  }
}

void Frames::expand_left_corner(const Frame& f, uint32_t below, Expansion& e) {
  const auto goal = static_cast<NodeId>(corners_[f.data][0]), done = static_cast<NodeId>(corners_[f.data][1]);
  const std::vector<LeftEdge> edges = left_edges(done);
  for (const LeftEdge& edge : edges) {
    const FrameId next = left_corner(goal, edge.into);
    e.add(at(edge.rest), push(below, next));
    if (nullable(edge.rest)) e.add(next, below);
  }
}

}  // namespace sluice::grammar
