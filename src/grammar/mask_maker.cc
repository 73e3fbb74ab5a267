#include "grammar/mask_maker.h"

#include <algorithm>

namespace sluice::grammar {
namespace {

void forbid(std::span<uint32_t> words, TokenId token) {
  words[static_cast<size_t>(token) / 32] &= ~(1u << (static_cast<uint32_t>(token) % 32));
}

// Allows the plain tokens of at most so many characters.
void add_run(const TokenGroup& group, int characters, std::span<uint32_t> words) {
  const auto run = static_cast<size_t>(characters);
  const size_t end = run < group.ends.size() ? group.ends[run] : group.by_characters.size();
  for (size_t i = 0; i < end; ++i) allow(words, group.by_characters[i]);
}

// Ranges of the tokens of a trie, ascending; adjacent ones are one.
class Ranges {
 public:
  using Range = std::pair<uint32_t, uint32_t>;

  void add(Range range) {
    if (range.first == range.second) return;
    tokens_ += range.second - range.first;
    if (!ranges_.empty() && ranges_.back().second == range.first) {
      ranges_.back().second = range.second;
    } else {
      ranges_.push_back(range);
    }
  }
  size_t tokens() const { return tokens_; }
  // Appends their tokens, or all others.
  void list(std::span<const TokenId> all, bool others, std::vector<TokenId>& out) const {
    const auto append = [&](size_t first, size_t last) {
      out.insert(out.end(), all.begin() + static_cast<ptrdiff_t>(first), all.begin() + static_cast<ptrdiff_t>(last));
    };
    size_t before = 0;
    for (const auto& [first, last] : ranges_) {
      if (others) append(before, first);
      if (!others) append(first, last);
      before = last;
    }
    if (others) append(before, all.size());
  }

 private:
  std::vector<Range> ranges_;
  size_t tokens_ = 0;
};

}  // namespace

MaskMaker::MaskMaker(std::shared_ptr<const Vocabulary> vocabulary)
    : vocabulary_(std::move(vocabulary)),
      parts_{Part{vocabulary_->impl().groups[0], PlainText(vocabulary_->impl().groups[0].longest)},
             Part{vocabulary_->impl().groups[1], PlainText(vocabulary_->impl().groups[1].longest)}} {}

void MaskMaker::clear() {
  for (Part& part : parts_) {
    part.kept.clear();
    part.plain.clear();
  }
  bytes_ = 0;
}

size_t MaskMaker::bytes() const { return bytes_ + parts_[0].plain.bytes() + parts_[1].plain.bytes(); }

void MaskMaker::fill(Recognizer& recognizer, StackSet set, std::span<uint32_t> words) {
  // Making the second one does not forget the first one.
  const Allowed& near = allowed(recognizer, parts_[0], set);
  const Allowed& far = allowed(recognizer, parts_[1], set);
  const auto copy = [&](const Mask& mask) { std::copy(mask.begin(), mask.end(), words.begin()); };
  const auto unite = [&](const Mask& mask) {
    for (size_t w = 0; w < mask.size(); ++w) words[w] |= mask[w];
  };
  const bool all = near.run == PlainText::kAll && far.run == PlainText::kAll;
  if (all) {
    copy(vocabulary_->impl().all_plain);
  } else if (near.run == PlainText::kAll) {
    copy(parts_[0].group.all_plain);
  } else if (!near.mask.empty()) {
    copy(near.mask);
  } else {
    std::fill(words.begin(), words.end(), 0);
    add_run(parts_[0].group, near.run, words);
  }
  if (!all && far.run == PlainText::kAll) unite(parts_[1].group.all_plain);
  if (far.run != PlainText::kAll) add_run(parts_[1].group, far.run, words);
  unite(far.mask);
  for (const Allowed* a : {&near, &far}) {
    for (const TokenId token : a->added) allow(words, token);
    for (const TokenId token : a->removed) forbid(words, token);
  }
  add_ends(recognizer, set, words);
}

void MaskMaker::add_ends(Recognizer& recognizer, StackSet set, std::span<uint32_t> words) {
  const Vocabulary::Options& options = vocabulary_->impl().options;
  for (const Recognizer::Special& special : recognizer.specials(set)) {
    if (special.token >= 0 && special.token < options.width) allow(words, special.token);
  }
  if (!recognizer.complete(set)) return;
  for (const TokenId token : options.end_tokens) {
    if (token >= 0 && token < options.width) allow(words, token);
  }
}

const MaskMaker::Allowed& MaskMaker::allowed(Recognizer& recognizer, Part& part, StackSet set) {
  set = recognizer.representative(set, part.group.longest);
  const auto found = part.kept.find(set);
  if (found != part.kept.end()) return found->second;
  Allowed made = make(recognizer, part, set);
  if (bytes_ > kMostBytes && &part == &parts_[0]) {
    for (Part& p : parts_) p.kept.clear();
    bytes_ = 0;
  }
  bytes_ += (made.added.capacity() + made.removed.capacity()) * sizeof(TokenId) + 96;
  return part.kept.emplace(set, std::move(made)).first->second;
}

MaskMaker::Allowed MaskMaker::make(Recognizer& recognizer, Part& part, StackSet set) {
  Allowed out{.run = part.plain.free(recognizer, set) ? PlainText::kAll : part.plain.run(recognizer, set)};
  if (out.run == PlainText::kMixed) walk_plain(recognizer, part, set, out);
  walk_others(recognizer, part.group.others, set, out);
  const size_t words = vocabulary_->impl().words();
  if (out.added.size() + out.removed.size() <= words) {
    out.added.shrink_to_fit();
    return out;
  }
  Allowed dense{.mask = Mask(words)};
  if (out.run == PlainText::kAll) {
    dense.mask = part.group.all_plain;
  } else {
    add_run(part.group, out.run, dense.mask);
  }
  for (const TokenId token : out.added) allow(dense.mask, token);
  for (const TokenId token : out.removed) forbid(dense.mask, token);
  return dense;
}

// Finds the plain tokens. Subtrees of which all tokens are known to be allowed are not walked.
void MaskMaker::walk_plain(Recognizer& recognizer, Part& part, StackSet set, Allowed& out) {
  const Trie& trie = part.group.plain;
  const std::span<const Trie::Node> nodes = trie.nodes();
  path_.resize(trie.depth() + 1);
  path_[0] = &recognizer.row(set);
  Ranges ranges;
  for (size_t i = 0; i < nodes.size();) {
    const Trie::Node& node = nodes[i];
    const StackSet to = (*path_[node.depth])[node.byte];
    if (to == Recognizer::kDead) {
      i = node.end;
    } else if (node.end > i + 1 && all_follow(recognizer, part, i, to)) {
      ranges.add(trie.range(i));
      i = node.end;
    } else {
      ranges.add({node.tokens, node.tokens + static_cast<uint32_t>(trie.tokens(i).size())});
      if (node.end > i + 1) path_[node.depth + 1u] = &recognizer.row(to);
      ++i;
    }
  }
  const bool most = 2 * ranges.tokens() > trie.tokens().size();
  out.run = most ? PlainText::kAll : 0;
  ranges.list(trie.tokens(), most, most ? out.removed : out.added);
}

// Whether `set`, the one after the node, allows all tokens below the node, as far as that is known.
bool MaskMaker::all_follow(Recognizer& recognizer, Part& part, size_t node, StackSet set) {
  const Trie::Node& n = part.group.plain.nodes()[node];
  if (n.byte >= 0xc0) return part.plain.free_after(recognizer, set, n.byte);
  // Within a character, what follows is not whole characters.
  const uint8_t next = part.group.plain.nodes()[node + 1].byte;
  if (next >= 0x80 && next < 0xc0) return false;
  return part.plain.free(recognizer, set) ||
         part.plain.free_of(recognizer, set, part.group.plain.bytes_below(node), n.height);
}

void MaskMaker::walk_others(Recognizer& recognizer, const Trie& trie, StackSet set, Allowed& out) {
  const std::span<const Trie::Node> nodes = trie.nodes();
  path_.resize(trie.depth() + 1);
  path_[0] = &recognizer.row(set);
  for (size_t i = 0; i < nodes.size();) {
    const Trie::Node& node = nodes[i];
    const StackSet to = (*path_[node.depth])[node.byte];
    if (to == Recognizer::kDead) {
      i = node.end;
      continue;
    }
    for (const TokenId token : trie.tokens(i)) out.added.push_back(token);
    if (node.end > i + 1) path_[node.depth + 1u] = &recognizer.row(to);
    ++i;
  }
}

}  // namespace sluice::grammar
