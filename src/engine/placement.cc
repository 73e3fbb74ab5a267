// Prefix first, then load.
#include "engine/placement.h"

#include <algorithm>

#include "base/check.h"
#include "base/sha256.h"

namespace sluice {
namespace {

constexpr int64_t kTableBytes = 32 << 20;  // 4 million tokens
constexpr size_t kTokensPerLoad = 1024;

std::string_view bytes_of(const void* data, size_t size) { return {static_cast<const char*>(data), size}; }

ChainHash cut(const Sha256& digest) {
  ChainHash hash;
  std::copy_n(digest.begin(), hash.size(), hash.begin());
  return hash;
}

}  // namespace

Placement::Placement(int replicas)
    : loads_(std::make_shared<std::vector<std::atomic<int64_t>>>(static_cast<size_t>(replicas))), table_(kTableBytes) {
  CHECK(replicas >= 1 && static_cast<size_t>(replicas) <= kMaxReplicas, "{} replicas", replicas);
}

std::vector<ChainHash> Placement::chain_of(std::span<const TokenId> prompt, std::string_view salt) {
  std::vector<ChainHash> chain;
  chain.reserve(prompt.size() / kBlock);
  ChainHash parent = cut(sha256(salt));
  for (; prompt.size() >= kBlock; prompt = prompt.subspan(kBlock)) {
    parent = cut(sha256({bytes_of(parent.data(), parent.size()), bytes_of(prompt.data(), kBlock * sizeof(TokenId))}));
    chain.push_back(parent);
  }
  return chain;
}

int64_t Placement::load_of(int choices, size_t prompt_tokens) {
  return choices + static_cast<int64_t>(prompt_tokens / kTokensPerLoad);
}

int Placement::choose(std::span<const ChainHash> chain, ReplicaMask allowed) {
  const size_t turn = turn_;
  const int least = least_of(allowed, turn);
  if (const PrefixTable::Match match = table_.find(chain, allowed); match.blocks > 0) {
    const int chosen = least_of(match.replicas, turn);
    if (load(chosen) <= most_load(load(least), kImbalance)) return chosen;
  }
  ++turn_;  // only now: repeated prompts between new ones must not decide where the new ones go
  return least;
}

int Placement::least_of(ReplicaMask allowed, size_t turn) const {
  const size_t best = least_loaded(loads_->size(), allowed, turn, [this](size_t i) { return (*loads_)[i].load(); });
  CHECK(best < loads_->size(), "none of {} replicas is allowed", loads_->size());
  return static_cast<int>(best);
}

std::shared_ptr<const void> Placement::enter(int replica, std::span<const ChainHash> chain, int64_t load) {
  table_.remember(chain, static_cast<size_t>(replica));
  std::atomic<int64_t>& sum = (*loads_)[static_cast<size_t>(replica)];
  sum += load;
  return {&sum, [loads = loads_, load](std::atomic<int64_t>* entered) { *entered -= load; }};
}

void Placement::forget_prefixes(int replica) { table_.forget(static_cast<size_t>(replica)); }

}  // namespace sluice
