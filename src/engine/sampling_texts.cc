// Texts are tokenized once for each request that has some.
#include "engine/sampling_texts.h"

#include <fmt/core.h>

#include "sampling/steps.h"
#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse(std::string_view name, const char* code, const std::string& what) {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid '{}': {}", name, what), std::string(name), code);
}

void check(const SamplingTexts& row, const SharedList<std::string>& texts) {
  if (texts.size() > row.most) {
    refuse(row.name, "array_above_max_length",
           fmt::format("expected at most {} texts, but got {} instead.", row.most, texts.size()));
  }
  size_t bytes = 0;
  for (const std::string& text : texts) {
    if (text.empty()) refuse(row.name, "empty_string", "expected texts that are not empty.");
    bytes += text.size();
  }
  if (bytes <= kMaxStopBytes) return;
  refuse(row.name, "array_above_max_size",
         fmt::format("expected at most {} bytes of texts, but got {} instead.", kMaxStopBytes, bytes));
}

}  // namespace

void resolve_texts(SamplingParams& params, const Tokenizer&) {
  for (const SamplingTexts& row : kSamplingTexts) check(row, params.*row.field);
  const std::string error = error_of_order(params.samplers.items());
  if (!error.empty()) refuse("samplers", "invalid_value", error);
}

}  // namespace sluice
