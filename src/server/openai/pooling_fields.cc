// Texts and pairs of texts on their way to the engine, and scores on their way back.
#include "server/openai/pooling_fields.h"

#include <fmt/core.h>

#include <atomic>
#include <numeric>

namespace sluice::server {
namespace {

using Type = Parameter::Type;

void set_truncate(Fields& f, const Json& v) {
  f.of<PoolingFields>().truncate = v.get<int>();
  if (v == 0)
    throw invalid_value("truncate_prompt_tokens",
                        "Invalid 'truncate_prompt_tokens': expected -1 or at least 1, but got 0.");
}

constexpr Parameter kTruncation[] = {{.name = "truncate_prompt_tokens",
                                      .type = Type::kInteger,
                                      .min = -1,
                                      .max = kIntMax,
                                      .fallback = "none: longer texts are errors",
                                      .help = "cut texts off at the end to this many tokens; -1: the model's limit",
                                      .set = set_truncate}};

constexpr Parameter kActivation[] = {{.name = "use_activation",
                                      .type = Type::kBoolean,
                                      .fallback = "true",
                                      .help = "false: scores are logits",
                                      .set = assign<&PoolingFields::use_activation>}};

}  // namespace

std::span<const Parameter> truncation_parameter() { return kTruncation; }
std::span<const Parameter> activation_parameter() { return kActivation; }

PooledText encode_text(Call& call, std::string_view text, std::optional<std::string_view> pair,
                       const std::string& path) {
  const int context = call.info().max_model_len;
  const int asked = call.fields.of<PoolingFields>().truncate;
  if (asked == 0) check_text_length(text.size() + (pair ? pair->size() : 0), context, path);
  const int truncate = asked < 0 ? context : asked;
  if (truncate > context) {
    throw invalid_value("truncate_prompt_tokens",
                        fmt::format("Invalid 'truncate_prompt_tokens': the model's limit is {} tokens.", context));
  }
  try {
    return call.engine().encode(text, pair, truncate);
  } catch (const Error& e) {
    if (!e.param.empty()) throw;
    throw Error(e.code, e.what(), path, e.reason);
  }
}

void expect_scores(const Call& call) {
  const ModelInfo& model = call.info();
  if (model.task == Task::kGenerate) refuse_task(call, "score texts");
  if (model.task == Task::kScore && model.vector_size != 1) {
    refuse_task(call, fmt::format("give one score per pair of texts, but {} labels", model.vector_size));
  }
}

PoolingJob pairs_job(Call& call, const std::vector<std::pair<std::string, std::string>>& pairs,
                     const std::string& first, const std::string& second, bool one_to_all) {
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = {},
                             .param = second,
                             .dimensions = 0,
                             .normalize = true,
                             .activate = call.fields.of<PoolingFields>().use_activation,
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  const bool vectors = call.info().task == Task::kEmbed;
  const FieldPath field = second;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [a, b] = pairs[i];
    if (!vectors) {
      job.request.texts.push_back(encode_text(call, a, b, field[i]));
      continue;
    }
    if (i == 0 || !one_to_all) job.request.texts.push_back(encode_text(call, a, {}, first));
    job.request.texts.push_back(encode_text(call, b, {}, field[i]));
  }
  return job;
}

std::vector<float> scores_of(const PoolingResult& result, Task task, bool one_to_all) {
  std::vector<float> scores;
  if (task == Task::kScore) {
    for (const std::vector<float>& vector : result.vectors) scores.push_back(vector.front());
    return scores;
  }
  for (size_t i = 1; i < result.vectors.size(); i += one_to_all ? 1 : 2) {
    const std::vector<float>&a = result.vectors[one_to_all ? 0 : i - 1], &b = result.vectors[i];
    scores.push_back(static_cast<float>(std::inner_product(a.begin(), a.end(), b.begin(), 0.0)));
  }
  return scores;
}

Json usage_of(const PoolingResult& result) {
  return {{"prompt_tokens", result.prompt_tokens}, {"total_tokens", result.prompt_tokens}};
}

std::string next_id(std::string_view kind) {
  static std::atomic<uint64_t> next{0};
  return fmt::format("{}-{:x}", kind, next++);
}

}  // namespace sluice::server
