// A random grammar over a, b and c, made twice: for the builder, and as the sets of short texts of its nodes.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "grammar/builder.h"
#include "grammar/counted_text.h"

namespace sluice::grammar {

using Texts = std::set<std::string>;

// All words over a, b and c, the shorter ones first.
inline std::vector<std::string> all_words(size_t longest) {
  std::vector<std::string> out = {""};
  for (size_t i = 0; i < out.size() && out[i].size() < longest; ++i) {
    const std::string word = out[i];
    for (const char c : {'a', 'b', 'c'}) out.push_back(word + c);
  }
  return out;
}

class RandomGrammar {
 public:
  static constexpr size_t kLongest = 7;  // texts() is complete up to this length

  explicit RandomGrammar(uint32_t seed) : random_(seed), builder_(budget_) {
    const int declared = pick(1, 3);
    for (int i = 0; i < declared; ++i) add({.kind = Kind::kDeclared}, builder_.declare("rule"));
    for (int nodes = pick(3, 9); nodes > 0; --nodes) add_random();
    for (int i = 0; i < declared; ++i) {
      const int body = pick(declared, static_cast<int>(plain_.size()) - 1);
      plain_[static_cast<size_t>(i)].parts = {body};
      builder_.define(id(i), id(body));
    }
    solve();
  }

  const Texts& texts() const { return texts_[0]; }
  // Null if the grammar has no text.
  std::shared_ptr<const Grammar> finish() {
    try {
      return builder_.finish(ids_[0]);
    } catch (const GrammarError&) {
      return nullptr;
    }
  }

 private:
  enum class Kind { kDeclared, kLiteral, kSequence, kChoice, kRepeat, kSeparated, kCounted, kMembers };
  struct Class {  // members of one kind
    Texts keys{};
    int value = 0;  // behind another mark
    bool once = false, required = false;
  };
  struct Plain {
    Kind kind;
    std::vector<int> parts{};
    std::string text{};
    int least = 0, most = 0;
    Texts texts{};                 // those of kCounted, or the mark that is colon and separator of kMembers
    std::vector<Class> classes{};  // those of kMembers
  };

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  int any() { return pick(0, static_cast<int>(plain_.size()) - 1); }
  NodeId id(int i) const { return ids_[static_cast<size_t>(i)]; }
  void add(Plain plain, NodeId node) {
    plain_.push_back(std::move(plain));
    ids_.push_back(node);
  }

  void add_random() {
    const int a = any(), b = any(), c = any(), least = pick(0, 2), most = pick(0, 1) == 0 ? -1 : least + pick(0, 2);
    switch (pick(0, 7)) {
      case 0:
      case 1: {
        std::string text;
        for (int n = pick(0, 2); n > 0; --n) text.push_back(static_cast<char>('a' + pick(0, 2)));
        return add({.kind = Kind::kLiteral, .text = text}, builder_.literal(text));
      }
      case 2: {
        const NodeId nodes[] = {id(a), id(b)};
        return add({.kind = Kind::kSequence, .parts = {a, b}}, builder_.sequence(nodes));
      }
      case 3: {
        const NodeId nodes[] = {id(a), id(b), id(c)};
        return add({.kind = Kind::kChoice, .parts = {a, b, c}}, builder_.choice(nodes));
      }
      case 4:
        return add({.kind = Kind::kRepeat, .parts = {a}, .least = least, .most = most},
                   builder_.repeat(id(a), least, most));
      case 5:
        return add_counted();
      case 6:
        return add_members();
      default:
        return add({.kind = Kind::kSeparated, .parts = {a, b}, .least = least, .most = most},
                   builder_.separated(id(a), id(b), least, most));
    }
  }

  std::string letters(int most) {
    std::string text;
    for (int n = pick(1, most); n > 0; --n) text.push_back(static_cast<char>('a' + pick(0, 2)));
    return text;
  }
  // Repetitions of words around others: most of them have lengths that they cannot have.
  Automaton language() {
    // One statement a word: the order in which operands are evaluated is the compiler's choice.
    const std::string before = letters(2), one = letters(3), other = letters(2), behind = letters(3);
    const std::string pattern = before + "?(?:" + one + "|" + other + ")*(?:" + behind + ")?";
    return parse_regex(pattern, RegexSyntax::kEcma, true, budget_);
  }
  static Texts texts_of(const Automaton& language, size_t most) {
    static const std::vector<std::string> words = all_words(kLongest);
    Texts out;
    for (const std::string& word : words) {
      if (word.size() <= most && language.matches(word)) out.insert(word);
    }
    return out;
  }

  void add_counted() {
    const Automaton own = language();
    const int most = pick(0, static_cast<int>(kLongest) + 2);
    add({.kind = Kind::kCounted, .texts = texts_of(own, static_cast<size_t>(most))},
        builder_.counted(counted_json_string(own, most, budget_)));
  }

  // Classes may share keys. Values, colons and separators may not be empty.
  void add_members() {
    Plain plain{.kind = Kind::kMembers, .texts = {letters(1)}};
    const std::string& mark = *plain.texts.begin();
    Members members{.colon = builder_.literal(mark), .separator = builder_.literal(mark)};
    for (int n = pick(1, 3); n > 0; --n) {
      const Texts keys = {letters(1), letters(2)};
      std::vector<Automaton> words;
      for (const std::string& key : keys) words.push_back(Automaton::literal(key));
      const int value = any();
      const NodeId parts[] = {builder_.literal(mark), id(value)};
      plain.classes.push_back({.keys = keys, .value = value, .once = pick(0, 1) == 0, .required = pick(0, 2) == 0});
      members.classes.push_back({.key = unite(words, budget_),
                                 .value = builder_.sequence(parts),
                                 .once = plain.classes.back().once,
                                 .required = plain.classes.back().required,
                                 .implies = {}});
    }
    add(std::move(plain), builder_.members(std::move(members)));
  }

  static Texts join(const Texts& a, const Texts& b) {
    Texts out;
    for (const std::string& x : a) {
      for (const std::string& y : b) {
        if (x.size() + y.size() <= kLongest) out.insert(x + y);
      }
    }
    return out;
  }
  static Texts repeat(const Texts& item, int least, int most) {
    Texts power = {""}, out;
    for (int n = 0; n <= (most < 0 ? least + static_cast<int>(kLongest) : most); ++n) {
      if (n >= least) out.insert(power.begin(), power.end());
      power = join(power, item);
    }
    return out;
  }

  // The texts of members, by the classes that they have.
  Texts members(const Plain& p) const {
    const auto texts = [&](int i) -> const Texts& { return texts_[static_cast<size_t>(i)]; };
    std::vector<Texts> member;
    unsigned required = 0;
    for (size_t c = 0; c < p.classes.size(); ++c) {
      const Texts marks = join(p.texts, p.texts);
      member.push_back(join(join(p.classes[c].keys, marks), texts(p.classes[c].value)));
      if (p.classes[c].required) required |= 1u << c;
    }
    std::map<unsigned, Texts> by_classes = {{0, {""}}};
    for (bool changed = true; changed;) {
      changed = false;
      const std::map<unsigned, Texts> before = by_classes;
      for (const auto& [classes, some] : before) {
        for (size_t c = 0; c < member.size(); ++c) {
          if (p.classes[c].once && (classes >> c & 1) != 0) continue;
          const Texts more = join(classes == 0 ? some : join(some, p.texts), member[c]);
          Texts& known = by_classes[classes | 1u << c];
          const size_t count = known.size();
          known.insert(more.begin(), more.end());
          changed = changed || known.size() != count;
        }
      }
    }
    Texts out;
    for (const auto& [classes, some] : by_classes) {
      if ((classes & required) == required) out.insert(some.begin(), some.end());
    }
    return out;
  }

  Texts value(const Plain& p) const {
    if (p.kind == Kind::kCounted) return p.texts;
    if (p.kind == Kind::kMembers) return members(p);
    const auto part = [&](size_t i) -> const Texts& { return texts_[static_cast<size_t>(p.parts[i])]; };
    if (p.kind == Kind::kDeclared) return part(0);
    if (p.kind == Kind::kLiteral) return {p.text};
    if (p.kind == Kind::kSequence) return join(part(0), part(1));
    if (p.kind == Kind::kRepeat) return repeat(part(0), p.least, p.most);
    if (p.kind == Kind::kChoice) {
      Texts out = part(0);
      out.insert(part(1).begin(), part(1).end());
      out.insert(part(2).begin(), part(2).end());
      return out;
    }
    if (p.most == 0) return {""};
    const Texts further = repeat(join(part(1), part(0)), std::max(p.least - 1, 0), p.most < 0 ? -1 : p.most - 1);
    Texts out = join(part(0), further);
    if (p.least == 0) out.insert("");
    return out;
  }

  void solve() {
    texts_.resize(plain_.size());
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < plain_.size(); ++i) {
        Texts next = value(plain_[i]);
        changed = changed || next.size() != texts_[i].size();
        texts_[i] = std::move(next);
      }
    }
  }

  std::mt19937 random_;
  Budget budget_{};
  Builder builder_;
  std::vector<Plain> plain_;
  std::vector<NodeId> ids_;
  std::vector<Texts> texts_;
};

}  // namespace sluice::grammar
