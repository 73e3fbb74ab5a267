// Boolean operations. Intersections are products of two automata. Differences are products of an automaton and the
// subsets of another.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "grammar/automata/maker.h"
#include "grammar/subset_automaton.h"

namespace sluice::grammar {
namespace {

// The states of a product, by the states of its factors. New ones are put on a list.
template <class Key>
class Product {
 public:
  explicit Product(Budget& budget) : maker(budget) {}

  int32_t state(const Key& key) {
    const auto [place, fresh] = states_.try_emplace(key, 0);
    if (fresh) {
      place->second = maker.add_state();
      maker.budget().allocate(96);
      todo.emplace_back(key, place->second);
    }
    return place->second;
  }

  AutomatonMaker maker;
  std::vector<std::pair<Key, int32_t>> todo;

 private:
  std::map<Key, int32_t> states_;
};

}  // namespace

Automaton intersect(const Automaton& a, const Automaton& b, Budget& budget) {
  using Key = std::pair<int, int>;
  Product<Key> product(budget);
  product.state({0, 0});
  while (!product.todo.empty()) {
    const auto [key, from] = product.todo.back();
    product.todo.pop_back();
    if (a.accepts(key.first) && b.accepts(key.second)) product.maker.accept(from);
    for (const Automaton::Edge& x : a.edges(key.first)) {
      for (const Automaton::Edge& y : b.edges(key.second)) {
        if (y.first > x.last) break;  // sorted by first byte
        const uint8_t first = std::max(x.first, y.first), last = std::min(x.last, y.last);
        budget.step();
        if (first <= last) product.maker.add_edge(from, {first, last, product.state({x.to, y.to})});
      }
    }
  }
  return product.maker.finish();
}

Automaton subtract(const Automaton& a, const Automaton& b, Budget& budget) {
  SubsetAutomaton subsets({b});
  using Key = std::pair<int, uint32_t>;  // kDead: no text of b begins like this one
  Product<Key> product(budget);
  product.state({0, 0});
  static const SubsetAutomaton::Row kNowhere = [] {
    SubsetAutomaton::Row row;
    row.fill(SubsetAutomaton::kDead);
    return row;
  }();
  size_t charged = 0;
  while (!product.todo.empty()) {
    const auto [key, from] = product.todo.back();
    product.todo.pop_back();
    const bool dead = key.second == SubsetAutomaton::kDead;
    if (a.accepts(key.first) && (dead || subsets.accepted(key.second).empty())) product.maker.accept(from);
    const SubsetAutomaton::Row& row = dead ? kNowhere : subsets.row(key.second);
    if (subsets.bytes() > charged) {
      budget.allocate(static_cast<int64_t>(subsets.bytes() - charged));
      budget.step(static_cast<int64_t>(subsets.bytes() - charged) / 16);
      charged = subsets.bytes();
    }
    for (const Automaton::Edge& x : a.edges(key.first)) {
      for (int first = x.first; first <= x.last;) {
        int last = first;
        while (last < x.last && row[static_cast<size_t>(last) + 1] == row[static_cast<size_t>(first)]) ++last;
        const int32_t to = product.state({x.to, row[static_cast<size_t>(first)]});
        product.maker.add_edge(from, {static_cast<uint8_t>(first), static_cast<uint8_t>(last), to});
        budget.step();
        first = last + 1;
      }
    }
  }
  return product.maker.finish();
}

bool disjoint(const Automaton& a, const Automaton& b, Budget& budget) { return intersect(a, b, budget).empty(); }

bool includes(const Automaton& whole, const Automaton& part, Budget& budget) {
  return subtract(part, whole, budget).empty();
}

// The subsets of the automaton, and then classes of those that no text tells apart (Moore 1956).
Automaton determinize(const Automaton& a, Budget& budget) {
  SubsetAutomaton subsets({a});
  std::vector<const SubsetAutomaton::Row*> rows;
  uint32_t count = 1;
  for (uint32_t s = 0; s < count; ++s) {
    const size_t before = subsets.bytes();
    rows.push_back(&subsets.row(s));
    budget.step(256);
    budget.allocate(static_cast<int64_t>(subsets.bytes() - before));
    for (const uint32_t to : *rows.back()) {
      if (to != SubsetAutomaton::kDead) count = std::max(count, to + 1);
    }
  }
  std::vector<int32_t> classes(count);
  for (uint32_t s = 0; s < count; ++s) classes[s] = subsets.accepted(s).empty() ? 0 : 1;
  for (size_t known = 0;;) {
    std::map<std::vector<int32_t>, int32_t> names;
    std::vector<int32_t> next(count);
    for (uint32_t s = 0; s < count; ++s) {
      budget.step(256);
      std::vector<int32_t> name = {classes[s]};
      for (size_t byte = 0; byte < 256; ++byte) {
        const uint32_t to = (*rows[s])[byte];
        const int32_t c = to == SubsetAutomaton::kDead ? -1 : classes[to];
        // Runs of equal bytes are noted once.
        if (byte > 0 && name.back() == c) continue;
        name.push_back(static_cast<int32_t>(byte));
        name.push_back(c);
      }
      next[s] = names.try_emplace(std::move(name), static_cast<int32_t>(names.size())).first->second;
    }
    classes = std::move(next);
    if (names.size() == known) break;
    known = names.size();
  }
  // Class 0 is the start's.
  AutomatonMaker maker(budget);
  const int32_t last_class = *std::ranges::max_element(classes);
  maker.add_states(last_class + 1);
  std::vector<bool> done(static_cast<size_t>(last_class) + 1);
  for (uint32_t s = 0; s < count; ++s) {
    const int32_t from = classes[s];
    if (done[static_cast<size_t>(from)]) continue;
    done[static_cast<size_t>(from)] = true;
    if (!subsets.accepted(s).empty()) maker.accept(from);
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t to = (*rows[s])[static_cast<size_t>(byte)];
      if (to == SubsetAutomaton::kDead) continue;
      maker.add_edge(from, {static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), classes[to]});
    }
  }
  return maker.finish();
}

}  // namespace sluice::grammar
