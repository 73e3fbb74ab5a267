// TEI's /embed and /similarity: vectors of texts, and how alike two texts are.
#include <array>

#include "server/members.h"
#include "server/tei/fields.h"
#include "sluice/dimensions.h"

namespace sluice::server::tei::embed {
namespace {

using Type = Parameter::Type;

struct EmbedFields {
  Json inputs;
  int dimensions = 0;
  bool normalize = true;
};
struct SimilarityFields {
  Json inputs;      // object
  Json parameters;  // object or null
};

constexpr auto kEmbed = std::to_array<Parameter>({
    {.name = "inputs",
     .type = Type::kAny,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "a string, token ids, or a list of these; at most 2048",
     .set = assign<&EmbedFields::inputs>},
    {.name = "normalize",
     .type = Type::kBoolean,
     .fallback = "true",
     .help = "divide vectors by their length",
     .set = assign<&EmbedFields::normalize>},
    {.name = "dimensions",
     .type = Type::kInteger,
     .min = 1,
     .max = kIntMax,
     .fallback = "the model's",
     .help = "give only this many leading dimensions; for models trained so (Matryoshka)",
     .set = assign<&EmbedFields::dimensions>},
});

constexpr auto kSimilarity = std::to_array<Parameter>({
    {.name = "inputs",
     .type = Type::kObject,
     .max_bytes = kTextsBytes,
     .required = true,
     .fallback = "required",
     .help = "source_sentence, a string, and sentences, a list of strings to compare with it",
     .set = assign<&SimilarityFields::inputs>},
    {.name = "parameters",
     .type = Type::kObject,
     .max_bytes = kLabelBytes,
     .fallback = "{}",
     .help = "truncate, truncation_direction, prompt_name",
     .set = assign<&SimilarityFields::parameters>},
});

void run_embed(Call& call) {
  const ModelInfo& model = call.info();
  if (!model.embeds()) refuse_task(call, "give embeddings");
  const auto& fields = call.fields.of<EmbedFields>();
  check_dimensions(model, fields.dimensions);
  const std::string before = prompt_text(call, call.fields.of<TeiFields>().prompt_name);
  PoolingJob job{.request = {.id = call.request_id,
                             .texts = input_texts(call, fields.inputs, before, "inputs"),
                             .param = "inputs",
                             .dimensions = fields.dimensions,
                             .normalize = fields.normalize,
                             .activate = {},
                             .deadline = call.deadline},
                 .body = {},
                 .headers = call.warnings()};
  job.body = [](const PoolingResult& result) {
    std::string out;
    for (const std::vector<float>& vector : result.vectors) {
      out += out.empty() ? '[' : ',';
      out += vector_text(vector, /*base64=*/false);
    }
    out += ']';
    return out;
  };
  call.embed(std::move(job));
}

void read_parameters_of(Call& call, const Json& parameters) {
  const std::array groups = {tei_truncation_parameters(), tei_prompt_parameter()};
  UnknownFields unknown;
  read_parameters(groups, parameters, call.info().vocab_size, call.fields, unknown);
  const FieldPath path = "parameters";
  for (const std::string& name : unknown.names()) call.unknown.add(path / name);
}

void run_similarity(Call& call) {
  if (!call.info().embeds()) refuse_task(call, "compare texts by their vectors");
  const auto& fields = call.fields.of<SimilarityFields>();
  if (fields.parameters.is_object()) read_parameters_of(call, fields.parameters);
  const FieldPath path = "inputs";
  const FieldPath sentences_path = path / "sentences";
  const std::string before = prompt_text(call, call.fields.of<TeiFields>().prompt_name);
  const std::string source = before + required_string(fields.inputs, "source_sentence", path);
  const Json& sentences =
      expect_array(required_member(fields.inputs, "sentences", path), sentences_path, 1, kMostTexts);
  note_unknown(fields.inputs, path, {"source_sentence", "sentences"}, call.unknown);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < sentences.size(); ++i) {
    pairs.emplace_back(source, before + expect_string(sentences[i], sentences_path[i]));
  }
  PoolingJob job = pairs_job(call, pairs, "inputs.source_sentence", "inputs.sentences", /*one_to_all=*/true);
  job.body = [](const PoolingResult& result) { return vector_text(scores_of(result, Task::kEmbed, true), false); };
  call.embed(std::move(job));
}

const EndpointInfo embed_endpoint{
    .name = "tei embed",
    .dialect = &kTei,
    .paths = {"/embed"},
    .flags = Route::kGenerates,
    .help = "vectors of texts, for TEI's clients",
    .parameters = {model_parameter(), kEmbed, tei_truncation_parameters(), tei_prompt_parameter()},
    .run = run_embed};
const EndpointInfo similarity_endpoint{.name = "tei similarity",
                                       .dialect = &kTei,
                                       .paths = {"/similarity"},
                                       .flags = Route::kGenerates,
                                       .help = "the cosine between a text and others, for TEI's clients",
                                       .parameters = {model_parameter(), kSimilarity},
                                       .run = run_similarity};
const Registry<EndpointInfo> registered_embed{embed_endpoint}, registered_similarity{similarity_endpoint};

}  // namespace
}  // namespace sluice::server::tei::embed
