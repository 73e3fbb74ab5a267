// /v1/embeddings, with OpenAI's fields and vLLM's; /rerank in the form of Cohere and Jina; /score in that of vLLM.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "server/openai/openai.h"
#include "server/openai/reading.h"

namespace sluice::server {
namespace {

static_assert(std::endian::native == std::endian::little, "vectors are sent as they lie in memory");

constexpr size_t kMostTexts = 2048;  // of one request
// Text of so many bytes per token of context cannot fit: refused before any time is spent on tokenizing it.
constexpr size_t kBytesPerToken = 16;
constexpr size_t kBytesAlways = 4096;

std::string base64(std::span<const float> values) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t j) { return j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u; };
    const uint32_t three = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t j = 0; j < 4; ++j) {
      const bool padding = i + j > bytes.size();
      out += padding ? '=' : kDigits[three >> (18 - 6 * j) & 63];
    }
  }
  return out;
}

// Shortest decimals that give the same fp32 again.
std::string numbers(std::span<const float> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", values[i]);
  }
  out += ']';
  return out;
}

std::string next_id(std::string_view kind) {
  static std::atomic<uint64_t> next{0};
  return fmt::format("{}-{:x}", kind, next++);
}

Json usage_of(const PoolingResult& result) {
  return {{"prompt_tokens", result.prompt_tokens}, {"total_tokens", result.prompt_tokens}};
}

bool all_integers(const Json& array) {
  return std::all_of(array.begin(), array.end(), [](const Json& v) { return v.is_number_integer(); });
}

std::vector<std::string> as_strings(const Json& value, const std::string& path) {
  if (value.is_string()) return {value.get<std::string>()};
  expect_array(value, path, 1, kMostTexts);
  return value.get<std::vector<std::string>>();
}

// The score of each pair of a result. Pairs of an embedding model are 0 and 1, 0 and 2, ... or 0 and 1, 2 and 3, ...
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

}  // namespace

// What the model is for, and what is asked of it.
void OpenAiApi::expect_task(Endpoint endpoint) const {
  const ModelInfo& model = engine_.model();
  const auto refuse = [&](std::string_view what) {
    throw ApiError{.message = fmt::format("The model '{}' does not {}: it is served for the task '{}'.", model_name(),
                                          what, to_string(model.task)),
                   .param = "model",
                   .code = "unsupported_task"};
  };
  if ((endpoint & kGeneration) != 0 && model.task != Task::kGenerate) refuse("generate text");
  if (endpoint == kEmbeddings && model.task != Task::kEmbed) refuse("give embeddings");
  if ((endpoint & (kRerank | kScores)) == 0) return;
  if (model.task == Task::kGenerate) refuse("score texts");
  if (model.task == Task::kScore && model.vector_size != 1) {
    refuse(fmt::format("score pairs of texts by one number but by {} labels", model.vector_size));
  }
}

PooledText OpenAiApi::encode(const Reading& reading, std::string_view text, std::optional<std::string_view> pair,
                             const std::string& path) const {
  const int context = engine_.model().max_model_len;
  const size_t bytes = text.size() + (pair ? pair->size() : 0);
  if (reading.fields.truncate == 0 && bytes > std::max(static_cast<size_t>(context) * kBytesPerToken, kBytesAlways)) {
    throw ApiError{
        .message = fmt::format("This model's maximum context length is {} tokens. However, '{}' has {} bytes "
                               "of text, which is more than {} tokens can hold.",
                               context, path, bytes, context),
        .param = path,
        .code = "context_length_exceeded"};
  }
  const int truncate = reading.fields.truncate < 0 ? context : reading.fields.truncate;
  if (truncate > context) {
    throw invalid_value("truncate_prompt_tokens",
                        fmt::format("Invalid 'truncate_prompt_tokens': the model's limit is {} tokens.", context));
  }
  try {
    return engine_.encode(text, pair, truncate);
  } catch (const Error& e) {
    if (!e.param.empty()) throw;
    throw Error(e.code, e.what(), path, e.reason);
  }
}

PoolingJob OpenAiApi::embeddings_job(const Reading& reading) const {
  const RequestFields& fields = reading.fields;
  const ModelInfo& model = engine_.model();
  const Json& input = fields.input;
  if (fields.dimensions > model.vector_size) {
    throw invalid_value("dimensions", fmt::format("Invalid 'dimensions': vectors of this model have {} dimensions.",
                                                  model.vector_size));
  }
  const std::string name = fields.prompt_name.value_or(model.default_prompt);
  std::string before;
  if (!name.empty()) {
    const auto found = model.prompts.find(name);
    if (found == model.prompts.end()) {
      throw invalid_value("prompt_name",
                          fmt::format("Invalid 'prompt_name': the model has no prompt '{}'.", quotable(name)));
    }
    before = found->second;
  }
  PoolingJob job{.request = {.id = reading.request_id,
                             .texts = {},
                             .param = "input",
                             .dimensions = fields.dimensions,
                             .normalize = fields.normalize,
                             .activate = {},
                             .deadline = reading.deadline},
                 .body = {},
                 .headers = {}};
  std::vector<PooledText>& texts = job.request.texts;
  const auto add = [&](const Json& value, const std::string& path) {
    if (value.is_array()) {
      return texts.push_back({.tokens = expect_token_ids(value, path, model.vocab_size), .types = {}});
    }
    const std::string& text = expect_string(value, path);
    if (text.empty()) throw invalid_value(path, fmt::format("Invalid '{}': it has no text.", path));
    texts.push_back(encode(reading, before + text, {}, path));
  };
  if (input.is_string() || (input.is_array() && !input.empty() && all_integers(input))) {
    add(input, "input");
  } else if (input.is_array()) {
    expect_array(input, "input", 1, kMostTexts);
    for (size_t i = 0; i < input.size(); ++i) add(input[i], fmt::format("input[{}]", i));
  } else {
    throw invalid_type("input", "a string or an array", input);
  }
  job.headers = judge_unknown(reading);
  job.body = [name = model_name(), base64_wanted = fields.base64](const PoolingResult& result) {
    std::string data;
    for (size_t i = 0; i < result.vectors.size(); ++i) {
      const std::vector<float>& vector = result.vectors[i];
      data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i > 0 ? "," : "", i,
                          base64_wanted ? fmt::format("\"{}\"", base64(vector)) : numbers(vector));
    }
    return fmt::format(R"({{"object":"list","data":[{}],"model":{},"usage":{}}})", data, dump_json(name),
                       dump_json(usage_of(result)));
  };
  return job;
}

// `first` and `second` are the paths of the pairs' texts, "{}" standing for the number.
PoolingJob OpenAiApi::pairs_job(const Reading& reading, const std::vector<std::pair<std::string, std::string>>& pairs,
                                const std::string& first, const std::string& second) const {
  PoolingJob job{.request = {.id = reading.request_id,
                             .texts = {},
                             .param = second,
                             .dimensions = 0,
                             .normalize = true,
                             .activate = reading.fields.use_activation,
                             .deadline = reading.deadline},
                 .body = {},
                 .headers = judge_unknown(reading)};
  const bool vectors = engine_.model().task == Task::kEmbed;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [a, b] = pairs[i];
    const std::string path = fmt::format("{}[{}]", second, i);
    if (!vectors) {
      job.request.texts.push_back(encode(reading, a, b, path));
      continue;
    }
    const bool again = i > 0 && a == pairs[0].first;  // its vector is there already
    if (!again || first != "query") job.request.texts.push_back(encode(reading, a, {}, first));
    job.request.texts.push_back(encode(reading, b, {}, path));
  }
  return job;
}

PoolingJob OpenAiApi::rerank_job(const Reading& reading) const {
  const RequestFields& fields = reading.fields;
  std::vector<std::pair<std::string, std::string>> pairs;
  std::vector<std::string> documents;
  const FieldPath field = "documents";
  for (size_t i = 0; i < fields.documents.size(); ++i) {
    const Json& document = fields.documents[i];
    const FieldPath path = field[i], text = path / "text";
    if (document.is_object() && !document.contains("text")) throw missing_parameter(text);
    documents.push_back(document.is_object() ? expect_string(document["text"], text) : expect_string(document, path));
    pairs.emplace_back(fields.query, documents.back());
  }
  PoolingJob job = pairs_job(reading, pairs, "query", "documents");
  if (!fields.return_documents) documents.clear();
  job.body = [name = model_name(), task = engine_.model().task, top_n = fields.top_n,
              documents = std::move(documents)](const PoolingResult& result) {
    const std::vector<float> scores = scores_of(result, task, true);
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    if (top_n > 0) order.resize(std::min(order.size(), static_cast<size_t>(top_n)));
    Json results = Json::array();
    for (const size_t i : order) {
      Json row = {{"index", i}};
      if (!documents.empty()) row["document"] = {{"text", documents[i]}};
      row["relevance_score"] = scores[i];
      results.push_back(std::move(row));
    }
    return dump_json(
        {{"id", next_id("rerank")}, {"model", name}, {"usage", usage_of(result)}, {"results", std::move(results)}});
  };
  return job;
}

PoolingJob OpenAiApi::score_job(const Reading& reading) const {
  const std::vector<std::string> first = as_strings(reading.fields.text_1, "text_1");
  const std::vector<std::string> second = as_strings(reading.fields.text_2, "text_2");
  if (first.size() != 1 && first.size() != second.size()) {
    throw invalid_value(
        "text_2", fmt::format("Invalid 'text_2': it has {} texts where 'text_1' has {}.", second.size(), first.size()));
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < second.size(); ++i) pairs.emplace_back(first[first.size() == 1 ? 0 : i], second[i]);
  PoolingJob job = pairs_job(reading, pairs, "text_1", "text_2");
  job.body = [name = model_name(), task = engine_.model().task,
              created = std::time(nullptr)](const PoolingResult& result) {
    const std::vector<float> scores = scores_of(result, task, false);
    Json data = Json::array();
    for (size_t i = 0; i < scores.size(); ++i) {
      data.push_back({{"index", i}, {"object", "score"}, {"score", scores[i]}});
    }
    return dump_json({{"id", next_id("score")},
                      {"object", "list"},
                      {"created", created},
                      {"model", name},
                      {"data", std::move(data)},
                      {"usage", usage_of(result)}});
  };
  return job;
}

}  // namespace sluice::server
