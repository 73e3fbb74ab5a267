// Reads and checks the vectors of prompts.
#include "engine/prompt_vectors.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "formats/torch/torch_file.h"
#include "sluice/error.h"

namespace sluice {
namespace {

[[noreturn]] void refuse_field(std::string_view param, std::string_view why, const char* reason = "invalid_value") {
  throw Error(ErrorCode::kInvalidRequest, fmt::format("Invalid '{}': {}", param, why), std::string(param), reason);
}

void check_width(int64_t width, const ModelInfo& model, const std::string& param) {
  if (model.prompt_vector_width == 0) {
    refuse_field(param, "vectors in place of token ids need --enable-prompt-embeds.", "unsupported_parameter");
  }
  if (width == model.prompt_vector_width) return;
  refuse_field(param, fmt::format("expected rows of {} values, the width of the model's embedding, but got {}.",
                                  model.prompt_vector_width, width));
}

bool is_float(DType type) {
  constexpr DType kFloats[] = {&kFloat32, &kBFloat16, &kFloat16, &kFloat64, &kFloat8E4M3, &kFloat8E5M2};
  return std::ranges::find(kFloats, type) != std::end(kFloats);
}

}  // namespace

std::shared_ptr<const PromptVectors> read_prompt_vectors(std::string_view file, const ModelInfo& model,
                                                         const std::string& param) {
  if (model.prompt_vector_width == 0) check_width(0, model, param);
  TorchFile read;
  try {
    read = read_torch_tensor(std::as_bytes(std::span(file)), fmt::format("Invalid '{}'", param));
  } catch (const Error& e) {
    throw Error(ErrorCode::kInvalidRequest, e.what(), param, "invalid_value");
  }
  const TensorEntry& tensor = read.entries.front();
  if (!is_float(tensor.dtype)) {
    refuse_field(param, fmt::format("the tensor's type is {} (expected a floating-point type).", tensor.dtype->name));
  }
  const int rank = tensor.shape.rank();
  if (rank != 2 && !(rank == 3 && tensor.shape[0] == 1)) {
    refuse_field(param, fmt::format("the tensor's shape is {} (expected [rows, {}]).", tensor.shape.str(),
                                    model.prompt_vector_width));
  }
  const int64_t rows = tensor.shape[rank - 2], width = tensor.shape[rank - 1];
  check_width(width, model, param);
  if (rows == 0) refuse_field(param, "the tensor has no rows.");
  if (rows > model.max_model_len) {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("This model's maximum context length is {} tokens. However, your {} has {} rows.",
                            model.max_model_len, param, rows),
                param, "context_length_exceeded");
  }
  std::vector<float> values(static_cast<size_t>(rows * width));
  to_float(tensor.dtype, tensor.data, values.data(), values.size());
  return std::make_shared<const PromptVectors>(static_cast<int>(width), std::move(values));
}

void check_prompt_vectors(const Request& request, const ModelInfo& model) {
  if (request.prompt_vectors == nullptr) return;
  const PromptVectors& vectors = *request.prompt_vectors;
  const std::string& param = request.prompt_param;
  check_width(vectors.width(), model, param);
  const auto excluded = [](const char* name, const char* why) { refuse_field(name, why, "unsupported_parameter"); };
  if (request.sampling.prompt_logprobs) {
    excluded("prompt_logprobs", "a prompt of vectors has no tokens with log probabilities.");
  }
  if (request.truncate_prompt) excluded("truncate_prompt_tokens", "a prompt of vectors has no tokens to cut off.");
  if (request.context_shift.value_or(false)) excluded("context_shift", "a prompt of vectors cannot be shortened.");
  if (request.kv_transfer) excluded("kv_transfer_params", "a prompt of vectors cannot be transferred.");
  if (request.pooling) excluded("pooling", "a prompt of vectors has no vector.");
  if (request.prompt.size() != static_cast<size_t>(vectors.rows()) ||
      std::ranges::any_of(request.prompt, [](TokenId id) { return id != 0; })) {
    refuse_field(param, fmt::format("expected {} token ids of 0 beside as many vectors.", vectors.rows()));
  }
  for (int row = 0; row < vectors.rows(); ++row) {
    if (std::ranges::all_of(vectors.values(row, 1), [](float value) { return std::isfinite(value); })) continue;
    refuse_field(param, fmt::format("row {} has values that are not finite.", row));
  }
}

std::shared_ptr<const PromptVectors> VectorMemory::hold(std::shared_ptr<const PromptVectors> vectors) {
  const size_t bytes = vectors->values().size_bytes();
  const size_t before = held_->fetch_add(bytes);
  const PromptVectors* all = vectors.get();
  std::shared_ptr<const PromptVectors> counted(
      all, [bytes, held = held_, vectors = std::move(vectors)](const PromptVectors*) { held->fetch_sub(bytes); });
  if (before > 0 && before + bytes > most_) {
    throw Error(ErrorCode::kOverloaded, "The server holds too many vectors of prompts. Please try again later.");
  }
  return counted;
}

}  // namespace sluice
