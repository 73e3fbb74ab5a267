#include "grammar/frames.h"

#include <algorithm>

namespace sluice::grammar {

Frames::Frames(std::shared_ptr<const NodeGraph> graph) : graph_(std::move(graph)) {
  for (const Node& node : graph_->nodes) {
    const auto* repeat = std::get_if<RepeatNode>(&node);
    if (repeat != nullptr && (repeat->most > 1 || repeat->least > 1)) has_counters_ = true;
    if (std::holds_alternative<CountedNode>(node)) has_counters_ = true;
  }
  number_of({});  // number 0
  find_left_recursion();
}

size_t Frames::bytes() const {
  size_t total = bytes_ + counts_.bytes() + frames_.capacity() * sizeof(Entry) + chains_.capacity() * sizeof(Chain);
  for (const auto& [language, automaton] : by_language_) total += automaton->bytes();
  for (const auto& [node, positions] : members_) total += positions->bytes();
  return total;
}

FrameId Frames::frame(NodeId node, uint32_t data) {
  const uint64_t key = uint64_t{static_cast<uint32_t>(node)} << 32 | data;
  const auto found = ids_.find(key);
  if (found != ids_.end()) return found->second;
  const auto id = static_cast<FrameId>(frames_.size());
  ids_.emplace(key, id);
  frames_.emplace_back();
  auto made = std::make_unique<Frame>(Frame{.node = node, .data = data});
  describe(*made);  // may make further frames
  bytes_ += sizeof(Frame) + made->calls.capacity() * sizeof(Call) + 64;
  frames_[id].frame = std::move(made);
  return id;
}

void Frames::describe(Frame& f) {
  if (f.node == kLeftCorner) {
    f.nullable =
        left_corner_nullable(static_cast<NodeId>(corners_[f.data][0]), static_cast<NodeId>(corners_[f.data][1]));
    return;
  }
  std::visit([&](const auto& node) { describe(f, node); }, graph_->nodes[static_cast<size_t>(f.node)]);
}

void Frames::describe(Frame& f, const RegularNode& node) {
  SubsetAutomaton& a = automaton(f.node, node.language);
  f.nullable = !a.accepted(f.data).empty();
  f.has_row = !a.final_only(f.data);
}

void Frames::describe(Frame& f, const CountedNode& node) {
  SubsetAutomaton& a = automaton(f.node, node.text->language);
  const uint32_t state = counted(f.data).state;
  f.nullable = !a.accepted(state).empty();
  f.has_row = !a.final_only(state);
}

void Frames::describe(Frame& f, const SpecialNode& node) { f.specials.emplace_back(node.token, kNothing); }

void Frames::describe(Frame& f, const SequenceNode& node) {
  size_t i = f.data;
  while (i < node.parts.size() && graph_->nullable[static_cast<size_t>(node.parts[i])]) ++i;
  f.nullable = i == node.parts.size();
  if (f.data >= node.parts.size()) return;
  const Place then = f.data + 1 < node.parts.size() ? Place{f.node, f.data + 1} : kNothing;
  f.calls.push_back({node.parts[f.data], then});
}

void Frames::describe(Frame& f, const ChoiceNode& node) {
  f.nullable = graph_->nullable[static_cast<size_t>(f.node)];
  for (const NodeId alternative : node.alternatives) {
    if (graph_->productive[static_cast<size_t>(alternative)]) f.calls.push_back({alternative, kNothing});
  }
}

void Frames::describe(Frame& f, const DeclaredNode& node) {
  f.nullable = graph_->nullable[static_cast<size_t>(f.node)];
  f.calls.push_back({node.body, kNothing});
}

void Frames::describe(Frame& f, const RepeatNode& node) {
  const bool empty_item = graph_->nullable[static_cast<size_t>(node.item)];
  // An empty item changes nothing but the count, which may be 0 then.
  f.nullable = empty_item || f.data >= static_cast<uint32_t>(node.least);
  f.skips_empty = !empty_item;
  if (node.most == 0 || !graph_->productive[static_cast<size_t>(node.item)]) return;
  const uint32_t count = f.data + 1;
  if (node.most < 0) {
    f.calls.push_back({node.item, {f.node, std::min(count, static_cast<uint32_t>(node.least))}});
  } else {
    f.calls.push_back({node.item, count < static_cast<uint32_t>(node.most) ? Place{f.node, count} : kNothing});
  }
}

void Frames::describe(Frame& f, const Members& node) {
  MemberPositions& m = members(f.node, node);
  const MemberPositions::Position p = m[f.data];
  using Phase = MemberPositions::Phase;
  f.has_row = p.phase == Phase::kStart || p.phase == Phase::kKey;
  f.nullable = (p.phase == Phase::kStart || p.phase == Phase::kAfter) && m.may_end(p);
  const auto call_separator = [&](const MemberPositions::Position& after) {
    const uint32_t key = m.further_key(after);
    if (key != MemberPositions::kDead) f.calls.push_back({node.separator, {f.node, key}});
  };
  if (p.phase == Phase::kKey) {
    for (const int c : m.complete_keys(p)) {
      if (!node.keys_only) {
        f.calls.push_back({node.colon, {f.node, m.value_of(p, c)}});
        continue;
      }
      const MemberPositions::Position after = m[m.after_value(m[m.value_of(p, c)])];
      f.nullable = f.nullable || m.may_end(after);
      call_separator(after);
    }
  } else if (p.phase == Phase::kValue) {
    f.calls.push_back({node.classes[p.extra].value, {f.node, m.after_value(p)}});
  } else if (p.phase == Phase::kAfter) {
    call_separator(p);
  }
}

void Frames::describe(Frame& f, const FreeTextNode& node) {
  if ((f.data & kEnded) != 0) {
    const NodeId then = node.ends[f.data & ~kEnded].then;
    f.nullable = graph_->nullable[static_cast<size_t>(then)];
    f.calls.push_back({then, kNothing});
    return;
  }
  f.has_row = true;
  f.nullable = !node.must_end && EndFinder::whole(f.data);
  if (!EndFinder::whole(f.data)) return;
  for (size_t i = 0; i < node.ends.size(); ++i) {
    const Builder::End& end = node.ends[i];
    if (!end.special || !graph_->productive[static_cast<size_t>(end.then)]) continue;
    f.specials.emplace_back(*end.special, Place{f.node, kEnded | static_cast<uint32_t>(i)});
  }
}

uint32_t Frames::number_of(const Counted& position) {
  const uint32_t words[] = {position.state, position.count};
  return counts_.add(words);
}

SubsetAutomaton& Frames::automaton(NodeId node, const Automaton& language) {
  std::shared_ptr<SubsetAutomaton>& a = automata_[node];
  if (!a) {
    // Nodes of one automaton share its states. Its edges tell which one it is.
    std::shared_ptr<SubsetAutomaton> none;
    const void* identity = language.states() > 0 ? language.edges(0).data() : nullptr;
    std::shared_ptr<SubsetAutomaton>& shared = identity != nullptr ? by_language_[identity] : none;
    if (!shared) shared = std::make_shared<SubsetAutomaton>(std::vector<Automaton>{language});
    a = shared;
  }
  return *a;
}

MemberPositions& Frames::members(NodeId node, const Members& m) {
  std::unique_ptr<MemberPositions>& positions = members_[node];
  if (!positions) {
    std::vector<bool> productive;
    for (const Members::Class& c : m.classes) productive.push_back(graph_->productive[static_cast<size_t>(c.value)]);
    positions = std::make_unique<MemberPositions>(m, std::move(productive));
    positions->start();  // number 0
  }
  return *positions;
}

const EndFinder& Frames::finder(NodeId node, const FreeTextNode& text) {
  std::unique_ptr<EndFinder>& finder = finders_[node];
  if (!finder) {
    std::vector<std::string> ends;
    for (const Builder::End& end : text.ends) ends.push_back(end.special ? std::string() : end.bytes);
    finder = std::make_unique<EndFinder>(std::move(ends));
  }
  return *finder;
}

// The row of a frame from that of an automaton: bytes that lead to one state lead to one frame.
template <class FrameOf>
void Frames::translate(const SubsetAutomaton::Row& states, Row& row, FrameOf frame_of) {
  uint32_t last = SubsetAutomaton::kDead;
  FrameId to = kDead;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (states[byte] == SubsetAutomaton::kDead) continue;
    if (states[byte] != last) {
      last = states[byte];
      to = frame_of(last);
    }
    row[byte] = to;
  }
}

void Frames::fill_row(NodeId id, uint32_t data, Row& row) {
  const Node& node = graph_->nodes[static_cast<size_t>(id)];
  if (const auto* regular = std::get_if<RegularNode>(&node)) {
    SubsetAutomaton& a = automaton(id, regular->language);
    translate(a.row(data), row, [&](uint32_t to) { return a.final_only(to) ? kFinished : frame(id, to); });
    return;
  }
  if (const auto* text = std::get_if<CountedNode>(&node)) return fill_row(id, *text, data, row);
  if (const auto* m = std::get_if<Members>(&node)) {
    MemberPositions& positions = members(id, *m);
    const MemberPositions::Position p = positions[data];
    translate(positions.key_row(p), row, [&](uint32_t state) {
      const uint32_t to = positions.after_key(p, state);
      return to == MemberPositions::kDead ? kDead : frame(id, to);
    });
    return;
  }
  const auto& text = std::get<FreeTextNode>(node);
  const EndFinder& ends = finder(id, text);
  for (size_t byte = 0; byte < 256; ++byte) {
    const EndFinder::Step step = ends.after(data, static_cast<uint8_t>(byte));
    if (!step.valid) continue;
    if (step.end < 0) {
      row[byte] = frame(id, step.state);
    } else if (graph_->productive[static_cast<size_t>(text.ends[static_cast<size_t>(step.end)].then)]) {
      row[byte] = frame(id, kEnded | static_cast<uint32_t>(step.end));
    }
  }
}

// All texts that lead to a state of the subset automaton are at the same place of a unit. So are the members of the
// state, and what is true of one is true of all.
void Frames::fill_row(NodeId id, const CountedNode& node, uint32_t data, Row& row) {
  const CountedText& text = *node.text;
  SubsetAutomaton& a = automaton(id, text.language);
  const Counted from = counted(data);
  translate(a.row(from.state), row, [&](uint32_t state) {
    const std::span<const uint32_t> members = a.members(state);
    int64_t least = text.least[members[0]];
    for (const uint32_t member : members) least = std::min<int64_t>(least, text.least[member]);
    const uint32_t count = from.count + text.ends_unit[members[0]];
    if (count + least > text.most) return kDead;
    return a.final_only(state) ? kFinished : frame(id, number_of({state, count}));
  });
}

const Frames::Row& Frames::row(FrameId id) {
  if (!frames_[id].row) {
    auto row = std::make_unique<Row>();
    row->fill(kDead);
    const Frame& f = (*this)[id];
    fill_row(f.node, f.data, *row);
    bytes_ += sizeof(Row);
    frames_[id].row = std::move(row);
  }
  return *frames_[id].row;
}

void Frames::forget_rows() {
  for (Entry& entry : frames_) {
    if (entry.row) bytes_ -= sizeof(Row);
    entry.row = nullptr;
  }
}

bool Frames::begins_any_text(FrameId id) {
  const Frame& f = (*this)[id];
  if (f.node == kLeftCorner || !f.has_row) return false;
  const Node& node = graph_->nodes[static_cast<size_t>(f.node)];
  if (const auto* regular = std::get_if<RegularNode>(&node)) {
    return automaton(f.node, regular->language).any_text_follows(f.data, [](uint32_t) { return true; });
  }
  if (const auto* m = std::get_if<Members>(&node)) {
    MemberPositions& positions = members(f.node, *m);
    return positions.begins_any_text(positions[f.data]);
  }
  return false;
}

const Frames::Call* Frames::item(FrameId id) const {
  const Frame& f = (*this)[id];
  if (f.node == kLeftCorner || !std::holds_alternative<RepeatNode>(graph_->nodes[static_cast<size_t>(f.node)])) {
    return nullptr;
  }
  if (!f.skips_empty || f.calls.size() != 1) return nullptr;
  return component_[static_cast<size_t>(f.calls[0].callee)] < 0 ? &f.calls[0] : nullptr;
}

FrameId Frames::representative(FrameId id, int longest) {
  const Frame& f = (*this)[id];
  if (f.node == kLeftCorner) return id;
  const Node& node = graph_->nodes[static_cast<size_t>(f.node)];
  if (const auto* text = std::get_if<CountedNode>(&node)) {
    const Counted at = counted(f.data);
    const bool far = int64_t{text->text->most} - at.count > int64_t{longest} + text->text->most_left;
    return far ? frame(f.node, number_of({at.state, 0})) : id;
  }
  const auto* repeat = std::get_if<RepeatNode>(&node);
  if (repeat == nullptr) return id;
  // Each item has at least one byte, so that a text of `longest` bytes counts up by at most as many.
  const auto least = int64_t{repeat->least}, most = int64_t{repeat->most}, count = int64_t{f.data};
  const bool far_from_most = most < 0 || most - count > longest;
  if (!far_from_most) return id;
  if (count >= least) return most < 0 || most - least > longest ? frame(f.node, repeat->least) : id;
  return least - count > longest ? frame(f.node, 0) : id;
}

}  // namespace sluice::grammar
