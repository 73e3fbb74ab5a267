// Loading what a session had in the prefix cache before its next turn asks for it. What is loaded is held by nobody: it
// is pinned for the session, like the blocks of a turn that has just ended.
#include <algorithm>
#include <span>
#include <utility>

#include "scheduler/scheduler.h"

namespace sluice {
namespace {

BlockExtras extras_of(const SessionText& text) {
  return {.digests = text.digests, .adapter = text.adapter, .adapter_from = text.adapter_from};
}

}  // namespace

void Scheduler::remember_session(const Sequence& sequence, Sessions::Time expires) {
  const auto tokens = static_cast<size_t>(sequence.memory.in_prefix_cache) * options_.block_size;
  if (!pools_.store.enabled() || tokens == 0) return;
  const Request& request = sequence.request->request;
  const BlockExtras extras = sequence.request->extras();
  session_texts_.keep(request.session, {.salt = request.cache_salt,
                                        .tokens = {sequence.tokens.begin(), sequence.tokens.begin() + tokens},
                                        .digests = std::string(extras.digests),
                                        .adapter = std::string(extras.adapter),
                                        .adapter_from = extras.adapter_from,
                                        .expires = expires,
                                        .ttl = request.session_ttl});
}

void Scheduler::prefetch_session(const std::string& session) {
  const SessionText* text = session_texts_.find(session);
  if (text == nullptr || text->expires <= options_.clock()) {
    ++prefetch_stats_.unknown;
    return;
  }
  for (const auto& [load, under_way] : prefetches_) {
    if (under_way.session == session) return;
  }
  Prefetch prefetch{.session = session, .text = *text};
  SequenceMemory& memory = prefetch.memory;
  const auto rows = static_cast<int>(text->tokens.size()) / options_.block_size;
  const BlockExtras extras = extras_of(*text);
  memory.extend_hashes(pools_.blocks, text->salt, text->tokens, rows, extras);
  std::vector<BlockId> hits = pools_.blocks.find(text->salt, memory.hashes, text->tokens,
                                                 extras.keys(memory.hashes.size(), options_.block_size));
  hits.resize(static_cast<size_t>(pools_.usable_rows(hits, memory.hashes)), kNoBlock);
  const auto usable = static_cast<int>(hits.size());
  if (usable == 0) {
    ++prefetch_stats_.unknown;
    return;
  }
  int missing = 0, idle_hits = 0;
  for (int group = 0; group < pools_.groups(); ++group) {
    const int first = std::min(pools_.first_kept(group, usable * options_.block_size), usable);
    for (const BlockId primary : std::span(hits).subspan(static_cast<size_t>(first))) {
      const BlockId block = pools_.cached(primary, group);
      missing += block == kNoBlock;
      idle_hits += block != kNoBlock && pools_.blocks.holders(block) == 0;
    }
  }
  if (missing > pools_.blocks.available() - idle_hits - promised_blocks()) {
    ++prefetch_stats_.no_room;
    return;
  }
  prefetch.text.tokens.resize(hits.size() * static_cast<size_t>(options_.block_size));
  memory.start(pools_, hits);
  const uint64_t load = memory.load(pools_);
  if (load != 0) {
    prefetches_.emplace(load, std::move(prefetch));
  } else {
    ++prefetch_stats_.present;
    end_prefetch(prefetch);
  }
}

void Scheduler::finish_prefetch(Prefetch prefetch, bool failed) {
  ++(failed ? prefetch_stats_.failed : prefetch_stats_.loaded);
  if (failed) return prefetch.memory.release(pools_);
  prefetch.memory.commit_to_cache(pools_, prefetch.text.salt, prefetch.text.tokens, extras_of(prefetch.text));
  end_prefetch(prefetch);
}

// Pins what is there, unless the session has ended meanwhile, or has had another turn.
void Scheduler::end_prefetch(Prefetch& prefetch) {
  const SessionText* text = session_texts_.find(prefetch.session);
  if (text != nullptr && text->expires == prefetch.text.expires) {
    prefetch.memory.keep_for(prefetch.session, options_.clock() + prefetch.text.ttl, pools_);
  }
  prefetch.memory.release(pools_);
}

}  // namespace sluice
