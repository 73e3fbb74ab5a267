// Which rows are drawn where, and the end of the draws.
#include "sampling/device_sampler.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

constexpr const char* kBadLogits = "the model's logits are not finite";

bool cuts(const SamplingParams& p, int vocab) {
  return (p.top_k > 0 && p.top_k < vocab) || p.top_p < 1.0 || p.min_p > 0.0;
}

// Needs all logits of its row on the host.
bool needs_row(const SampleTask& task, int vocab) {
  const int top_k = task.params->top_k;
  return task.target >= 0 || task.logprobs >= 0 || edits_logits(task) ||
         (top_k > ops::kMostCandidates && top_k < vocab);
}

ops::DrawRow draw_row(const SampleTask& task, int vocab) {
  const SamplingParams& p = *task.params;
  ops::DrawRow row{.row = task.row,
                   .scale = 0.0f,
                   .key = {static_cast<uint32_t>(task.seed), static_cast<uint32_t>(task.seed >> 32)},
                   .choice = static_cast<uint32_t>(task.choice),
                   .position = static_cast<uint32_t>(task.position)};
  if (p.temperature < Sampler::kGreedyBelow) return row;
  row.scale = static_cast<float>(1.0 / p.temperature);
  if (p.top_k > 0 && p.top_k < vocab) {
    row.count = p.top_k;
  } else if (p.top_p < 1.0) {
    row.mass = static_cast<float>(std::min(1.0, p.top_p + 1e-4));  // sums on the device are rounded
  } else if (p.min_p > 0.0) {
    row.below = static_cast<float>(-std::log(p.min_p) / row.scale * (1 + 1e-5) + 1e-5);
  }
  return row;
}

}  // namespace

DeviceSampler::DeviceSampler(const ops::Backend& backend, ThreadPool& threads, int rows, int vocab)
    : backend_(backend),
      memory_(backend.memory()),
      most_rows_(rows),
      rows_(mirror(static_cast<size_t>(rows) * sizeof(ops::DrawRow))),
      drawn_(mirror(static_cast<size_t>(rows) * sizeof(ops::DrawnRow))),
      candidates_(mirror(static_cast<size_t>(rows) * ops::kMostCandidates * sizeof(ops::DrawCandidate))),
      whole_(static_cast<size_t>(rows) * static_cast<size_t>(vocab) * sizeof(float), backend.staging_memory()),
      sampler_(threads) {}

DeviceSampler::Mirror DeviceSampler::mirror(size_t bytes) const {
  return {.host = Buffer(bytes, backend_.staging_memory()), .device = Buffer(bytes, memory_)};
}

bool DeviceSampler::begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks) {
  logits_ = logits;
  drawing_.clear(), whole_rows_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) (needs_row(tasks[i], vocab()) ? whole_rows_ : drawing_).push_back(i);
  draw(c, tasks, drawn_together(0));
  return whole_rows_.empty() && drawing_.size() <= static_cast<size_t>(most_rows_) && !candidates_asked_;
}

std::vector<SampleResult> DeviceSampler::finish(ops::Ctx& c, std::span<const SampleTask> tasks) {
  std::vector<SampleResult> results(tasks.size());
  collect(tasks, drawn_together(0), results);
  for (auto begin = static_cast<size_t>(most_rows_); begin < drawing_.size();
       begin += static_cast<size_t>(most_rows_)) {
    draw(c, tasks, drawn_together(begin));
    collect(tasks, drawn_together(begin), results);
  }
  sample_rows(tasks, results);
  return results;
}

std::span<const size_t> DeviceSampler::drawn_together(size_t begin) const {
  const std::span all(drawing_);
  return all.subspan(begin, std::min(all.size() - begin, static_cast<size_t>(most_rows_)));
}

void DeviceSampler::draw(ops::Ctx& c, std::span<const SampleTask> tasks, std::span<const size_t> which) {
  const auto draws = static_cast<int64_t>(which.size());
  auto* rows = reinterpret_cast<ops::DrawRow*>(rows_.host.data());
  candidates_asked_ = false;
  for (int64_t i = 0; i < draws; ++i) {
    rows[i] = draw_row(tasks[which[i]], vocab());
    candidates_asked_ |= rows[i].scale > 0 && cuts(*tasks[which[i]].params, vocab());
  }
  const auto bytes = [&](const Mirror& mirror, size_t each) {
    return Tensor(mirror.device.data(), &kUInt8, {draws * static_cast<int64_t>(each)});
  };
  const Tensor in = bytes(rows_, sizeof(ops::DrawRow));
  const Tensor listed = bytes(candidates_, ops::kMostCandidates * sizeof(ops::DrawCandidate));
  drawn_rows_ = bytes(drawn_, sizeof(ops::DrawnRow));
  if (draws > 0) {
    memory_.copy_later(in.data, rows, in.bytes());
    ops::draw(c, {.logits = logits_, .rows = in, .drawn = drawn_rows_, .candidates = listed});
    memory_.copy_later(drawn_.host.data(), drawn_rows_.data, drawn_rows_.bytes());
    if (candidates_asked_) memory_.copy_later(candidates_.host.data(), listed.data, listed.bytes());
  }
  launched_ = memory_.mark();
}

// What the draws of tasks `which` gave. Those whose candidates are too many are added to whole_rows_.
void DeviceSampler::collect(std::span<const SampleTask> tasks, std::span<const size_t> which,
                            std::vector<SampleResult>& results) {
  memory_.wait_for(launched_);
  const auto* drawn = reinterpret_cast<const ops::DrawnRow*>(drawn_.host.data());
  const auto* lists = reinterpret_cast<const ops::DrawCandidate*>(candidates_.host.data());
  for (size_t i = 0; i < which.size(); ++i) {
    if (drawn[i].listed == 0) {
      whole_rows_.push_back(which[i]);
    } else {
      const std::span list(lists + i * ops::kMostCandidates, static_cast<size_t>(drawn[i].candidates));
      results[which[i]] = result_of(tasks[which[i]], drawn[i], list);
    }
  }
}

SampleResult DeviceSampler::result_of(const SampleTask& task, const ops::DrawnRow& drawn,
                                      std::span<const ops::DrawCandidate> candidates) {
  SampleResult result;
  result.token = drawn.token;
  if (drawn.token < 0) {
    result.error = kBadLogits;
    result.bad_logits = true;
  } else if (!candidates.empty()) {
    const auto scale = static_cast<float>(1.0 / task.params->temperature);
    kept_.clear();
    for (const auto& [id, logit] : candidates) {
      kept_.push_back({.logit = logit, .weight = relative_weight(logit, drawn.max, scale), .id = id});
    }
    result.token = draw_candidate(kept_, drawn.total, vocab(), task, scratch_);
  }
  return result;
}

// Whole rows on the host, as many at a time as there is room for.
void DeviceSampler::sample_rows(std::span<const SampleTask> tasks, std::vector<SampleResult>& results) {
  const auto row_bytes = static_cast<size_t>(vocab()) * sizeof(float);
  for (size_t begin = 0; begin < whole_rows_.size(); begin += static_cast<size_t>(most_rows_)) {
    const size_t count = std::min(whole_rows_.size() - begin, static_cast<size_t>(most_rows_));
    std::vector<SampleTask> here;
    for (size_t i = 0; i < count; ++i) {
      here.push_back(tasks[whole_rows_[begin + i]]);
      memory_.copy_later(whole_.data() + i * row_bytes, logits_.slice_rows(here[i].row, 1).data, row_bytes);
      here[i].row = static_cast<int>(i);
    }
    memory_.wait();
    const LogitsView view{.data = reinterpret_cast<const float*>(whole_.data()),
                          .rows = static_cast<int>(count),
                          .vocab = vocab(),
                          .stride = vocab()};
    std::vector<SampleResult> sampled = sampler_.sample(view, here);
    for (size_t i = 0; i < count; ++i) results[whole_rows_[begin + i]] = std::move(sampled[i]);
  }
}

}  // namespace sluice
