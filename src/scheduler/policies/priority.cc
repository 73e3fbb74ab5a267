// By the request's priority, then by arrival. A waiting sequence is passed by at most max_overtaken admissions. Then it
// ranks, to its end, before everything except earlier arrivals that waited as long.
#include <tuple>

#include "scheduler/policy.h"

namespace sluice {
namespace {

class ByPriority final : public Policy {
 public:
  explicit ByPriority(const PolicyOptions& options) : max_overtaken_(static_cast<uint64_t>(options.max_overtaken)) {}

  int64_t priority(const Request& request) const override { return request.priority; }

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
  uint64_t admissions_ = 0;
  RankedSequences waiting_;
  std::set<Sequence*, ByWait> overtakable_;  // the waiting sequences that are not promoted
};

const PolicyInfo by_priority{.name = "priority", .make = [](const PolicyOptions& options) -> std::unique_ptr<Policy> {
                               return std::make_unique<ByPriority>(options);
                             }};
const Registry<PolicyInfo> registered{by_priority};

}  // namespace
}  // namespace sluice
