// /v1/embeddings, with OpenAI's fields and vLLM's.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>

#include "server/openai/pooling_fields.h"
#include "sluice/dimensions.h"

namespace sluice::server::openai::embeddings {
namespace {

static_assert(std::endian::native == std::endian::little, "vectors are sent as they lie in memory");

using Type = Parameter::Type;

struct EmbeddingFields {
  Json input;
  int dimensions = 0;  // 0: all
  std::optional<bool> normalize;
  bool base64 = false;
  std::optional<std::string> prompt_name;
};

void set_encoding_format(Fields& f, const Json& v) {
  const auto& name = v.get_ref<const std::string&>();
  f.of<EmbeddingFields>().base64 = name == "base64";
  if (name == "base64" || name == "float") return;
  throw invalid_value("encoding_format",
                      fmt::format("Invalid value: '{}'. Supported values are: 'float', 'base64'.", quotable(name)));
}

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "input",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a string, an array of strings, an array of token ids or an array of arrays of token ids; at most 2048 "
             "texts",
     .set = assign<&EmbeddingFields::input>},
    {.name = "encoding_format",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "float",
     .help = "float: numbers; base64: fp32, little endian",
     .set = set_encoding_format},
    {.name = "dimensions",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions, normalized again; for models trained so (Matryoshka)",
     .set = assign<&EmbeddingFields::dimensions>},
    {.name = "normalize",
     .type = Type::kBoolean,
     .fallback = "the model's",
     .help = "divide vectors by their length",
     .set = assign<&EmbeddingFields::normalize>},
    {.name = "prompt_name",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "the model's",
     .help = "which of the model's prompts to put before texts (config_sentence_transformers.json); an empty string: "
             "none",
     .set = assign<&EmbeddingFields::prompt_name>},
});

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

// Prints the shortest decimals that round to the same fp32 values.
std::string numbers(std::span<const float> values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    fmt::format_to(std::back_inserter(out), "{}", values[i]);
  }
  out += ']';
  return out;
}

bool all_integers(const Json& array) {
  return std::all_of(array.begin(), array.end(), [](const Json& v) { return v.is_number_integer(); });
}

// Returns the model's prompt that the request names. It goes before each text.
std::string prompt_of(const Call& call, const EmbeddingFields& fields) {
  const ModelInfo& model = call.info();
  const std::string name = fields.prompt_name.value_or(model.default_prompt);
  if (name.empty()) return {};
  const auto found = model.prompts.find(name);
  if (found == model.prompts.end()) {
    throw invalid_value("prompt_name",
                        fmt::format("Invalid 'prompt_name': the model has no prompt '{}'.", quotable(name)));
  }
  return found->second;
}

std::vector<PooledText> read_texts(Call& call, const EmbeddingFields& fields) {
  const std::string before = prompt_of(call, fields);
  const Json& input = fields.input;
  std::vector<PooledText> texts;
  const auto add = [&](const Json& value, const FieldPath& path) {
    if (value.is_array()) {
      texts.push_back({.tokens = expect_token_ids(value, path, call.info().vocab_size), .types = {}});
      return;
    }
    const std::string& text = expect_string(value, path);
    if (text.empty()) throw invalid_value(path, fmt::format("Invalid '{}': it has no text.", path.str()));
    texts.push_back(encode_text(call, before + text, {}, path));
  };
  const FieldPath path = "input";
  if (input.is_string() || (input.is_array() && !input.empty() && all_integers(input))) {
    add(input, path);
  } else if (input.is_array()) {
    expect_array(input, path, 1, kMostTexts);
    for (size_t i = 0; i < input.size(); ++i) add(input[i], path[i]);
  } else {
    throw invalid_type(path, "a string or an array", input);
  }
  return texts;
}

void run(Call& call) {
  const ModelInfo& model = call.info();
  if (model.task != Task::kEmbed) refuse_task(call, "give embeddings");
  const auto& fields = call.fields.of<EmbeddingFields>();
  check_dimensions(model, fields.dimensions);
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = read_texts(call, fields),
                             .param = "input",
                             .dimensions = fields.dimensions,
                             .normalize = fields.normalize,
                             .activate = {},
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  job.body = [name = call.model.name, base64_wanted = fields.base64](const PoolingResult& result) {
    std::string data;
    for (size_t i = 0; i < result.vectors.size(); ++i) {
      const std::vector<float>& vector = result.vectors[i];
      data += fmt::format(R"({}{{"object":"embedding","index":{},"embedding":{}}})", i > 0 ? "," : "", i,
                          base64_wanted ? fmt::format("\"{}\"", base64(vector)) : numbers(vector));
    }
    return fmt::format(R"({{"object":"list","data":[{}],"model":{},"usage":{}}})", data, dump_json(name),
                       dump_json(usage_of(result)));
  };
  call.embed(std::move(job));
}

const EndpointInfo endpoint{.name = "embeddings",
                            .dialect = &kOpenAi,
                            .paths = {"/v1/embeddings", "/embeddings"},
                            .flags = Route::kGenerates,
                            .help = "vectors of texts",
                            .parameters = {model_parameter(), kParameters, truncation_parameter(), label_parameter()},
                            .run = run};
const Registry<EndpointInfo> registered{endpoint};

}  // namespace
}  // namespace sluice::server::openai::embeddings
