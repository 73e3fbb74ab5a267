// Bound by memory traffic: a step reads all states of a text, once for all of its candidates.
#include "engine/hidden_similarity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "scheduler/sequence.h"

namespace sluice {
namespace {

constexpr int kLanes = 16;
constexpr int64_t kPiece = 64;  // rows of a text that a thread compares together

// Sums in an order that the width alone fixes.
float dot(const float* a, const float* b, int width) {
  float sums[kLanes] = {};
  const int whole = width / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (int i = whole; i < width; ++i) sums[i - whole] += a[i] * b[i];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// The row for a position of a part's text, or for its candidate.
int32_t row_of(const Sequence& sequence, int position) {
  const RequestState& request = *sequence.request;
  const std::vector<int32_t>& rows = request.hidden.rows;
  const bool candidate = request.contrastive->begun() && position == sequence.known() - 1;
  const size_t most_tokens = rows.size() - static_cast<size_t>(request.width());
  return rows[candidate ? most_tokens + static_cast<size_t>(sequence.task.choice) : static_cast<size_t>(position)];
}

bool searches(const ScheduledBatch::Part& part) { return part.sequence->request->contrastive != nullptr; }
bool ended(const ScheduledBatch::Part& part) { return part.sequence->state == SequenceState::kEnded; }

}  // namespace

HiddenSimilarity::HiddenSimilarity(ops::Device& device, int rows, int width, ThreadPool& pool)
    : width_(width),
      pool_(pool),
      memory_(bytes(rows, width), device.pinned_memory()),
      states_(reinterpret_cast<float*>(memory_.data())) {}

size_t HiddenSimilarity::bytes(int rows, int width) {
  return static_cast<size_t>(rows) * static_cast<size_t>(width) * sizeof(float);
}

void HiddenSimilarity::begin(ops::Ctx& c, const ScheduledBatch& step, const Tensor& hidden) {
  Step& own = steps_[begun_++ % steps_.size()];
  own.rows.clear();
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const ScheduledBatch::Part& part = step.parts[i];
    if (!searches(part)) continue;
    // What is known stays as it is: several candidates may compute the text anew.
    int position = std::max(part.first, part.sequence->request->hidden.known);
    const int end = part.first + part.tokens;
    const auto is_new = [&](int32_t id) { return std::ranges::find(own.rows, id, &Copied::row) == own.rows.end(); };
    while (position < end && !is_new(row_of(*part.sequence, position))) ++position;
    while (position < end) {  // runs of rows that follow each other
      const int32_t first = row_of(*part.sequence, position);
      int count = 0;
      while (position + count < end && row_of(*part.sequence, position + count) == first + count) {
        own.rows.push_back({.row = first + count++, .part = i});
      }
      const Tensor from = hidden.slice_rows(step.batch.query_start[i] + position - part.first, count);
      CHECK(from.dense() && from.shape[1] == width_, "hidden states {}", from.shape.str());
      c.queue.copy_async(row(first), from.data, bytes(count, width_));
      position += count;
    }
  }
  own.copied = c.queue.record_event();
}

void HiddenSimilarity::normalize(int32_t id) {
  float* state = row(id);
  const float length = std::sqrt(dot(state, state, width_));
  for (int i = 0; i < width_; ++i) state[i] /= length;
}

void HiddenSimilarity::finish(ops::Ctx& c, const ScheduledBatch& step, std::span<StepResult> results) {
  CHECK(finished_ < begun_, "no step to finish");
  const Step& own = steps_[finished_++ % steps_.size()];
  if (own.rows.empty()) return;
  c.queue.wait_for(own.copied);
  pool_.parallel_for(static_cast<int64_t>(own.rows.size()), kPiece, [&](int64_t begin, int64_t end) {
    for (const Copied& one :
         std::span(own.rows).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))) {
      // Where the request has ended since, the row may be another one's.
      if (!ended(step.parts[one.part])) normalize(one.row);
    }
  });
  std::vector<std::pair<const RequestState*, Group>> groups;
  for (size_t i = 0; i < step.parts.size(); ++i) {
    const ScheduledBatch::Part& part = step.parts[i];
    if (!searches(part) || part.outputs != Outputs::kToken || ended(part)) continue;
    const RequestState* request = part.sequence->request;
    if (!request->contrastive->begun()) continue;
    const int text = part.sequence->known() - 1;
    auto found = std::ranges::find(groups, request, [](const auto& one) { return one.first; });
    if (found == groups.end()) {
      groups.push_back({request, {.text = std::span(request->hidden.rows).first(static_cast<size_t>(text))}});
      found = groups.end() - 1;
    }
    found->second.candidates.push_back(row(row_of(*part.sequence, text)));
    found->second.results.push_back(&results[i]);
  }
  for (const auto& [request, group] : groups) compare(group);
}

void HiddenSimilarity::compare(const Group& group) {
  const auto count = static_cast<int64_t>(group.text.size());
  const size_t candidates = group.candidates.size();
  const int64_t pieces = (count + kPiece - 1) / kPiece;
  largest_.assign(static_cast<size_t>(pieces) * candidates, -std::numeric_limits<float>::infinity());
  pool_.parallel_for(pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kPiece; i < std::min(count, end * kPiece); ++i) {
      const float* state = row(group.text[static_cast<size_t>(i)]);
      float* largest = largest_.data() + static_cast<size_t>(i / kPiece) * candidates;
      for (size_t k = 0; k < candidates; ++k) {
        largest[k] = std::max(largest[k], dot(state, group.candidates[k], width_));
      }
    }
  });
  for (size_t k = 0; k < candidates; ++k) {
    float& similarity = group.results[k]->similarity = -1.0f;
    for (size_t at = k; at < largest_.size(); at += candidates) similarity = std::max(similarity, largest_[at]);
  }
}

}  // namespace sluice
