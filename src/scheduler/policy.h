// In which order sequences are served. A policy is one file in scheduler/policies/ that registers itself by name.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <string_view>

#include "base/registry.h"
#include "scheduler/sequence.h"

namespace sluice {

struct PolicyOptions {
  int max_overtaken = 0;  // admissions that may pass a waiting sequence
};

// Keeps the waiting sequences, which the scheduler owns, and chooses the next one to admit. The rank of a sequence
// orders the running ones: lower is scheduled first and preempted last.
class Policy {
 public:
  virtual ~Policy() = default;
  // Rank::priority of a new request's sequences; equal ones rank by arrival.
  virtual int64_t priority(const Request& request) const = 0;
  // The sequence begins to wait. One whose request was admitted before was preempted.
  virtual void push(Sequence& sequence) = 0;
  // A waiting sequence is admitted.
  virtual void admit(Sequence& sequence) = 0;
  // A waiting sequence ends.
  virtual void erase(Sequence& sequence) = 0;
  // The next sequence to admit, or null when none waits. No other one may pass it. May change ranks of waiting
  // sequences.
  virtual Sequence* head() = 0;
  virtual size_t size() const = 0;  // waiting sequences
};

struct PolicyInfo {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const PolicyOptions& options);
};

// Throws Error(kInvalidRequest), which lists all names, when there is no policy of that name.
const PolicyInfo& find_policy(std::string_view name);

struct ByRank {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->rank < b->rank; }
};
using RankedSequences = std::set<Sequence*, ByRank>;

}  // namespace sluice
