#include "grammar/automata/fragments.h"

#include <algorithm>
#include <utility>

namespace sluice::grammar {
namespace {

using Edge = Automaton::Edge;

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), from.begin(), from.end());
  }
}

}  // namespace

Fragments::Fragments(Budget& budget) : maker_(budget) { maker_.add_state(); }

Fragment Fragments::begin() const {
  Fragment fragment;
  fragment.state = maker_.states();
  fragment.transition = maker_.transitions().size();
  return fragment;
}

void Fragments::end(Fragment& fragment) const {
  fragment.states = maker_.states() - fragment.state;
  fragment.transitions = maker_.transitions().size() - fragment.transition;
}

Fragment Fragments::none() const { return begin(); }

Fragment Fragments::empty_text() const {
  Fragment fragment = begin();
  fragment.nullable = true;
  return fragment;
}

Fragment Fragments::bytes(uint8_t first, uint8_t last) {
  Fragment fragment = begin();
  const int32_t state = maker_.add_state();
  fragment.first = {{first, last, state}};
  fragment.last = {state};
  end(fragment);
  return fragment;
}

Fragment Fragments::literal(std::string_view bytes) {
  if (bytes.empty()) return empty_text();
  Fragment fragment = begin();
  const int32_t first = maker_.add_states(static_cast<int32_t>(bytes.size()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const int32_t state = first + static_cast<int32_t>(i);
    if (i == 0) {
      fragment.first = {{byte, byte, state}};
    } else {
      maker_.add_edge(state - 1, {byte, byte, state});
    }
  }
  fragment.last = {first + static_cast<int32_t>(bytes.size()) - 1};
  end(fragment);
  return fragment;
}

Fragment Fragments::import(const Automaton& automaton) {
  Fragment fragment = begin();
  const int32_t offset = maker_.add_states(automaton.states());
  for (int32_t s = 0; s < automaton.states(); ++s) {
    for (Edge edge : automaton.edges(s)) {
      edge.to += offset;
      maker_.add_edge(offset + s, edge);
      if (s == 0) fragment.first.push_back(edge);
    }
    if (automaton.accepts(s)) fragment.last.push_back(offset + s);
  }
  fragment.nullable = automaton.accepts(0);
  end(fragment);
  return fragment;
}

Fragment Fragments::copy(const Fragment& fragment) {
  Fragment made = begin();
  made.nullable = fragment.nullable;
  made.loops = fragment.loops;
  maker_.budget().step(static_cast<int64_t>(fragment.first.size() + fragment.last.size()));
  const int32_t offset = maker_.add_states(fragment.states) - fragment.state;
  for (size_t i = 0; i < fragment.transitions; ++i) {
    Transition t = maker_.transitions()[fragment.transition + i];
    t.edge.to += offset;
    maker_.add_edge(t.from + offset, t.edge);
  }
  made.first.reserve(fragment.first.size());
  for (const Edge& edge : fragment.first) made.first.push_back({edge.first, edge.last, edge.to + offset});
  made.last.reserve(fragment.last.size());
  for (const int32_t state : fragment.last) made.last.push_back(state + offset);
  end(made);
  return made;
}

void Fragments::connect(const std::vector<int32_t>& last, const std::vector<Edge>& first) {
  for (const int32_t state : last) {
    for (const Edge& edge : first) maker_.add_edge(state, edge);
  }
}

Fragment Fragments::concatenate(Fragment a, Fragment b) {
  connect(a.last, b.first);
  Fragment made = std::move(a);
  if (made.nullable) append(made.first, std::move(b.first));
  if (b.nullable) {
    append(made.last, std::move(b.last));
  } else {
    made.last = std::move(b.last);
  }
  made.nullable = made.nullable && b.nullable;
  made.loops = false;
  maker_.budget().step(1 + static_cast<int64_t>(made.last.size()));
  end(made);
  return made;
}

Fragment Fragments::unite(Fragment a, Fragment b) {
  Fragment made = std::move(a);
  append(made.first, std::move(b.first));
  append(made.last, std::move(b.last));
  made.nullable = made.nullable || b.nullable;
  made.loops = false;
  end(made);
  return made;
}

Fragment Fragments::repeat(Fragment a, int least, int most) {
  if (most == 0 || (a.first.empty() && (a.nullable || least == 0))) {
    Fragment made = empty_text();
    made.state = a.state;  // its states are useless, but stay where they are
    made.transition = a.transition;
    end(made);
    return made;
  }
  // The empty text may stand for any of the copies, so that the first ones need not be skipped one by one.
  if (std::exchange(a.nullable, false)) least = 0;
  if (most < 0 && a.loops && least <= 1) {
    a.nullable = least == 0;
    return a;
  }
  const Fragment pattern = a;
  const int copies = most < 0 ? std::max(least, 1) : most;
  Fragment made = std::move(a);
  std::vector<int32_t> ends = least <= 1 ? made.last : std::vector<int32_t>();
  std::vector<Edge> entry = pattern.first;  // of the latest copy
  std::vector<int32_t> exit = std::move(made.last);
  for (int i = 2; i <= copies; ++i) {
    Fragment next = copy(pattern);
    connect(exit, next.first);
    entry = std::move(next.first);
    exit = std::move(next.last);
    if (i >= least) ends.insert(ends.end(), exit.begin(), exit.end());
  }
  if (most < 0) connect(exit, entry);
  made.last = std::move(ends);
  made.nullable = least == 0;
  made.loops = most < 0 && copies == 1;
  end(made);
  return made;
}

Automaton Fragments::finish(const Fragment& whole) {
  for (const Edge& edge : whole.first) maker_.add_edge(0, edge);
  for (const int32_t state : whole.last) maker_.accept(state);
  if (whole.nullable) maker_.accept(0);
  return maker_.finish();
}

}  // namespace sluice::grammar
