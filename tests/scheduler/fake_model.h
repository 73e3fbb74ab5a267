// A model for scheduler tests whose whole state lives in the paged cache, as a real one's does: the slot of a token
// holds a hash of all tokens up to it, computed from what the cache holds for the token before. A wrong slot, block
// table, copy or reuse changes what follows. With state slots it is also recurrent: the slot holds the same hash, goes
// on from what it held, and must agree with the cache. With windows only blocks within them may be read. Every group of
// layers stores what the others could not use, so that blocks that got mixed up are found out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "scheduler/fake_constraint.h"
#include "scheduler/scheduler.h"

namespace sluice {

// Vectors that stand for these ids: the fake model knows no difference between an id and its vector.
inline void give_vectors(Request& request) {
  std::vector<float> values(request.prompt.begin(), request.prompt.end());
  request.prompt_vectors = std::make_shared<const PromptVectors>(1, std::move(values));
  std::ranges::fill(request.prompt, 0);
}

// The tokens of a sequence, with the ids that its vectors stand for.
inline std::vector<TokenId> known_ids(const Sequence& sequence) {
  std::vector<TokenId> ids = sequence.tokens;
  if (sequence.given == 0) return ids;
  const std::span<const float> values = sequence.request->request.prompt_vectors->values();
  std::ranges::transform(values, ids.begin(), [](float value) { return static_cast<TokenId>(value); });
  return ids;
}

inline uint64_t extend_state(uint64_t state, TokenId token) { return mix(state, static_cast<uint64_t>(token)); }

// The state after each token of a module that begins at `position`. It sees nothing else.
inline std::vector<uint64_t> module_states(std::span<const TokenId> tokens, int position) {
  uint64_t state = mix(4711, static_cast<uint64_t>(position));
  std::vector<uint64_t> states;
  for (const TokenId token : tokens) states.push_back(state = extend_state(state, token));
  return states;
}

// What a prompt with modules has in the cache before its own text, place after place, and the state that its own text
// begins with.
struct FakeModules {
  std::vector<uint64_t> places;
  uint64_t state = 0;
  int shift = 0;  // of positions
};
inline FakeModules fake_modules(const Request& request, int block_size) {
  FakeModules all;
  std::vector<uint64_t> tails;
  int first = 0, end = 0;
  for (const PromptModule& module : request.modules) {
    const auto tokens = std::span(request.prompt).subspan(first, module.tokens);
    const std::vector<uint64_t> states = module_states(tokens, module.position);
    const auto tail = states.begin() + module.tokens / block_size * block_size;
    all.places.insert(all.places.end(), states.begin(), tail);
    tails.insert(tails.end(), tail, states.end());
    all.state = mix(all.state, states.back());
    first += module.tokens;
    end = std::max(end, module.position + module.tokens);
  }
  all.places.insert(all.places.end(), tails.begin(), tails.end());
  all.shift = end - first;
  return all;
}

// What the fake sampler samples after a prefix with this state.
inline TokenId sample_token(uint64_t state, const SampleTask& task, int vocab) {
  if (task.constraint != nullptr) {
    const std::vector<TokenId> allowed = allowed_tokens(task, vocab);
    return allowed[mix(mix(state, task.seed), mix(task.choice, task.position)) % allowed.size()];
  }
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t bits = mix(mix(mix(state, task.seed), mix(task.choice, task.position)), attempt);
    const auto token = static_cast<TokenId>(bits % vocab);
    const bool masked =
        task.position < task.params->min_tokens && std::ranges::find(task.end_tokens, token) != task.end_tokens.end();
    if (!masked || attempt > 1000) return token;
  }
}

// The tokens after a prefix with this state, the likeliest first, with log-probabilities that add up to 1.
inline std::vector<TokenLogprob> ranked_tokens(uint64_t state, int vocab) {
  std::vector<TokenLogprob> tokens;
  double total = 0.0;
  for (TokenId token = 0; token < vocab; ++token) {
    const float logit = static_cast<float>(mix(state, static_cast<uint64_t>(token) + 77) % 4096) / 1024.0f;
    tokens.push_back({.id = token, .logprob = logit});
    total += std::exp(static_cast<double>(logit));
  }
  std::ranges::stable_sort(tokens, std::greater<>(), &TokenLogprob::logprob);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].logprob -= static_cast<float>(std::log(total));
    tokens[i].rank = static_cast<int>(i) + 1;
  }
  return tokens;
}

inline float score_of(uint64_t state, TokenId target) { return static_cast<float>(mix(state, target) % 1000003); }

class FakeModel {
 public:
  FakeModel(int blocks, int block_size, int vocab, int state_slots = 0, std::vector<BlockGroup> groups = {{}})
      : block_size_(block_size),
        vocab_(vocab),
        groups_(std::move(groups)),
        cache_(blocks * block_size),
        states_(state_slots) {}

  // `before`: the results of the step before, which may not be committed yet.
  std::vector<SampleResult> run(const ScheduledBatch& step, const BlockPool& pool,
                                const std::vector<SampleResult>& before = {}) {
    return sample(step, forward(step, pool, before));
  }

  // The model's states after each of the step's tokens.
  std::vector<uint64_t> forward(const ScheduledBatch& step, const BlockPool& pool,
                                const std::vector<SampleResult>& before) {
    Batch batch = step.batch;
    check_shape(batch);
    for (size_t row = 0; row < batch.from_sample.size(); ++row) {
      if (batch.from_sample[row] >= 0) batch.tokens[row] = before.at(batch.from_sample[row]).token;
    }
    for (const GivenRows& given : batch.given) {
      EXPECT_EQ(given.values.size(), static_cast<size_t>(given.count));
      for (int32_t i = 0; i < given.count; ++i) {
        EXPECT_EQ(batch.tokens.at(given.row + i), 0);
        batch.tokens[given.row + i] = static_cast<TokenId>(given.values[i]);
      }
    }
    copy_blocks(batch);
    for (const StateCopy& copy : batch.state_copies) states_.at(copy.to) = states_.at(copy.from);
    const std::set<int32_t> slots(batch.state_slots.begin(), batch.state_slots.end());
    EXPECT_EQ(slots.size(), states_.empty() ? 0 : batch.kv_len.size()) << "a state slot for every sequence";
    std::set<int32_t> written;
    std::vector<uint64_t> states(batch.size());
    for (int group = 0; group < static_cast<int>(groups_.size()); ++group) {
      store(batch, group, step, pool, written, states);
    }
    return states;
  }

  // Constraints are asked for masks, so that the step before must be committed.
  std::vector<SampleResult> sample(const ScheduledBatch& step, const std::vector<uint64_t>& states) const {
    std::vector<SampleResult> results(step.tasks.size());
    std::set<int> rows;
    for (size_t i = 0; i < step.tasks.size(); ++i) {
      const SampleTask& task = step.tasks[i];
      rows.insert(task.row);
      const uint64_t state = states[step.batch.sample_rows[task.row]];
      results[i].token = task.target >= 0 ? task.target : sample_token(state, task, vocab_);
      if (task.candidates > 0) {
        std::vector<TokenLogprob> ranked = ranked_tokens(state, vocab_);
        ranked.resize(std::min(ranked.size(), static_cast<size_t>(task.candidates)));
        for (const TokenLogprob& one : ranked) {
          results[i].candidates.push_back({.token = one, .probability = std::exp(double{one.logprob})});
        }
      }
      if (task.logprobs >= 0) {
        results[i].logprobs.token = {results[i].token, score_of(state, results[i].token), 1};
        results[i].logprobs.top = ranked_tokens(state, vocab_);
        results[i].logprobs.top.resize(std::min(results[i].logprobs.top.size(), static_cast<size_t>(task.logprobs)));
      }
    }
    EXPECT_EQ(rows.size(), step.batch.sample_rows.size()) << "a row whose logits nobody reads";
    return results;
  }

  // What the cache holds in a block.
  std::span<uint64_t> block(BlockId block) {
    return std::span(cache_).subspan(static_cast<size_t>(block * block_size_), static_cast<size_t>(block_size_));
  }

 private:
  // What a group's cache holds for a token after which the model's state is this.
  static uint64_t cached(int group, uint64_t state) { return group == 0 ? state : mix(state, group); }

  void store(const Batch& batch, int group, const ScheduledBatch& step, const BlockPool& pool,
             std::set<int32_t>& written, std::vector<uint64_t>& states) {
    const BatchView view(batch);
    const Indices slots = view.slots_of(group);
    std::vector<int32_t> tables;
    for (const int32_t id : view.block_table_of(group)) {
      EXPECT_TRUE(id < 0 || id % groups_[group].ids_per_block == 0);
      tables.push_back(id < 0 ? id : id / groups_[group].ids_per_block);
    }
    for (int s = 0; s < batch.sequences(); ++s) {
      const int32_t* table = tables.data() + s * batch.block_table_stride;
      const int first = batch.kv_len[s] - (batch.query_start[s + 1] - batch.query_start[s]);
      const auto given = std::span(batch.tokens).subspan(batch.query_start[s], batch.kv_len[s] - first);
      const auto [all, shift] = expected_places(step.parts[s], first, given);
      uint64_t state = first > 0 ? all[first - 1] : 0;
      if (const auto begin = begins_.find(first); begin != begins_.end()) state = begin->second;
      for (int row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row) {
        const int position = batch.kv_len[s] - (batch.query_start[s + 1] - row);  // its place
        EXPECT_EQ(batch.positions[row], position + shift);
        const int32_t slot = table[position / block_size_] * block_size_ + position % block_size_;
        EXPECT_EQ(slots[row] / block_size_ / groups_[group].ids_per_block, slot / block_size_);
        EXPECT_EQ(slots[row] % block_size_, slot % block_size_);
        EXPECT_TRUE(written.insert(slot).second) << "slot written twice in a step";
        EXPECT_EQ(pool.holders(slot / block_size_), 1) << "write to a shared block";  // I3
        EXPECT_FALSE(pool.in_prefix_cache(slot / block_size_)) << "write to a published block";
        if (group == 0 && position > 0 &&
            !begins_.contains(position)) {  // what follows depends on what the cache holds
          const int before = position - 1;
          state = cache_[table[before / block_size_] * block_size_ + before % block_size_];
        }
        if (group == 0 && !states_.empty()) {
          uint64_t& kept = states_.at(batch.state_slots[s]);
          if (position == 0) kept = 0;
          EXPECT_EQ(kept, state) << "recurrent state at position " << position;
          kept = extend_state(kept, batch.tokens[row]);
        }
        state = extend_state(state, batch.tokens[row]);
        cache_[slot] = cached(group, state);
        if (group == 0) states[row] = state;
      }
      check_cache(all, first, batch.kv_len[s], group, table);
    }
  }

  // The states that a part's places must stand for, of the first `first` ones and of the given tokens behind them, and
  // how much further its positions are. begins_ has the states of tokens that begin anew.
  std::pair<std::vector<uint64_t>, int> expected_places(const ScheduledBatch::Part& part, int first,
                                                        std::span<const TokenId> given) {
    begins_.clear();
    const Request& request = part.sequence->request->request;
    std::vector<TokenId> tokens = known_ids(*part.sequence);
    if (part.module >= 0) {
      int begin = 0;
      for (int i = 0; i < part.module; ++i) begin += request.modules[i].tokens;
      const PromptModule& module = request.modules[part.module];
      EXPECT_EQ(part.first, begin + first);
      EXPECT_LE(first + static_cast<int>(given.size()), module.tokens);
      EXPECT_TRUE(std::ranges::equal(given, std::span(tokens).subspan(begin + first, given.size())));
      begins_[0] = mix(4711, static_cast<uint64_t>(module.position));
      const auto own = std::span(tokens).subspan(begin, first + given.size());
      return {module_states(own, module.position), module.position};
    }
    const FakeModules modules = fake_modules(request, block_size_);
    std::vector<uint64_t> all = modules.places;
    uint64_t state = modules.state;
    begins_[static_cast<int>(all.size())] = state;
    tokens.resize(first);  // those of the step may be unknown to the sequence, or guessed
    tokens.insert(tokens.end(), given.begin(), given.end());
    for (size_t i = all.size(); i < tokens.size(); ++i) all.push_back(state = extend_state(state, tokens[i]));
    return {all, modules.shift};
  }

  void check_shape(const Batch& batch) const {
    EXPECT_EQ(batch.tokens.size(), batch.positions.size());
    EXPECT_TRUE(batch.from_sample.empty() || batch.from_sample.size() == batch.tokens.size());
    EXPECT_EQ(batch.tokens.size() * groups_.size(), batch.slots.size());
    EXPECT_EQ(batch.query_start.size(), batch.kv_len.size() + 1);
    EXPECT_EQ(batch.query_start.back(), batch.size());
    EXPECT_EQ(batch.block_table.size(), groups_.size() * batch.kv_len.size() * batch.block_table_stride);
    EXPECT_TRUE(std::ranges::is_sorted(batch.sample_rows));
  }

  // Copies may be done in any order or all at once.
  void copy_blocks(const Batch& batch) {
    std::set<int32_t> sources, targets;
    for (const BlockCopy& copy : batch.copies) {
      sources.insert(copy.from);
      EXPECT_TRUE(targets.insert(copy.to).second);
      std::copy_n(cache_.begin() + copy.from * block_size_, block_size_, cache_.begin() + copy.to * block_size_);
    }
    for (const int32_t block : sources) EXPECT_FALSE(targets.contains(block)) << "a block is source and target";
    std::set<int32_t> written;
    for (const TokenCopy& copy : batch.token_copies) {
      sources.insert(copy.from / block_size_);
      targets.insert(copy.to / block_size_);
      EXPECT_TRUE(written.insert(copy.to).second);
      cache_[copy.to] = cache_[copy.from];
    }
    for (const int32_t block : sources) EXPECT_FALSE(targets.contains(block)) << "a block is source and target";
  }

  // Attention would see exactly the sequence's own tokens, in the window of the step's first row.
  void check_cache(const std::vector<uint64_t>& states, int first_row, int kv_len, int group,
                   const int32_t* table) const {
    const int window = groups_[group].window;
    for (int position = 0; position < kv_len; ++position) {
      const uint64_t state = states[position];
      if (window > 0 && position <= first_row - window) continue;
      ASSERT_GE(table[position / block_size_], 0) << "position " << position;
      ASSERT_EQ(cache_[table[position / block_size_] * block_size_ + position % block_size_], cached(group, state))
          << "group " << group << ", position " << position;
    }
  }

  int block_size_, vocab_;
  std::vector<BlockGroup> groups_;
  std::vector<uint64_t> cache_;     // [slots]
  std::vector<uint64_t> states_;    // [state slots]
  std::map<int, uint64_t> begins_;  // of the part that is stored: the state before tokens that begin anew, by place
};

}  // namespace sluice
