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

std::vector<SampleResult> DeviceSampler::sample(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks) {
  const auto vocab = static_cast<int>(logits.shape[1]);
  std::vector<SampleResult> results(tasks.size());
  std::vector<size_t> drawn, whole;
  for (size_t i = 0; i < tasks.size(); ++i) (needs_row(tasks[i], vocab) ? whole : drawn).push_back(i);
  for (size_t begin = 0; begin < drawn.size(); begin += static_cast<size_t>(most_rows_)) {
    const size_t count = std::min(drawn.size() - begin, static_cast<size_t>(most_rows_));
    draw(c, logits, tasks, std::span(drawn).subspan(begin, count), results, whole);
  }
  sample_rows(logits, tasks, whole, results);
  return results;
}

// Tasks `which`, at most most_rows_. Those whose candidates are too many are added to `whole_rows`.
void DeviceSampler::draw(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks,
                         std::span<const size_t> which, std::vector<SampleResult>& results,
                         std::vector<size_t>& whole_rows) {
  const auto draws = static_cast<int64_t>(which.size()), vocab = logits.shape[1];
  auto* rows = reinterpret_cast<ops::DrawRow*>(rows_.host.data());
  bool candidates = false;
  for (int64_t i = 0; i < draws; ++i) {
    rows[i] = draw_row(tasks[which[i]], static_cast<int>(vocab));
    candidates |= rows[i].scale > 0 && cuts(*tasks[which[i]].params, static_cast<int>(vocab));
  }
  const auto bytes = [&](const Mirror& mirror, size_t each) {
    return Tensor(mirror.device.data(), &kUInt8, {draws * static_cast<int64_t>(each)});
  };
  const Tensor in = bytes(rows_, sizeof(ops::DrawRow)), out = bytes(drawn_, sizeof(ops::DrawnRow));
  const Tensor listed = bytes(candidates_, ops::kMostCandidates * sizeof(ops::DrawCandidate));
  memory_.copy_later(in.data, rows, in.bytes());
  ops::draw(c, {.logits = logits, .rows = in, .drawn = out, .candidates = listed});
  memory_.copy_later(drawn_.host.data(), out.data, out.bytes());
  if (candidates) memory_.copy_later(candidates_.host.data(), listed.data, listed.bytes());
  memory_.wait();
  const auto* drawn = reinterpret_cast<const ops::DrawnRow*>(drawn_.host.data());
  const auto* lists = reinterpret_cast<const ops::DrawCandidate*>(candidates_.host.data());
  for (int64_t i = 0; i < draws; ++i) {
    if (drawn[i].listed == 0) {
      whole_rows.push_back(which[i]);
    } else {
      const std::span list(lists + i * ops::kMostCandidates, static_cast<size_t>(drawn[i].candidates));
      results[which[i]] = finish(tasks[which[i]], static_cast<int>(vocab), drawn[i], list);
    }
  }
}

SampleResult DeviceSampler::finish(const SampleTask& task, int vocab, const ops::DrawnRow& drawn,
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
    result.token = draw_candidate(kept_, drawn.total, vocab, task, scratch_);
  }
  return result;
}

// Whole rows on the host, as many at a time as there is room for.
void DeviceSampler::sample_rows(const Tensor& logits, std::span<const SampleTask> tasks, std::span<const size_t> which,
                                std::vector<SampleResult>& results) {
  const int64_t vocab = logits.shape[1];
  const auto row_bytes = static_cast<size_t>(vocab) * sizeof(float);
  for (size_t begin = 0; begin < which.size(); begin += static_cast<size_t>(most_rows_)) {
    const size_t count = std::min(which.size() - begin, static_cast<size_t>(most_rows_));
    std::vector<SampleTask> here;
    for (size_t i = 0; i < count; ++i) {
      here.push_back(tasks[which[begin + i]]);
      memory_.copy_later(whole_.data() + i * row_bytes, logits.slice_rows(here[i].row, 1).data, row_bytes);
      here[i].row = static_cast<int>(i);
    }
    memory_.wait();
    const LogitsView view{.data = reinterpret_cast<const float*>(whole_.data()),
                          .rows = static_cast<int>(count),
                          .vocab = static_cast<int>(vocab),
                          .stride = vocab};
    std::vector<SampleResult> sampled = sampler_.sample(view, here);
    for (size_t i = 0; i < count; ++i) results[which[begin + i]] = std::move(sampled[i]);
  }
}

}  // namespace sluice
