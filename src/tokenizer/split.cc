// Applies the behaviors of splitting pre-tokenizers.
#include "tokenizer/split.h"

#include <array>

namespace sluice::tokenizer {
namespace {

void append(Span span, std::vector<Span>& out) {
  if (span.begin < span.end) out.push_back(span);
}

// Joins a stretch to the previous one where joins(stretch, previous) returns true.
template <class F>
void append_joined(const std::vector<Stretch>& stretches, std::vector<Span>& out, F&& joins) {
  if (stretches.empty()) return;
  Span current = stretches.front().span;
  for (size_t i = 1; i < stretches.size(); ++i) {
    if (joins(stretches[i], stretches[i - 1])) {
      current.end = stretches[i].span.end;
    } else {
      append(current, out);
      current = stretches[i].span;
    }
  }
  append(current, out);
}

}  // namespace

SplitBehavior load_split_behavior(const Field& field) {
  struct Name {
    std::string_view name;
    SplitBehavior behavior;
  };
  constexpr auto kNames = std::to_array<Name>({{"Removed", SplitBehavior::kRemoved},
                                               {"Isolated", SplitBehavior::kIsolated},
                                               {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                               {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                               {"Contiguous", SplitBehavior::kContiguous}});
  for (const Name& known : kNames) {
    if (known.name == field.string()) return known.behavior;
  }
  field.unsupported(fmt::format("unknown behavior \"{}\"", field.string()));
}

void append_split(const std::vector<Stretch>& stretches, SplitBehavior behavior, std::vector<Span>& out) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      for (const Stretch& s : stretches) {
        if (!s.delimiter) append(s.span, out);
      }
      return;
    case SplitBehavior::kIsolated:
      for (const Stretch& s : stretches) append(s.span, out);
      return;
    case SplitBehavior::kMergedWithPrevious:
      return append_joined(stretches, out,
                           [](const Stretch& s, const Stretch& before) { return s.delimiter && !before.delimiter; });
    case SplitBehavior::kMergedWithNext:
      return append_joined(stretches, out,
                           [](const Stretch& s, const Stretch& before) { return before.delimiter && !s.delimiter; });
    case SplitBehavior::kContiguous:
      return append_joined(stretches, out,
                           [](const Stretch& s, const Stretch& before) { return s.delimiter == before.delimiter; });
  }
}

}  // namespace sluice::tokenizer
