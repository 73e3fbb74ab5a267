// Reads the options of embeddings and scores by rows, like the server; see pooling.h.
#include "binding/pooling.h"

#include <fmt/core.h>

#include <array>
#include <future>

#include "binding/call.h"
#include "server/openai/pooling_fields.h"
#include "sluice/dimensions.h"

namespace sluice::binding {
namespace {

using server::assign;
using server::Parameter;

struct PoolingOptions {
  int dimensions = 0;  // 0: all
  std::optional<bool> normalize;
  std::optional<std::string> prompt_name;
};

constexpr auto kOptions = std::to_array<Parameter>({
    {.name = "dimensions",
     .type = Parameter::Type::kInteger,
     .min = 1,
     .max = server::kIntMax,
     .set = assign<&PoolingOptions::dimensions>},
    {.name = "normalize", .type = Parameter::Type::kBoolean, .set = assign<&PoolingOptions::normalize>},
    {.name = "prompt_name",
     .type = Parameter::Type::kString,
     .max_bytes = server::kLabelBytes,
     .set = assign<&PoolingOptions::prompt_name>},
});

// The model's prompt of that name, or its default one. It goes before each text.
std::string prompt_before(const ModelInfo& model, const std::optional<std::string>& asked) {
  const std::string name = asked.value_or(model.default_prompt);
  if (name.empty()) return {};
  const auto found = model.prompts.find(name);
  if (found != model.prompts.end()) return found->second;
  throw server::invalid_value(
      "prompt_name", fmt::format("Invalid 'prompt_name': the model has no prompt '{}'.", server::quotable(name)));
}

PooledText encode(server::Call& call, const PoolingInput& input, const std::string& before, size_t index) {
  if (const auto* tokens = std::get_if<std::vector<TokenId>>(&input.text)) return {.tokens = *tokens, .types = {}};
  const auto& text = std::get<std::string>(input.text);
  if (input.pair) return encode_text(call, text, *input.pair, fmt::format("pairs[{}]", index));
  const std::string path = fmt::format("texts[{}]", index);
  if (text.empty()) throw server::invalid_value(path, fmt::format("Invalid '{}': it has no text.", path));
  return encode_text(call, before + text, {}, path);
}

}  // namespace

PoolingRequest read_pooling(Engine& engine, std::span<const PoolingInput> inputs, std::string_view options) {
  return with_call(engine, [&](DirectCall& direct) {
    server::Call& call = direct.call();
    const ModelInfo& model = engine.model();
    if (model.task == Task::kGenerate && !model.embeds()) server::refuse_task(call, "give vectors or scores");
    const std::vector<std::span<const Parameter>> rows = {kOptions, server::truncation_parameters(),
                                                          server::activation_parameter()};
    if (!options.empty()) direct.read(options, rows, {});
    const auto& fields = call.fields.of<PoolingOptions>();
    check_dimensions(model, fields.dimensions);
    call.warnings();  // throws for unknown fields
    const std::string before = model.task == Task::kEmbed ? prompt_before(model, fields.prompt_name) : "";
    PoolingRequest request{.id = call.request_id,
                           .texts = {},
                           .param = "texts",
                           .dimensions = fields.dimensions,
                           .normalize = server::normalize_of(call, fields.normalize),
                           .activate = call.fields.of<server::PoolingFields>().use_activation,
                           .deadline = {}};
    for (size_t i = 0; i < inputs.size(); ++i) request.texts.push_back(encode(call, inputs[i], before, i));
    return request;
  });
}

PoolingResult embed(Engine& engine, PoolingRequest request) {
  std::promise<PoolingResult> promise;
  engine.embed(std::move(request), [&](PoolingResult result) { promise.set_value(std::move(result)); });
  PoolingResult result = promise.get_future().get();
  if (result.reason == FinishReason::kError) throw Error(ErrorCode::kInternal, result.message);
  if (result.reason == FinishReason::kAbort) throw Error(ErrorCode::kInternal, "The engine was closed.");
  return result;
}

}  // namespace sluice::binding
