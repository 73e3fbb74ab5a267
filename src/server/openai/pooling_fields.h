// What the endpoints of vectors and scores have in common.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/openai/shared_fields.h"

namespace sluice::server {

inline constexpr size_t kMostTexts = 2048;  // texts in one request

struct PoolingFields {
  Json input;                          // as the client wrote it
  bool base64 = false;                 // form of vectors
  int truncate = 0;                    // tokens of a text; -1: the model's limit; 0: longer texts are errors
  bool keep_end = false;               // the beginning of a longer text is cut off instead of its end
  std::optional<bool> use_activation;  // of scores, or normalization of vectors; none: as the model says
};

std::span<const Parameter> input_parameters();  // input, encoding_format
std::span<const Parameter> truncation_parameters();
std::span<const Parameter> pair_parameters();  // refused ones
std::span<const Parameter> activation_parameter();

// A text, or a pair, with what the model wants around it. Errors name `path`. Throws ApiError, Error.
PooledText encode_text(Call& call, std::string_view text, std::optional<std::string_view> pair,
                       const std::string& path);

// Whether the request has `messages` instead of `input`: a conversation is one text.
bool is_chat(Call& call);
// The texts of an input: a string, token ids, or a list of these. `before` goes before each text, but not before a
// conversation. Errors name `path`.
std::vector<PooledText> input_texts(Call& call, const Json& input, const std::string& before, const FieldPath& path);
// The model's prompt of that name, by default its default one. Throws ApiError that names prompt_name.
std::string prompt_text(Call& call, const std::optional<std::string>& prompt_name);
// Whether vectors are to be normalized, from `normalize` and vLLM's use_activation. Throws ApiError if they differ.
std::optional<bool> normalize_of(Call& call, std::optional<bool> normalize);
// A vector as JSON: the shortest decimals that round to the same fp32 values, or their bytes in base64.
std::string vector_text(std::span<const float> values, bool base64);

// Throws ApiError(unsupported_task) unless the model gives one score per pair, or vectors to compare.
void expect_scores(const Call& call);

// The request for scores of pairs. `first` and `second` are the fields of the pairs' texts, which errors name.
// `one_to_all`: all pairs have the same first text; an embedding model then reads it once.
PoolingJob pairs_job(Call& call, const std::vector<std::pair<std::string, std::string>>& pairs,
                     const std::string& first, const std::string& second, bool one_to_all);
// The score of each pair of a result, with the same `one_to_all`.
std::vector<float> scores_of(const PoolingResult& result, Task task, bool one_to_all);

Json usage_of(const PoolingResult& result);
std::string next_id(std::string_view kind);  // "rerank-1f"

}  // namespace sluice::server
