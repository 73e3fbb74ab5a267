// Finds the family that claims a configuration.
#include "nn/model.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "sluice/error.h"

namespace sluice {

namespace {

// "Qwen3" for "Qwen3ForSequenceClassification"; empty for other kinds of names.
std::string_view bare_name(std::string_view architecture) {
  for (const std::string_view suffix : {"ForSequenceClassification", "ForTextEmbedding", "Model"}) {
    if (architecture.ends_with(suffix)) return architecture.substr(0, architecture.size() - suffix.size());
  }
  return {};
}

// "Qwen3" for "Qwen3ForCausalLM", and "GPT2" for "GPT2LMHeadModel"; empty for other kinds of names.
std::string_view causal_name(std::string_view architecture) {
  for (const std::string_view suffix : {"ForCausalLM", "LMHeadModel"}) {
    if (architecture.ends_with(suffix)) return architecture.substr(0, architecture.size() - suffix.size());
  }
  return {};
}

// Whether `wanted` is the same model with another head, or without one. transformers calls the text decoders of some
// multimodal models "NameText", except with their own head.
bool claims(std::string_view architecture, std::string_view wanted) {
  constexpr std::string_view kText = "Text";
  const std::string_view name = causal_name(architecture);
  std::string_view bare = bare_name(wanted);
  if (name.empty() || bare.empty()) return false;
  if (name == bare) return true;
  if (!bare.ends_with(kText)) return false;
  bare.remove_suffix(kText.size());
  return name == bare;
}

std::string first_architecture(const Config& config) {
  const auto names = config.get("architectures", std::vector<std::string>{});
  return names.empty() ? std::string() : names.front();
}

}  // namespace

Task native_task(const ModelFamily& family, const Config& config) {
  const std::string name = first_architecture(config);
  if (name.ends_with("ForSequenceClassification")) return Task::kScore;
  if (family.encoder) return Task::kEmbed;
  // e.g. "ChatGLMModel"
  const bool listed = std::ranges::find(family.architectures, name) != family.architectures.end();
  return listed || bare_name(name).empty() ? Task::kGenerate : Task::kEmbed;
}

int read_labels(const Config& config) {
  constexpr int kDefault = 2;
  const Config labels = config.object("id2label");
  if (!config.has("id2label")) return std::max(1, config.get("num_labels", kDefault));
  return std::max(1, static_cast<int>(labels.values().size()));
}

const ModelFamily& find_family(const Config& config) {
  const auto wanted = config.get("architectures", std::vector<std::string>{});
  std::string known;
  const ModelFamily* found = nullptr;
  for (const ModelFamily* family : Registry<ModelFamily>::all()) {
    for (std::string_view architecture : family->architectures) {
      if (std::ranges::find(wanted, architecture) != wanted.end()) return *family;
      const auto claimed = [&](const std::string& name) { return claims(architecture, name); };
      if (found == nullptr && std::any_of(wanted.begin(), wanted.end(), claimed)) found = family;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", architecture);
    }
  }
  if (found != nullptr) return *found;
  if (wanted.empty()) config.refuse("architectures", "is missing; it must name the model's architecture");
  config.refuse("architectures", fmt::format("'{}' is not supported; supported: {}", wanted.front(), known));
}

}  // namespace sluice
