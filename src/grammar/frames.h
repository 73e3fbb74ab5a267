// Frames: the positions within nodes. A frame stands for the rest of its node's text; a stack of frames, for the rest
// of the whole text. Frames are made when they are first needed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/end_finder.h"
#include "grammar/interner.h"
#include "grammar/members.h"
#include "grammar/node.h"
#include "grammar/subset_automaton.h"

namespace sluice::grammar {

using FrameId = uint32_t;

// A frame by its name: it is made when it is needed.
struct FramePlace {
  NodeId node = 0;
  uint32_t data = 0;
  bool finished = false;  // nothing is left
};

class Frames {
 public:
  static constexpr FrameId kDead = UINT32_MAX;          // no text goes on here
  static constexpr FrameId kFinished = UINT32_MAX - 1;  // nothing of the node is left

  using Row = std::array<FrameId, 256>;
  using Place = FramePlace;
  static constexpr Place kNothing = {.node = 0, .data = 0, .finished = true};
  // The frame goes on with a text of `callee`, after which `then` is left.
  struct Call {
    NodeId callee = 0;
    Place then{};
  };
  struct Frame {
    NodeId node = 0;
    uint32_t data = 0;
    bool nullable = false;    // the rest may be empty
    bool has_row = false;     // it reads a byte itself
    bool skips_empty = true;  // a call of a node with an empty text may be passed over
    std::vector<Call> calls{};
    std::vector<std::pair<TokenId, Place>> specials{};  // it reads a special token itself
  };
  // A frame that reads a byte or special token itself, and the frames that are left below it afterwards.
  struct Leaf {
    FrameId frame = 0;
    uint32_t below = 0;  // a chain
  };
  struct Chain {
    FrameId top = 0;
    uint32_t below = 0;
  };

  explicit Frames(std::shared_ptr<const NodeGraph> graph);

  FrameId start(NodeId node) { return frame(node, 0); }
  FrameId at(const Place& place) { return place.finished ? kFinished : frame(place.node, place.data); }
  const Frame& operator[](FrameId id) const { return *frames_[id].frame; }
  // The frame after a byte. For frames with has_row.
  const Row& row(FrameId id);
  // Every way to read the next byte or special token of the frame.
  std::span<const Leaf> leaves(FrameId id);
  // Chain 0 is empty.
  const Chain& chain(uint32_t id) const { return chains_[id]; }
  // Whether any plain text (see PlainText) may follow, as far as that is plain from the frame alone.
  bool begins_any_text(FrameId id);
  // The call of a frame that repeats an item, which is not empty, and is in no left recursion; else null.
  const Call* item(FrameId id) const;
  // A frame that texts of at most `longest` bytes cannot tell from this one; counters far from their bounds differ only
  // by their number.
  FrameId representative(FrameId id, int longest);
  // Gives back the memory of rows, which are made again when they are needed.
  void forget_rows();
  bool has_counters() const { return has_counters_; }
  size_t bytes() const;

 private:
  static constexpr NodeId kLeftCorner = -1;  // node of the frames of left recursion
  static constexpr uint32_t kEnded = 1u << 31;

  struct Entry {
    std::unique_ptr<Frame> frame;
    std::unique_ptr<Row> row;
    bool expanded = false;
    std::vector<Leaf> leaves;
  };
  struct Expansion;

  FrameId frame(NodeId node, uint32_t data);
  FrameId left_corner(NodeId goal, NodeId done);
  void describe(Frame& f);
  void describe(Frame& f, const RegularNode& node);
  void describe(Frame& f, const CountedNode& node);
  void describe(Frame& f, const SpecialNode& node);
  void describe(Frame& f, const SequenceNode& node);
  void describe(Frame& f, const ChoiceNode& node);
  void describe(Frame& f, const RepeatNode& node);
  void describe(Frame& f, const Members& node);
  void describe(Frame& f, const FreeTextNode& node);
  void describe(Frame& f, const DeclaredNode& node);
  template <class FrameOf>
  void translate(const SubsetAutomaton::Row& states, Row& row, FrameOf frame_of);
  void fill_row(NodeId node, uint32_t data, Row& row);

  // A state of the language's automaton, and how many units have ended.
  struct Counted {
    uint32_t state = 0, count = 0;
  };
  Counted counted(uint32_t data) const { return {counts_[data][0], counts_[data][1]}; }
  uint32_t number_of(const Counted& position);
  void fill_row(NodeId node, const CountedNode& counted, uint32_t data, Row& row);
  SubsetAutomaton& automaton(NodeId node, const Automaton& language);
  MemberPositions& members(NodeId node, const Members& m);
  const EndFinder& finder(NodeId node, const FreeTextNode& text);

  void find_left_recursion();
  std::span<const FrameId> left_frames(NodeId node);
  struct LeftEdge {
    Place rest;  // what follows a text of the node in a text of `into`
    NodeId into = 0;
  };
  const std::vector<LeftEdge>& left_edges(NodeId done);
  bool left_corner_nullable(NodeId goal, NodeId done);
  bool nullable(const Place& place) { return place.finished || (*this)[at(place)].nullable; }
  uint32_t push(uint32_t below, FrameId top);
  void expand_left_corner(const Frame& f, uint32_t below, Expansion& e);
  void expand_call(const Call& call, uint32_t below, Expansion& e);
  void enter_component(NodeId goal, uint32_t below, Expansion& e);

  const std::shared_ptr<const NodeGraph> graph_;
  std::vector<Entry> frames_;
  std::unordered_map<uint64_t, FrameId> ids_;
  std::vector<Chain> chains_{1};
  std::unordered_map<uint64_t, uint32_t> chain_ids_;
  std::unordered_map<NodeId, std::shared_ptr<SubsetAutomaton>> automata_;
  std::unordered_map<const void*, std::shared_ptr<SubsetAutomaton>> by_language_;
  std::unordered_map<NodeId, std::unique_ptr<MemberPositions>> members_;
  std::unordered_map<NodeId, std::unique_ptr<EndFinder>> finders_;
  std::vector<int> component_;  // of left recursion, by node; -1: none
  std::vector<std::vector<NodeId>> components_;
  std::unordered_map<NodeId, std::vector<FrameId>> left_frames_;
  std::unordered_map<int, std::unordered_map<NodeId, std::vector<LeftEdge>>> left_edges_;  // by component
  Interner corners_, counts_;
  bool has_counters_ = false;
  size_t bytes_ = 0;
};

}  // namespace sluice::grammar
