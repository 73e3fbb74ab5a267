// The policy of an order by a number that each request has: the lowest is served first, equal ones by arrival. A
// waiting sequence is passed by at most max_overtaken admissions. Then it ranks, to its end, before everything except
// earlier arrivals that waited as long. A policy of this kind gives the number.
#pragma once

#include <tuple>

#include "scheduler/policy.h"

namespace sluice {

class RankedPolicy final : public Policy {
 public:
  using Number = int64_t (*)(const Request&);  // above Rank::kFirst
  RankedPolicy(const PolicyOptions& options, Number number)
      : max_overtaken_(static_cast<uint64_t>(options.max_overtaken)), number_(number) {}

  int64_t priority(const Request& request) const override { return number_(request); }

  void push(Sequence& sequence) override {
    sequence.queued_at = admissions_;
    insert(sequence);
  }
  void admit(Sequence& sequence) override {
    erase(sequence);
    ++admissions_;
  }
  void erase(Sequence& sequence) override {
    waiting_.erase(&sequence);
    overtakable_.erase(&sequence);
  }
  Sequence* head() override {
    promote_overtaken();
    return waiting_.empty() ? nullptr : *waiting_.begin();
  }
  size_t size() const override { return waiting_.size(); }

 private:
  struct ByWait {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return std::tie(a->queued_at, a->rank) < std::tie(b->queued_at, b->rank);
    }
  };

  void insert(Sequence& sequence) {
    waiting_.insert(&sequence);
    if (sequence.rank.priority != Rank::kFirst) overtakable_.insert(&sequence);
  }
  void promote_overtaken() {
    while (!overtakable_.empty()) {
      Sequence& sequence = **overtakable_.begin();
      if (admissions_ - sequence.queued_at < max_overtaken_) return;
      erase(sequence);
      sequence.rank.priority = Rank::kFirst;
      insert(sequence);
    }
  }

  const uint64_t max_overtaken_;
  const Number number_;
  uint64_t admissions_ = 0;
  RankedSequences waiting_;
  std::set<Sequence*, ByWait> overtakable_;  // the waiting sequences that are not promoted
};

}  // namespace sluice
