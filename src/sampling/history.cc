// One row for each sampler. All take time linear in the text.
#include "sampling/history.h"

#include <initializer_list>

namespace sluice {
namespace {

using Edits = std::vector<ops::LogitEdit>;

struct History {
  bool (*on)(const SamplingParams& params);
  size_t (*most)(const SampleTask& task);
  void (*append)(const SampleTask& task, Edits& edits);
};

constexpr std::initializer_list<History> kSamplers = {};

}  // namespace

size_t most_history_edits(const SampleTask& task) {
  size_t most = 0;
  for (const History& sampler : kSamplers) {
    if (task.tokens != nullptr && sampler.on(*task.params)) most += sampler.most(task);
  }
  return most;
}

void append_history_edits(const SampleTask& task, Edits& edits) {
  for (const History& sampler : kSamplers) {
    if (sampler.on(*task.params)) sampler.append(task, edits);
  }
}

}  // namespace sluice
