// Decides which rows the device samples and which the host samples, and collects the results.
#include "sampling/device_sampler.h"

#include <algorithm>
#include <cmath>

namespace sluice {

DeviceSampler::DeviceSampler(ops::Queue& queue, int rows, int vocab)
    : queue_(queue),
      most_rows_(rows),
      inputs_(queue.device(), rows, vocab),
      sampled_(queue.device(), static_cast<size_t>(rows) * sizeof(ops::SampledRow)),
      top_(queue.device(), static_cast<size_t>(rows) * ops::kMostTop * sizeof(ops::TopLogit)),
      whole_(static_cast<size_t>(rows) * static_cast<size_t>(vocab) * sizeof(float), queue.device().pinned_memory()),
      sampler_(queue.threads()) {}

bool DeviceSampler::begin(ops::Ctx& c, const Tensor& logits, std::span<const SampleTask> tasks) {
  logits_ = logits;
  sampling_.clear(), whole_rows_.clear();
  inputs_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto same_row = [&](size_t other) { return other < tasks.size() && tasks[other].row == tasks[i].row; };
    (inputs_.promise(tasks[i], same_row(i - 1) || same_row(i + 1)) ? sampling_ : whole_rows_).push_back(i);
  }
  sample(c, tasks, sampled_together(0));
  // A list of the largest logits may turn out to be too long. The whole row is needed then.
  const bool may_need_rows = inputs_.top_asked() && vocab() > ops::kMostTop;
  return whole_rows_.empty() && sampling_.size() <= static_cast<size_t>(most_rows_) && !may_need_rows;
}

std::vector<SampleResult> DeviceSampler::finish(ops::Ctx& c, std::span<const SampleTask> tasks) {
  std::vector<SampleResult> results(tasks.size());
  collect(tasks, sampled_together(0), results);
  for (auto begin = static_cast<size_t>(most_rows_); begin < sampling_.size();
       begin += static_cast<size_t>(most_rows_)) {
    sample(c, tasks, sampled_together(begin));
    collect(tasks, sampled_together(begin), results);
  }
  sample_rows(tasks, results);
  return results;
}

std::span<const size_t> DeviceSampler::sampled_together(size_t begin) const {
  const std::span all(sampling_);
  return all.subspan(begin, std::min(all.size() - begin, static_cast<size_t>(most_rows_)));
}

void DeviceSampler::sample(ops::Ctx& c, std::span<const SampleTask> tasks, std::span<const size_t> which) {
  constexpr size_t kListBytes = ops::kMostTop * sizeof(ops::TopLogit);
  sampled_rows_ = sampled_.on_device(which.size() * sizeof(ops::SampledRow));
  inputs_.fill(tasks, which);
  if (!which.empty()) {
    ops::SampleArgs args{.logits = logits_,
                         .rows = {},
                         .sampled = sampled_rows_,
                         .for_host = sampled_.on_host(which.size() * sizeof(ops::SampledRow)),
                         .edits = {},
                         .masks = {},
                         .top = top_.on_device(which.size() * kListBytes)};
    inputs_.send(queue_, args);
    ops::sample(c, args);
    if (inputs_.top_asked()) queue_.copy_async(top_.host.data(), args.top.data, args.top.bytes());
  }
  launched_ = queue_.record_event();
}

// Collects the device's results for the tasks `which`. Tasks that need whole rows are added to whole_rows_.
void DeviceSampler::collect(std::span<const SampleTask> tasks, std::span<const size_t> which,
                            std::vector<SampleResult>& results) {
  queue_.wait_for(launched_);
  const auto* sampled = sampled_.as<const ops::SampledRow>();
  for (size_t i = 0; i < which.size(); ++i) {
    const std::span top(top_.as<const ops::TopLogit>() + i * ops::kMostTop,
                        static_cast<size_t>(std::max(sampled[i].top, 0)));
    if (!read(tasks[which[i]], sampled[i], top, results[which[i]])) whole_rows_.push_back(which[i]);
  }
}

bool DeviceSampler::read(const SampleTask& task, const ops::SampledRow& sampled, std::span<const ops::TopLogit> top,
                         SampleResult& result) {
  if (sampled.token < 0) {
    result.bad_logits = sampled.token == ops::SampledRow::kBadLogits;
    result.error = result.bad_logits ? kBadLogits : kAllMasked;
    return true;
  }
  result.token = sampled.token;
  const bool reports = task.logprobs >= 0 || task.target >= 0;
  return !reports || report(task, sampled, top, result);
}

// Sets the log-probabilities of the result's token and of the most likely tokens. Returns false if `top` lacks some.
bool DeviceSampler::report(const SampleTask& task, const ops::SampledRow& sampled, std::span<const ops::TopLogit> top,
                           SampleResult& result) {
  const double log_sum = sampled.raw_max + std::log(double{sampled.raw_total});
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
  listed_.clear();
  for (const auto& [id, logit] : top) listed_.push_back({.logit = logit, .weight = 0.0f, .id = id});
  std::ranges::sort(listed_, before);
  result.logprobs.token = {.id = result.token, .logprob = logprob(sampled.token_logit), .rank = sampled.before + 1};
  if (sampled.top < 0 && task.logprobs > 0) return false;
  const size_t listed = std::min(listed_.size(), static_cast<size_t>(std::max(task.logprobs, 0)));
  for (size_t i = 0; i < listed; ++i) {
    result.logprobs.top.push_back(
        {.id = listed_[i].id, .logprob = logprob(listed_[i].logit), .rank = static_cast<int>(i) + 1});
  }
  return true;
}

// Copies whole rows to the host, as many at a time as the buffer holds, and samples them there.
void DeviceSampler::sample_rows(std::span<const SampleTask> tasks, std::vector<SampleResult>& results) {
  const auto row_bytes = static_cast<size_t>(vocab()) * sizeof(float);
  for (size_t begin = 0; begin < whole_rows_.size(); begin += static_cast<size_t>(most_rows_)) {
    const size_t count = std::min(whole_rows_.size() - begin, static_cast<size_t>(most_rows_));
    std::vector<SampleTask> here;
    for (size_t i = 0; i < count; ++i) {
      here.push_back(tasks[whole_rows_[begin + i]]);
      queue_.copy_async(whole_.data() + i * row_bytes, logits_.slice_rows(here[i].row, 1).data, row_bytes);
      here[i].row = static_cast<int>(i);
    }
    queue_.wait();
    const LogitsView view{.data = reinterpret_cast<const float*>(whole_.data()),
                          .rows = static_cast<int>(count),
                          .vocab = vocab(),
                          .stride = vocab()};
    std::vector<SampleResult> sampled = sampler_.sample(view, here);
    for (size_t i = 0; i < count; ++i) results[whole_rows_[begin + i]] = std::move(sampled[i]);
  }
}

}  // namespace sluice
