#include "grammar/automata/maker.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace sluice::grammar {
namespace {

using Edge = Automaton::Edge;

// Transitions by one of their ends: those of state s are order[begin[s]] .. order[begin[s + 1] - 1].
struct Index {
  std::vector<int32_t> begin, order;
};

template <class End>
Index index_by(const std::vector<Transition>& transitions, size_t states, End end) {
  Index index{std::vector<int32_t>(states + 1), std::vector<int32_t>(transitions.size())};
  for (const Transition& t : transitions) ++index.begin[static_cast<size_t>(end(t)) + 1];
  for (size_t s = 0; s < states; ++s) index.begin[s + 1] += index.begin[s];
  std::vector<int32_t> next(index.begin.begin(), index.begin.end() - 1);
  for (size_t i = 0; i < transitions.size(); ++i) {
    index.order[static_cast<size_t>(next[static_cast<size_t>(end(transitions[i]))]++)] = static_cast<int32_t>(i);
  }
  return index;
}

// Marks what is reached from `todo`, which is marked already. `end` is the far end of a transition.
template <class End>
void reach(const std::vector<Transition>& transitions, const Index& index, std::vector<int32_t> todo,
           std::vector<uint8_t>& marked, End end) {
  while (!todo.empty()) {
    const auto state = static_cast<size_t>(todo.back());
    todo.pop_back();
    for (int32_t i = index.begin[state]; i < index.begin[state + 1]; ++i) {
      const int32_t far = end(transitions[static_cast<size_t>(index.order[static_cast<size_t>(i)])]);
      if (marked[static_cast<size_t>(far)]) continue;
      marked[static_cast<size_t>(far)] = 1;
      todo.push_back(far);
    }
  }
}

// Merges edges to the same state whose bytes overlap or touch, and sorts by bytes.
void normalize(std::vector<Edge>& edges) {
  if (edges.size() < 2) return;
  std::ranges::sort(edges, {}, [](const Edge& e) { return std::tuple(e.to, e.first, e.last); });
  size_t kept = 0;
  for (size_t i = 1; i < edges.size(); ++i) {
    Edge& before = edges[kept];
    if (edges[i].to == before.to && edges[i].first <= before.last + 1) {
      before.last = std::max(before.last, edges[i].last);
    } else {
      edges[++kept] = edges[i];
    }
  }
  edges.resize(kept + 1);
  std::ranges::sort(edges, {}, [](const Edge& e) { return std::tuple(e.first, e.last, e.to); });
}

}  // namespace

int32_t AutomatonMaker::add_states(int32_t count, bool accepting) {
  constexpr int64_t kBytes = 24;  // here and in finish()
  budget_.step(count);
  budget_.allocate(kBytes * count);
  allocated_ += kBytes * count;
  const int32_t first = states();
  accepting_.resize(accepting_.size() + static_cast<size_t>(count), accepting);
  return first;
}

void AutomatonMaker::pay() {
  // A vector that grows holds its old and its new elements; finish() makes two indices.
  constexpr int64_t kBytes = 2 * sizeof(Transition) + 8;
  const auto more = static_cast<int64_t>(std::max<size_t>(64, paid_ / 2));
  budget_.step(more);
  budget_.allocate(kBytes * more);
  allocated_ += kBytes * more;
  paid_ += static_cast<size_t>(more);
  transitions_.reserve(paid_);
}

Automaton AutomatonMaker::finish() const {
  const size_t count = accepting_.size();
  const Index by_from = index_by(transitions_, count, [](const Transition& t) { return t.from; });
  std::vector<uint8_t> reached(count), useful(accepting_);
  reached[0] = 1;
  reach(transitions_, by_from, {0}, reached, [](const Transition& t) { return t.edge.to; });
  {
    const Index by_to = index_by(transitions_, count, [](const Transition& t) { return t.edge.to; });
    std::vector<int32_t> todo;
    for (size_t s = 0; s < count; ++s) {
      if (useful[s]) todo.push_back(static_cast<int32_t>(s));
    }
    reach(transitions_, by_to, std::move(todo), useful, [](const Transition& t) { return t.from; });
  }
  useful[0] = 1;
  std::vector<int32_t> names(count, -1);
  int32_t states = 0;
  for (size_t s = 0; s < count; ++s) {
    if (reached[s] && useful[s]) names[s] = states++;
  }
  auto data = std::make_shared<Automaton::Data>();
  data->begin.push_back(0);
  std::vector<Edge> edges;
  for (size_t s = 0; s < count; ++s) {
    if (names[s] < 0) continue;
    edges.clear();
    for (int32_t i = by_from.begin[s]; i < by_from.begin[s + 1]; ++i) {
      Edge edge = transitions_[static_cast<size_t>(by_from.order[static_cast<size_t>(i)])].edge;
      edge.to = names[static_cast<size_t>(edge.to)];
      if (edge.to >= 0) edges.push_back(edge);
    }
    normalize(edges);
    data->edges.insert(data->edges.end(), edges.begin(), edges.end());
    data->begin.push_back(static_cast<int32_t>(data->edges.size()));
    data->accepting.push_back(accepting_[s]);
  }
  data->edges.shrink_to_fit();
  budget_.step(states + static_cast<int64_t>(transitions_.size()));
  budget_.allocate(static_cast<int64_t>(data->edges.size() * sizeof(Edge)) + 5 * states);
  return Automaton(std::move(data));
}

}  // namespace sluice::grammar
