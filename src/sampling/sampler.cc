// Divides a step into launches, and computes log-probabilities from the numbers that the op returns.
#include "sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "sampling/steps.h"

namespace sluice {

Sampler::Sampler(ops::Queue& queue, int rows, int vocab, ThreadPool* pool)
    : queue_(queue),
      most_rows_(rows),
      vocab_(vocab),
      inputs_(queue.device(), rows, vocab, pool),
      sampled_(queue.device(), static_cast<size_t>(rows) * sizeof(ops::SampledRow)),
      top_(queue.device(), static_cast<size_t>(rows) * ops::kMostTop * sizeof(ops::TopLogit)) {}

bool Sampler::begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks) {
  logits_ = logits;
  divide(tasks);
  launch(c, tasks.subspan(0, launches_[0].end));
  // A list of the largest logits may turn out to be too long. The whole row is needed then, and for candidates among
  // edited logits.
  const auto edits = [](const SampleTask& task) { return task.candidates > 0 && !task.plain; };
  const bool may_need_rows = (inputs_.top_asked() && vocab_ > ops::kMostTop) || std::ranges::any_of(tasks, edits);
  return launches_.size() == 1 && !may_need_rows;
}

// One launch suffices for almost every step. A step is divided where inputs have no room left, and where several tasks
// share a row that one of them edits.
void Sampler::divide(std::span<const SampleTask> tasks) {
  launches_.assign(1, {});
  inputs_.clear();
  bool row_edited = false;  // by a task of the last launch
  for (size_t i = 0; i < tasks.size(); ++i) {
    const bool edits = edits_row(tasks[i]), shares = i > launches_.back().begin && tasks[i].row == tasks[i - 1].row;
    const bool conflicts = shares && (edits || row_edited);
    const bool full = launches_.back().size() == static_cast<size_t>(most_rows_);
    if (conflicts || full || !inputs_.reserve(tasks[i])) {
      launches_.push_back({.begin = i, .end = i});
      inputs_.clear();
      CHECK(inputs_.reserve(tasks[i]), "no room for the edits of one row");
      row_edited = edits;
    } else {
      row_edited = edits || (shares && row_edited);
    }
    ++launches_.back().end;
  }
}

std::vector<SampleResult> Sampler::finish(ops::Ctx& c, std::span<const SampleTask> tasks) {
  std::vector<SampleResult> results(tasks.size());
  for (const Launch& one : launches_) {
    const std::span<const SampleTask> together = tasks.subspan(one.begin, one.size());
    if (one.begin > 0) launch(c, together);
    collect(together, std::span(results).subspan(one.begin, one.size()));
  }
  return results;
}

void Sampler::launch(ops::Ctx& c, std::span<const SampleTask> tasks) {
  const size_t bytes = tasks.size() * sizeof(ops::SampledRow);
  sampled_rows_ = sampled_.on_device(bytes);
  inputs_.fill(tasks);
  if (!tasks.empty()) {
    ops::SampleArgs args{.logits = logits_,
                         .rows = {},
                         .sampled = sampled_rows_,
                         .for_host = sampled_.on_host(bytes),
                         .edits = {},
                         .steps = {},
                         .masks = {},
                         .top = top_.on_device(tasks.size() * ops::kMostTop * sizeof(ops::TopLogit))};
    inputs_.send(queue_, args);
    ops::sample(c, args);
    if (inputs_.top_asked()) top_.to_host(queue_, args.top.bytes());
  }
  launched_ = queue_.record_event();
}

void Sampler::collect(std::span<const SampleTask> tasks, std::span<SampleResult> results) {
  queue_.wait_for(launched_);
  const auto* sampled = sampled_.as<const ops::SampledRow>();
  for (size_t i = 0; i < tasks.size(); ++i) {
    const std::span top(top_.as<const ops::TopLogit>() + i * ops::kMostTop,
                        static_cast<size_t>(std::max(sampled[i].top, 0)));
    results[i] = read(tasks[i], i, sampled[i], top);
  }
}

SampleResult Sampler::read(const SampleTask& task, size_t at, const ops::SampledRow& sampled,
                           std::span<const ops::TopLogit> top) {
  SampleResult result;
  if (sampled.token < 0) {
    result.bad_logits = sampled.token == ops::SampledRow::kBadLogits;
    result.error = result.bad_logits ? kBadLogits : kAllMasked;
    return result;
  }
  result.token = sampled.token;
  if (task.state != nullptr) result.state = next_state(task, sampled.probability);
  const int count = std::max(task.logprobs, task.candidates);
  if (task.logprobs < 0 && task.target < 0 && count == 0) return result;
  const double log_sum = sampled.raw_max + std::log(double{sampled.raw_total});
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
  result.logprobs.token = {.id = result.token, .logprob = logprob(sampled.token_logit), .rank = sampled.before + 1};
  if (count <= 0) return result;
  if (sampled.top < 0) {
    list_row(row_on_host(task.row), count);
  } else {
    listed_.assign(top.begin(), top.end());
    std::ranges::sort(listed_, ops::before);
  }
  const size_t listed = std::min(listed_.size(), static_cast<size_t>(count));
  for (size_t i = 0; i < listed; ++i) {
    const TokenLogprob token = {
        .id = listed_[i].id, .logprob = logprob(listed_[i].logit), .rank = static_cast<int>(i) + 1};
    if (static_cast<int>(i) < task.logprobs) result.logprobs.top.push_back(token);
    if (task.plain && static_cast<int>(i) < task.candidates) {
      result.candidates.push_back({.token = token, .probability = std::exp(listed_[i].logit - log_sum)});
    }
  }
  if (task.candidates > 0 && !task.plain) result.candidates = edited_candidates(task, at, log_sum);
  return result;
}

// The candidates of a task whose row is edited, which is entry `at` of the launch. `log_sum`: of the raw logits.
std::vector<TokenCandidate> Sampler::edited_candidates(const SampleTask& task, size_t at, double log_sum) {
  const std::span<const float> raw = row_on_host(task.row);
  edited_.assign(raw.begin(), raw.end());
  inputs_.edit(at, edited_);
  list_row(edited_, task.candidates);
  const float largest = listed_[0].logit;
  double total = 0;
  for (const float logit : edited_) total += std::exp(logit - largest);
  std::vector<TokenCandidate> candidates;
  for (const ops::TopLogit& one : listed_) {
    const float logit = raw[static_cast<size_t>(one.id)];
    const auto above = std::ranges::count_if(raw, [=](float other) { return other > logit; });
    const auto equal = std::ranges::count(raw.first(static_cast<size_t>(one.id)), logit);  // with lower ids
    candidates.push_back({.token = {.id = one.id,
                                    .logprob = static_cast<float>(logit - log_sum),
                                    .rank = static_cast<int>(above + equal) + 1},
                          .probability = std::exp(one.logit - largest) / total});
  }
  return candidates;
}

// A row of the logits in host memory, valid until the next call.
std::span<const float> Sampler::row_on_host(int row) {
  const size_t bytes = static_cast<size_t>(vocab_) * sizeof(float);
  if (row_.size() == 0) row_ = Buffer(bytes, queue_.device().pinned_memory());
  queue_.copy_async(row_.data(), logits_.slice_rows(row, 1).data, bytes);
  queue_.wait();
  return {reinterpret_cast<const float*>(row_.data()), static_cast<size_t>(vocab_)};
}

// Lists the first `count` tokens of a row, which the op has no room for.
void Sampler::list_row(std::span<const float> logits, int count) {
  listed_.clear();
  const auto most = static_cast<size_t>(count);
  for (int32_t id = 0; id < vocab_; ++id) {  // the first ones are a heap with the last of them on top
    const ops::TopLogit one = {.id = id, .logit = logits[static_cast<size_t>(id)]};
    if (one.logit == -std::numeric_limits<float>::infinity()) continue;
    if (listed_.size() < most) {
      listed_.push_back(one);
      std::ranges::push_heap(listed_, ops::before);
    } else if (one.logit > listed_[0].logit) {
      std::ranges::pop_heap(listed_, ops::before);
      listed_.back() = one;
      std::ranges::push_heap(listed_, ops::before);
    }
  }
  std::ranges::sort_heap(listed_, ops::before);
}

}  // namespace sluice
