// Samplers that look at the text so far, and change the logits of single tokens.
#pragma once

#include <vector>

#include "batch/sample_task.h"
#include "ops/sample.h"

namespace sluice {

// The most edits that append_history_edits() adds.
size_t most_history_edits(const SampleTask& task);

// Adds what the samplers change. The changes of a token may be several. The task has its tokens.
void append_history_edits(const SampleTask& task, std::vector<ops::LogitEdit>& edits);

}  // namespace sluice
