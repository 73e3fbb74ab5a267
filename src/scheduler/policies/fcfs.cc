// First come, first served, in turns among tenants: each admission goes to the next tenant that has waiting sequences,
// and there to the first in rank. A tenant that begins to wait takes the last turn. One whose sequence was preempted
// takes the next turn, so that no new request gets the memory before it.
#include <list>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "scheduler/policy.h"

namespace sluice {
namespace {

class Fcfs final : public Policy {
 public:
  int64_t priority(const Request&) const override { return 0; }

  void push(Sequence& sequence) override {
    const auto [entry, added] = turns_.try_emplace(tenant_of(sequence));
    if (added) entry->second = order_.insert(order_.end(), Tenant{.name = entry->first, .waiting = {}});
    const Turn turn = entry->second;
    turn->waiting.insert(&sequence);
    if (sequence.request->admitted) order_.splice(order_.begin(), order_, turn);
    ++size_;
  }

  void admit(Sequence& sequence) override {
    const Turn turn = turns_.at(tenant_of(sequence));
    order_.splice(order_.end(), order_, turn);
    erase(sequence);
  }

  void erase(Sequence& sequence) override {
    const Turn turn = turns_.at(tenant_of(sequence));
    const size_t erased = turn->waiting.erase(&sequence);
    CHECK(erased == 1, "a sequence that does not wait leaves the queue");
    --size_;
    if (!turn->waiting.empty()) return;
    turns_.erase(turn->name);
    order_.erase(turn);
  }

  Sequence* head() override { return order_.empty() ? nullptr : *order_.front().waiting.begin(); }
  size_t size() const override { return size_; }

 private:
  struct Tenant {
    std::string name;
    RankedSequences waiting;  // at least one
  };
  using Turn = std::list<Tenant>::iterator;

  static const std::string& tenant_of(const Sequence& sequence) { return sequence.request->request.tenant; }

  std::list<Tenant> order_;  // the first one has the next turn
  std::unordered_map<std::string, Turn> turns_;
  size_t size_ = 0;
};

const PolicyInfo fcfs{.name = "fcfs",
                      .make = [](const PolicyOptions&) -> std::unique_ptr<Policy> { return std::make_unique<Fcfs>(); }};
const Registry<PolicyInfo> registered_fcfs{fcfs};

}  // namespace
}  // namespace sluice
