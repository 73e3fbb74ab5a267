// A row has one edit for every token with a bias or a penalty. A long text has thousands; writing them takes a few
// microseconds per row and step.
#include "sampling/sample_inputs.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/check.h"
#include "sampling/history.h"
#include "sampling/steps.h"

namespace sluice {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr size_t kEditsPerRow = 1024, kLeastEdits = 1 << 16;  // capacity, shared by all rows
constexpr size_t kMasks = 512;
constexpr size_t kMostSteps = 32;  // of a row

bool holds_end(const SampleTask& task) { return task.position < task.params->min_tokens; }
// A constraint's mask may tell whether anything but the end may come; else biases exclude end tokens.
bool decides_end(const SampleTask& task) { return task.constraint != nullptr && task.constraint->decides_end(); }
bool masks_ends(const SampleTask& task) { return holds_end(task) && !decides_end(task); }

// A token has at most one edit.
size_t most_edits_of(const SampleTask& task, int vocab) {
  if (task.plain || task.target >= 0) return 0;
  return std::min(task.params->logit_bias.size() + (masks_ends(task) ? task.end_tokens.size() : 0) +
                      (task.counts != nullptr ? task.counts->entries().size() : 0) + most_history_edits(task),
                  static_cast<size_t>(vocab));
}

bool masks(const SampleTask& task) {
  return task.target < 0 && (!task.params->allowed_token_ids.empty() || task.constraint != nullptr);
}

// Removes the end tokens from a mask, if others are left.
void remove_ends(std::span<uint32_t> words, std::span<const TokenId> ends, int vocab) {
  std::vector<uint32_t> kept(words.begin(), words.end());
  for (const TokenId id : ends) {
    if (id >= 0 && id < vocab) kept[id / 32] &= ~(1u << (id % 32));
  }
  const bool any = std::ranges::any_of(kept, [](uint32_t word) { return word != 0; });
  if (any) std::ranges::copy(kept, words.begin());
}

}  // namespace

bool edits_row(const SampleTask& task) { return most_edits_of(task, 1) > 0; }

SampleInputs::SampleInputs(ops::Device& device, int rows, int vocab, ThreadPool* pool)
    : pool_(pool),
      vocab_(vocab),
      most_edits_(std::max({static_cast<size_t>(rows) * kEditsPerRow, kLeastEdits, static_cast<size_t>(vocab)})),
      most_masks_(std::min(static_cast<size_t>(rows), kMasks)),
      mask_words_(static_cast<size_t>(ops::mask_words(vocab))),
      rows_(static_cast<size_t>(rows) * sizeof(ops::SampleRow), device.pinned_memory()),
      edits_(device, most_edits_ * sizeof(ops::LogitEdit)),
      masks_(device, most_masks_ * mask_words_ * sizeof(uint32_t)),
      steps_(device, static_cast<size_t>(rows) * kMostSteps * sizeof(ops::SamplerStep)) {}

void SampleInputs::clear() { edits_reserved_ = masks_reserved_ = 0; }

bool SampleInputs::reserve(const SampleTask& task) {
  if (task.plain) return true;
  const size_t edits = most_edits_of(task, vocab_), asked = masks(task) ? 1 : 0;
  if (edits_reserved_ + edits > most_edits_ || masks_reserved_ + asked > most_masks_) return false;
  edits_reserved_ += edits, masks_reserved_ += asked;
  return true;
}

ops::SampleRow SampleInputs::row_of(const SampleTask& task) {
  const SamplingParams& p = *task.params;
  ops::SampleRow row{.row = task.row,
                     .key = {static_cast<uint32_t>(task.seed), static_cast<uint32_t>(task.seed >> 32)},
                     .choice = static_cast<uint32_t>(task.choice),
                     .position = static_cast<uint32_t>(task.position),
                     .target = task.target,
                     .report = task.candidates > 0 ? std::max(task.logprobs, task.candidates) : task.logprobs};
  if (task.target >= 0) {
    CHECK(task.target < vocab_, "target {}", task.target);
    row.report = std::max(row.report, 0);
    return row;
  }
  if (task.counts != nullptr) {
    row.repetition = static_cast<float>(p.repetition_penalty);
    row.presence = static_cast<float>(p.presence_penalty);
    row.frequency = static_cast<float>(p.frequency_penalty);
  }
  if (task.candidates > 0 || (p.temperature < kGreedyBelow && uses(p, "temperature"))) return row;
  if (has_chain(p)) {
    write_steps(task, row);
    return row;
  }
  row.scale = static_cast<float>(1.0 / p.temperature);
  row.sigmas = static_cast<float>(p.top_n_sigma);
  if (p.top_k > 0 && p.top_k < vocab_) row.count = p.top_k;
  row.mass = p.top_p;
  row.least = static_cast<float>(p.min_p);
  return row;
}

void SampleInputs::write_steps(const SampleTask& task, ops::SampleRow& row) {
  chain_.clear();
  append_steps(task, vocab_, chain_);
  CHECK(chain_.size() <= kMostSteps, "{} samplers", chain_.size());
  row.scale = 1.0f;  // it samples
  row.wants_probability = task.state != nullptr ? 1 : 0;
  row.first_step = static_cast<int32_t>(steps_written_);
  row.steps = static_cast<int32_t>(chain_.size());
  std::ranges::copy(chain_, steps_.as<ops::SamplerStep>() + steps_written_);
  steps_written_ += chain_.size();
}

void SampleInputs::write_edits(const SampleTask& task) {
  const auto check = [&](TokenId id) { CHECK(id >= 0 && id < vocab_, "token {} of {}", id, vocab_); };
  const auto by_id = [](const ops::LogitEdit& edit) { return edit.id; };
  biased_.clear();
  for (const auto& [id, bias] : task.params->logit_bias) check(id), biased_.push_back({.id = id, .bias = bias});
  for (size_t i = 0; masks_ends(task) && i < task.end_tokens.size(); ++i) {
    const TokenId id = task.end_tokens[i];
    if (id >= 0 && id < vocab_) biased_.push_back({.id = id, .bias = kMasked});
  }
  if (task.tokens != nullptr) append_history_edits(task, biased_);
  // The changes of a token that occurs twice add up.
  std::ranges::stable_sort(biased_, {}, by_id);
  size_t kept = 0;
  for (const ops::LogitEdit& edit : biased_) {
    if (kept > 0 && biased_[kept - 1].id == edit.id) {
      biased_[kept - 1].bias += edit.bias;
      biased_[kept - 1].late += edit.late;
    } else {
      biased_[kept++] = edit;
    }
  }
  biased_.resize(kept);
  auto* out = edits_.as<ops::LogitEdit>() + edits_written_;
  if (task.counts != nullptr) {
    for (const PenaltyCounts::Entry& entry : task.counts->entries()) {
      check(entry.token);
      if (entry.all == 0) continue;
      if (!biased_.empty()) {
        const auto same = std::ranges::lower_bound(biased_, entry.token, {}, by_id);
        if (same != biased_.end() && same->id == entry.token) {
          same->output = entry.output;
          continue;
        }
      }
      *out++ = {.id = entry.token, .output = entry.output};
    }
  }
  out = std::ranges::copy(biased_, out).out;
  edits_written_ = static_cast<size_t>(out - edits_.as<ops::LogitEdit>());
}

void SampleInputs::write_mask(const SampleTask& task, std::span<uint32_t> mask) const {
  const SharedList<TokenId>& allowed = task.params->allowed_token_ids;
  if (task.constraint != nullptr) {
    task.constraint->fill_mask(mask);
    if (decides_end(task) && (holds_end(task) || task.params->ignore_eos)) remove_ends(mask, task.end_tokens, vocab_);
    if (allowed.empty()) return;
  }
  std::vector<uint32_t> listed(mask_words_);
  for (const TokenId id : allowed) {
    CHECK(id >= 0 && id < vocab_, "allowed_token_ids has {}", id);
    listed[id / 32] |= 1u << (id % 32);
  }
  for (size_t i = 0; i < mask_words_; ++i) mask[i] = task.constraint != nullptr ? mask[i] & listed[i] : listed[i];
}

// Groups are divided among the threads, the largest first. A slow mask holds up the masks of its own group only.
void SampleInputs::write_masks() {
  std::ranges::stable_sort(jobs_, std::less<>(), &MaskJob::group);
  runs_.clear();
  for (MaskJob& job : jobs_) {
    if (!runs_.empty() && runs_.back().front().group == job.group) {
      runs_.back() = {runs_.back().data(), runs_.back().size() + 1};
    } else {
      runs_.emplace_back(&job, 1);
    }
  }
  std::ranges::stable_sort(runs_, std::greater<>(), [](std::span<MaskJob> run) { return run.size(); });
  const auto write = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (const MaskJob& job : runs_[static_cast<size_t>(i)]) {
        auto* words = masks_.as<uint32_t>() + static_cast<size_t>(job.mask) * mask_words_;
        write_mask(*job.task, {words, mask_words_});
      }
    }
  };
  const auto runs = static_cast<int64_t>(runs_.size());
  if (pool_ == nullptr) return write(0, runs);
  pool_->parallel_for(runs, 1, write);
}

void SampleInputs::fill(std::span<const SampleTask> tasks) {
  auto* rows = reinterpret_cast<ops::SampleRow*>(rows_.data());
  rows_written_ = edits_written_ = masks_written_ = steps_written_ = 0;
  top_asked_ = false;
  jobs_.clear();
  for (const SampleTask& task : tasks) {
    ops::SampleRow row = row_of(task);
    top_asked_ |= row.report > 0;
    if (task.target < 0 && !task.plain) {
      row.first_edit = static_cast<int32_t>(edits_written_);
      write_edits(task);
      row.edits = static_cast<int32_t>(edits_written_) - row.first_edit;
      if (masks(task)) {
        row.mask = static_cast<int32_t>(masks_written_++);
        jobs_.push_back({&task, row.mask, task.constraint != nullptr ? task.constraint->group() : nullptr});
      }
    }
    rows[rows_written_++] = row;
  }
  if (!jobs_.empty()) write_masks();
}

void SampleInputs::edit(size_t i, std::span<float> logits) {
  const ops::SampleRow& row = reinterpret_cast<const ops::SampleRow*>(rows_.data())[i];
  const auto* edits = edits_.as<const ops::LogitEdit>() + row.first_edit;
  for (int32_t k = 0; k < row.edits; ++k) {
    float& logit = logits[static_cast<size_t>(edits[k].id)];
    logit = ops::edited(row, edits[k], logit);
  }
  if (row.mask < 0) return;
  const auto* mask = masks_.as<const uint32_t>() + static_cast<size_t>(row.mask) * mask_words_;
  for (size_t id = 0; id < logits.size(); ++id) {
    if ((mask[id / 32] >> (id % 32) & 1) == 0) logits[id] = kMasked;
  }
}

void SampleInputs::send(ops::Queue& queue, ops::SampleArgs& args) {
  const auto copied = [&](Mirror& mirror, size_t bytes) {
    mirror.to_device(queue, bytes);
    return mirror.on_device(bytes);
  };
  args.rows = Tensor(rows_.data(), &kUInt8, {static_cast<int64_t>(rows_written_ * sizeof(ops::SampleRow))});
  args.edits = copied(edits_, edits_written_ * sizeof(ops::LogitEdit));
  args.masks = copied(masks_, masks_written_ * mask_words_ * sizeof(uint32_t));
  args.steps = copied(steps_, steps_written_ * sizeof(ops::SamplerStep));
}

}  // namespace sluice
