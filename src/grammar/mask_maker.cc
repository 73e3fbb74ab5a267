#include "grammar/mask_maker.h"

#include <algorithm>
#include <bit>

namespace sluice::grammar {
namespace {

constexpr int kNoRun = -1;  // see MaskMaker::plain_run()

// Bytes of UTF-8 characters (RFC 3629, section 4): first byte, ranges of the second one, and bytes that follow.
struct Lead {
  uint8_t first, last;  // of the first byte
  uint8_t second_first, second_last;
  int more;  // bytes after the second one
};
constexpr Lead kLeads[] = {{0xc2, 0xdf, 0x80, 0xbf, 0}, {0xe0, 0xe0, 0xa0, 0xbf, 1}, {0xe1, 0xec, 0x80, 0xbf, 1},
                           {0xed, 0xed, 0x80, 0x9f, 1}, {0xee, 0xef, 0x80, 0xbf, 1}, {0xf0, 0xf0, 0x90, 0xbf, 2},
                           {0xf1, 0xf3, 0x80, 0xbf, 2}, {0xf4, 0xf4, 0x80, 0x8f, 2}};

// The set after any byte of a range, or kDead if that depends on the byte.
StackSet after_range(const Recognizer::Row& row, int first, int last) {
  for (int byte = first + 1; byte <= last; ++byte) {
    if (row[static_cast<size_t>(byte)] != row[static_cast<size_t>(first)]) return Recognizer::kDead;
  }
  return row[static_cast<size_t>(first)];
}

// Whether no plain character may come.
bool no_plain(const Recognizer::Row& row) {
  for (size_t byte = 0x20; byte < 0xf5; ++byte) {
    if (byte != '"' && byte != '\\' && row[byte] != Recognizer::kDead) return false;
  }
  return true;
}

}  // namespace

void MaskMaker::clear() {
  kept_.clear();
  plain_.clear();
  bytes_ = 0;
}

void MaskMaker::fill(Recognizer& recognizer, StackSet set, std::span<uint32_t> words) {
  const Vocabulary::Impl& v = vocabulary_->impl();
  set = recognizer.representative(set, static_cast<int>(v.all.depth()));
  const auto found = kept_.find(set);
  if (found == kept_.end()) {
    make(recognizer, set, words);
    return keep(set, words);
  }
  const Kept& kept = found->second;
  if (!kept.sparse) {
    std::copy(kept.words.begin(), kept.words.end(), words.begin());
    return;
  }
  std::fill(words.begin(), words.end(), 0);
  for (const uint32_t token : kept.words) allow(words, static_cast<TokenId>(token));
}

void MaskMaker::keep(StackSet set, std::span<const uint32_t> words) {
  if (bytes_ > kMostBytes) {
    kept_.clear();
    bytes_ = 0;
  }
  Kept kept;
  size_t tokens = 0;
  for (const uint32_t word : words) tokens += static_cast<size_t>(std::popcount(word));
  kept.sparse = tokens < words.size();
  if (kept.sparse) {
    for (uint32_t w = 0; w < words.size(); ++w) {
      for (uint32_t bits = words[w]; bits != 0; bits &= bits - 1) {
        kept.words.push_back(32 * w + static_cast<uint32_t>(std::countr_zero(bits)));
      }
    }
  } else {
    kept.words.assign(words.begin(), words.end());
  }
  bytes_ += kept.words.capacity() * sizeof(uint32_t) + 64;
  kept_.emplace(set, std::move(kept));
}

void MaskMaker::make(Recognizer& recognizer, StackSet set, std::span<uint32_t> words) {
  const Vocabulary::Impl& v = vocabulary_->impl();
  const int run = plain_run(recognizer, set);
  if (run == kNoRun) {
    if (fill_by_first(recognizer, set, words)) {
      walk(recognizer, set, v.others, words);
    } else {
      std::fill(words.begin(), words.end(), 0);
      walk(recognizer, set, v.all, words);
    }
  } else {
    const Mask& plain = v.plain[static_cast<size_t>(run)];
    std::copy(plain.begin(), plain.end(), words.begin());
    walk(recognizer, set, v.others, words);
  }
  for (const Recognizer::Special& special : recognizer.specials(set)) {
    if (special.token >= 0 && special.token < v.options.width) allow(words, special.token);
  }
  if (!recognizer.complete(set)) return;
  for (const TokenId token : v.options.end_tokens) {
    if (token >= 0 && token < v.options.width) allow(words, token);
  }
}

// Whether any plain text may come after a plain character that begins with the byte.
bool MaskMaker::begins_any_text(Recognizer& recognizer, const Recognizer::Row& row, uint8_t byte) {
  StackSet s = row[byte];
  for (const Lead& lead : kLeads) {
    if (byte < lead.first || byte > lead.last || s == Recognizer::kDead) continue;
    s = after_range(recognizer.row(s), lead.second_first, lead.second_last);
    for (int i = 0; i < lead.more && s != Recognizer::kDead; ++i) s = after_range(recognizer.row(s), 0x80, 0xbf);
  }
  if (s == Recognizer::kDead) return false;
  const int longest = static_cast<int>(vocabulary_->impl().all.depth());
  s = recognizer.representative(s, longest);
  const StackSet after = after_plain(recognizer, s);
  return after != Recognizer::kDead && recognizer.representative(after, longest) == s;
}

// Allows the plain tokens where most first characters lead to text without bounds, as in the key of an object that may
// have members with any name. The others are walked. Returns false, and leaves the words alone, in other states.
bool MaskMaker::fill_by_first(Recognizer& recognizer, StackSet set, std::span<uint32_t> words) {
  const Vocabulary::Impl& v = vocabulary_->impl();
  const Recognizer::Row& row = recognizer.row(set);
  const std::span<const Trie::Node> nodes = v.letters.nodes();
  std::vector<size_t> exceptions;
  size_t regular = 0;
  for (size_t i = 0; i < nodes.size(); i = nodes[i].end) {
    if (begins_any_text(recognizer, row, nodes[i].byte)) {
      ++regular;
    } else {
      exceptions.push_back(i);
    }
  }
  if (regular <= exceptions.size()) return false;
  const Mask& plain = v.plain.back();
  std::copy(plain.begin(), plain.end(), words.begin());
  for (const size_t i : exceptions) {
    const Mask& mask = v.by_first[nodes[i].byte];
    for (size_t w = 0; w < words.size(); ++w) words[w] &= ~mask[w];
    walk(recognizer, set, v.letters, i, nodes[i].end, words);
  }
  return true;
}

void MaskMaker::walk(Recognizer& recognizer, StackSet set, const Trie& trie, size_t first, size_t last,
                     std::span<uint32_t> words) {
  path_.resize(trie.depth() + 1);
  path_[0] = &recognizer.row(set);
  const std::span<const Trie::Node> nodes = trie.nodes();
  for (size_t i = first; i < last;) {
    const Trie::Node& node = nodes[i];
    const StackSet to = (*path_[node.depth])[node.byte];
    if (to == Recognizer::kDead) {
      i = node.end;
      continue;
    }
    for (const TokenId token : trie.tokens(i)) allow(words, token);
    if (node.end > i + 1) path_[node.depth + 1u] = &recognizer.row(to);
    ++i;
  }
}

// If exactly the plain tokens of up to n characters are allowed among plain tokens: n, or the index of the mask of all
// plain tokens. Else kNoRun.
int MaskMaker::plain_run(Recognizer& recognizer, StackSet set) {
  const Vocabulary::Impl& v = vocabulary_->impl();
  const int longest = static_cast<int>(v.all.depth());
  for (int run = 0; run <= Vocabulary::Impl::kMostCounted; ++run) {
    StackSet after = after_plain(recognizer, set);
    if (after == Recognizer::kDead) return run > 0 && no_plain(recognizer.row(set)) ? run : kNoRun;
    after = recognizer.representative(after, longest);
    if (after == set) return Vocabulary::Impl::kMostCounted + 1;
    set = after;
  }
  return kNoRun;
}

// The set after one plain character, if it is the same whichever comes; else kDead.
StackSet MaskMaker::after_plain(Recognizer& recognizer, StackSet set) {
  const auto found = plain_.find(set);
  if (found != plain_.end()) return found->second;
  const Recognizer::Row& row = recognizer.row(set);
  StackSet after = after_range(row, 0x23, 0x5b);
  bool same =
      after != Recognizer::kDead && after_range(row, 0x20, 0x21) == after && after_range(row, 0x5d, 0x7f) == after;
  for (const Lead& lead : kLeads) {
    StackSet last = Recognizer::kDead;
    for (int byte = lead.first; same && byte <= lead.last; ++byte) {
      StackSet s = row[static_cast<size_t>(byte)];
      same = s != Recognizer::kDead;
      if (!same || s == last) continue;
      last = s;
      s = after_range(recognizer.row(s), lead.second_first, lead.second_last);
      for (int i = 0; i < lead.more && s != Recognizer::kDead; ++i) s = after_range(recognizer.row(s), 0x80, 0xbf);
      same = s == after;
    }
  }
  if (!same) after = Recognizer::kDead;
  plain_.emplace(set, after);
  return after;
}

}  // namespace sluice::grammar
