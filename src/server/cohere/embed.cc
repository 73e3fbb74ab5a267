// Cohere's POST /v2/embed and /v1/embed: vectors of texts, in several types at once.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "server/cohere/dialect.h"
#include "server/cohere/quantize.h"
#include "server/members.h"
#include "server/openai/pooling_fields.h"
#include "sluice/dimensions.h"

namespace sluice::server::cohere::embed {
namespace {

using Type = Parameter::Type;

struct CohereFields {
  Json texts, inputs;  // arrays or null
  std::optional<std::string> input_type;
  std::vector<std::string> types;
  int dimensions = 0;  // 0: all
  std::string truncate = "END";
  int max_tokens = 0;  // of a text; 0: as many as the model takes
};

std::string floats(std::span<const float> values) { return vector_text(values, /*base64=*/false); }
std::string base64(std::span<const float> values) { return vector_text(values, /*base64=*/true); }
template <std::vector<int> (*kQuantize)(std::span<const float>)>
std::string integers(std::span<const float> values) {
  return fmt::format("[{}]", fmt::join(kQuantize(values), ","));
}

struct VectorType {
  std::string_view name;
  std::string (*text)(std::span<const float> values);
  bool packs_bits = false;
};
constexpr VectorType kTypes[] = {{"float", floats},
                                 {"int8", integers<int8_of>},
                                 {"uint8", integers<uint8_of>},
                                 {"binary", integers<binary_of>, true},
                                 {"ubinary", integers<ubinary_of>, true},
                                 {"base64", base64}};

constexpr auto kTypeNames = [] {
  std::array<std::string_view, std::size(kTypes)> names;
  std::ranges::transform(kTypes, names.begin(), &VectorType::name);
  return names;
}();

const VectorType& type_of(std::string_view name) { return *std::ranges::find(kTypes, name, &VectorType::name); }

void set_types(Fields& f, const Json& v) {
  const FieldPath path = "embedding_types";
  std::vector<std::string>& types = f.of<CohereFields>().types;
  for (size_t i = 0; i < v.size(); ++i) {
    const FieldPath inner = path[i];
    const std::string& name = expect_string(v[i], inner);
    expect_one_of(name, inner, kTypeNames);
    if (std::ranges::find(types, name) == types.end()) types.push_back(name);
  }
}

void set_truncation(Fields& f, const Json& v) {
  const auto& name = v.get_ref<const std::string&>();
  constexpr std::string_view kEnds[] = {"NONE", "START", "END"};
  expect_one_of(name, "truncate", kEnds);
  f.of<CohereFields>().truncate = name;
}

constexpr auto kParameters = std::to_array<Parameter>({
    {.name = "texts",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextsBytes,
     .fallback = "required, unless there are inputs",
     .help = "strings",
     .set = assign<&CohereFields::texts>},
    {.name = "inputs",
     .type = Type::kArray,
     .min_items = 1,
     .max_items = kMostTexts,
     .max_bytes = kTextsBytes,
     .fallback = "none",
     .help = "instead of texts: objects whose content is a list of parts of type text",
     .set = assign<&CohereFields::inputs>},
    {.name = "input_type",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "the model's default prompt",
     .help = "search_document, search_query, classification, clustering, or the name of one of the model's prompts, "
             "which goes before texts; a model without such a prompt reads texts as they are",
     .set = assign<&CohereFields::input_type>},
    {.name = "embedding_types",
     .type = Type::kArray,
     .max_items = 16,
     .max_bytes = kLabelBytes,
     .fallback = "[\"float\"]",
     .help = "float, int8, uint8, binary, ubinary, base64",
     .set = set_types},
    {.name = "output_dimension",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions; for models trained so (Matryoshka)",
     .set = assign<&CohereFields::dimensions>},
    {.name = "truncate",
     .type = Type::kString,
     .max_bytes = kLabelBytes,
     .fallback = "END",
     .help = "which end of a longer text is cut off: START or END; NONE: longer texts are errors",
     .set = set_truncation},
    {.name = "max_tokens",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's limit",
     .help = "tokens of a text",
     .set = assign<&CohereFields::max_tokens>},
    refused("images", "[[]]", "This model reads text"),
    refused("priority", "[0]"),
});

// The prompts that stand for Cohere's kinds of texts, in the order in which they are looked for.
struct Kind {
  std::string_view name;
  std::array<std::string_view, 3> prompts;
};
constexpr Kind kKinds[] = {{"search_query", {"search_query", "query", "query"}},
                           {"search_document", {"search_document", "document", "passage"}},
                           {"classification", {"classification", "classification", "classification"}},
                           {"clustering", {"clustering", "clustering", "clustering"}}};

// What goes before each text.
std::string before_texts(Call& call) {
  const std::optional<std::string>& type = call.fields.of<CohereFields>().input_type;
  const auto& prompts = call.info().prompts;
  if (!type || prompts.contains(*type)) return prompt_text(call, type);
  const auto* const kind = std::ranges::find(kKinds, *type, &Kind::name);
  if (kind == std::end(kKinds)) {
    std::string known = "search_query, search_document, classification, clustering";
    for (const auto& [name, text] : prompts) known += ", " + name;
    throw invalid_value("input_type",
                        fmt::format("Unsupported input_type '{}'. Supported values: {}", quotable(*type), known));
  }
  for (const std::string_view name : kind->prompts) {
    if (const auto found = prompts.find(std::string(name)); found != prompts.end()) return found->second;
  }
  return {};
}

std::string part_text(const Json& part, const FieldPath& path, UnknownFields& unknown) {
  expect_object(part, path);
  const std::string& type = required_string(part, "type", path);
  if (type != "text") {
    throw unsupported_parameter(path, fmt::format("is of type '{}': this model reads text", quotable(type)));
  }
  note_unknown(part, path, {"type", "text"}, unknown);
  return required_string(part, "text", path);
}

// The texts of `inputs`, each of one or more parts.
Json texts_of(Call& call, const Json& inputs) {
  const FieldPath field = "inputs";
  Json texts = Json::array();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const FieldPath path = field[i];
    note_unknown(expect_object(inputs[i], path), path, {"content"}, call.unknown);
    const Json& content = required_member(inputs[i], "content", path);
    texts.push_back(joined_text(content, path / "content", call.unknown, 1, part_text));
  }
  return texts;
}

void expect_strings(const Json& texts) {
  const FieldPath path = "texts";
  for (size_t i = 0; i < texts.size(); ++i) expect_string(texts[i], path[i]);
}

// Without truncation, texts of more tokens than the request allows are errors.
void check_limits(Call& call, const std::vector<PooledText>& texts) {
  const auto& fields = call.fields.of<CohereFields>();
  for (size_t i = 0; i < texts.size(); ++i) {
    const size_t tokens = texts[i].tokens.size();
    if (fields.max_tokens == 0 || tokens <= static_cast<size_t>(fields.max_tokens)) continue;
    const FieldPath field = fields.texts.is_array() ? "texts" : "inputs", path = field[i];
    throw invalid_value(path, fmt::format("Invalid '{}': it has {} tokens, which is more than 'max_tokens', {}. Set "
                                          "'truncate' to START or END to have it cut.",
                                          path.str(), tokens, fields.max_tokens));
  }
}

void check(Call& call) {
  const auto& fields = call.fields.of<CohereFields>();
  const ModelInfo& model = call.info();
  if (!model.embeds()) refuse_task(call, "give embeddings");
  check_dimensions(model, fields.dimensions, "output_dimension");
  if (fields.texts.is_array() && fields.inputs.is_array()) {
    throw ApiError{.message = "Setting both 'texts' and 'inputs' is not supported.",
                   .param = "inputs",
                   .code = "invalid_parameter_combination"};
  }
  if (!fields.texts.is_array() && !fields.inputs.is_array()) throw missing_parameter("texts");
  const int size = fields.dimensions > 0 ? fields.dimensions : model.vector_size;
  for (const std::string& type : fields.types) {
    if (!type_of(type).packs_bits || size % 8 == 0) continue;
    throw invalid_value("embedding_types",
                        fmt::format("Invalid 'embedding_types': '{}' packs 8 values into a byte, but "
                                    "vectors have {} dimensions.",
                                    type, size));
  }
}

std::string vectors_text(const PoolingResult& result, const VectorType& type) {
  std::string out;
  for (const std::vector<float>& vector : result.vectors) {
    out += out.empty() ? '[' : ',';
    out += type.text(vector);
  }
  return out + ']';
}

std::string answer_text(const PoolingResult& result, int version, const std::string& id, const std::string& texts,
                        std::vector<std::string> types) {
  const bool by_type = version > 1 || !types.empty();
  if (types.empty()) types.emplace_back("float");
  std::string embeddings;
  for (const std::string& type : types) {
    const std::string vectors = vectors_text(result, type_of(type));
    embeddings += by_type ? fmt::format(R"({}"{}":{})", embeddings.empty() ? "" : ",", type, vectors) : vectors;
  }
  return fmt::format(
      R"({{"id":{},"response_type":"{}","embeddings":{}{}{},"texts":{},)"
      R"("meta":{{"api_version":{{"version":"{}"}},"billed_units":{{"input_tokens":{},"image_tokens":0}}}}}})",
      dump_json(id), by_type ? "embeddings_by_type" : "embeddings_floats", by_type ? "{" : "", embeddings,
      by_type ? "}" : "", texts, version, result.prompt_tokens);
}

template <int kVersion>
void run(Call& call) {
  check(call);
  const auto& fields = call.fields.of<CohereFields>();
  const std::string field = fields.texts.is_array() ? "texts" : "inputs";
  const bool cuts = fields.truncate != "NONE";
  auto& pooling = call.fields.of<PoolingFields>();
  pooling.keep_end = fields.truncate == "START";
  if (cuts) pooling.truncate = fields.max_tokens > 0 ? std::min(fields.max_tokens, call.info().max_model_len) : -1;
  if (fields.texts.is_array()) expect_strings(fields.texts);
  const Json texts = fields.texts.is_array() ? fields.texts : texts_of(call, fields.inputs);
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = input_texts(call, texts, before_texts(call), field),
                             .param = field,
                             .dimensions = fields.dimensions,
                             .normalize = {},
                             .activate = {},
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  if (!cuts) check_limits(call, job.request.texts);
  job.body = [id = "embd-" + call.request_id, texts = dump_json(texts), types = fields.types](
                 const PoolingResult& result) { return answer_text(result, kVersion, id, texts, types); };
  call.embed(std::move(job));
}

const EndpointInfo v2{.name = "cohere embed",
                      .dialect = &kCohere,
                      .paths = {"/v2/embed"},
                      .flags = Route::kGenerates,
                      .help = "vectors of texts, for Cohere's clients",
                      .parameters = {model_parameter(), kParameters},
                      .run = run<2>};
const EndpointInfo v1{.name = "cohere embed v1",
                      .dialect = &kCohere,
                      .paths = {"/v1/embed"},
                      .flags = Route::kGenerates,
                      .help = "the same in the first version of Cohere's API",
                      .parameters = {model_parameter(), kParameters},
                      .run = run<1>};
const Registry<EndpointInfo> registered_v2{v2}, registered_v1{v1};

}  // namespace
}  // namespace sluice::server::cohere::embed
