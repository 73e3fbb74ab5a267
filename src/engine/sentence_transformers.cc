// Reads sentence-transformers' files in old and new spellings.
#include "engine/sentence_transformers.h"

#include <fmt/core.h>

#include <array>
#include <filesystem>
#include <utility>

#include "base/json.h"
#include "formats/checkpoint.h"
#include "nn/decoder_config.h"
#include "sluice/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using ops::Pooling;

[[noreturn]] void corrupt(const fs::path& file, const std::string& message) {
  throw Error(ErrorCode::kCorruptFile, fmt::format("{}: {}", file.string(), message));
}

bool present(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

// Resolves a path of modules.json; refuses paths that leave the model's folder.
fs::path below(const fs::path& folder, const fs::path& file, const std::string& name) {
  const fs::path relative = fs::path(name).lexically_normal();
  if (relative.is_absolute() || (!relative.empty() && *relative.begin() == "..")) {
    corrupt(file, fmt::format("path {} leaves the model's folder", dump_json(name)));
  }
  return folder / relative;
}

// "sentence_transformers.models.Pooling" -> "Pooling"
std::string last_word(const std::string& type) { return type.substr(type.rfind('.') + 1); }

Pooling parse_pooling(const Config& config, const char* key, const std::string& name) {
  constexpr std::pair<const char*, Pooling> kNames[] = {{"cls", Pooling::kFirst},
                                                        {"mean", Pooling::kMean},
                                                        {"max", Pooling::kMax},
                                                        {"mean_sqrt_len_tokens", Pooling::kMeanSqrtLength},
                                                        {"weightedmean", Pooling::kWeightedMean},
                                                        {"lasttoken", Pooling::kLast}};
  for (const auto& [known, pooling] : kNames) {
    if (name == known) return pooling;
  }
  config.refuse(key,
                fmt::format("unknown value '{}' (expected one of: cls, mean, max, mean_sqrt_len_tokens, weightedmean, "
                            "lasttoken)",
                            name));
}

Pooling read_pooling(const Config& config) {
  constexpr std::pair<const char*, const char*> kFlags[] = {
      {"pooling_mode_cls_token", "cls"},
      {"pooling_mode_mean_tokens", "mean"},
      {"pooling_mode_max_tokens", "max"},
      {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"},
      {"pooling_mode_weightedmean_tokens", "weightedmean"},
      {"pooling_mode_lasttoken", "lasttoken"}};
  for (const char* key : {"word_embedding_dimension", "embedding_dimension"}) config.ignore(key);
  if (!config.get("include_prompt", true)) config.refuse("include_prompt", "false is not supported");
  std::optional<std::string> found;
  for (const auto& [key, name] : kFlags) {
    if (!config.get(key, false)) continue;
    if (found) config.refuse(key, fmt::format("combining it with {} pooling is not supported", *found));
    found = name;
  }
  const auto mode = config.get("pooling_mode", found.value_or("mean"));
  if (found && mode != *found) config.refuse("pooling_mode", fmt::format("'{}' contradicts {}", mode, *found));
  refuse_unread(config);
  return parse_pooling(config, "pooling_mode", mode);
}

DenseSpec read_dense(const Config& config, int inputs) {
  const int stored = config.at<int>("in_features");
  if (stored != inputs)
    config.refuse("in_features", fmt::format("is {}, but the layer's input has {} columns", stored, inputs));
  DenseSpec spec{.name = "linear", .outputs = config.at<int>("out_features"), .bias = config.get("bias", true)};
  if (spec.outputs < 1) config.refuse("out_features", "is not positive");
  constexpr std::pair<const char*, ops::Activation> kActivations[] = {
      {"Identity", ops::Activation::kIdentity}, {"Tanh", ops::Activation::kTanh},
      {"ReLU", ops::Activation::kRelu},         {"GELU", ops::Activation::kGelu},
      {"SiLU", ops::Activation::kSilu},         {"Sigmoid", ops::Activation::kSigmoid}};
  const auto activation = config.get("activation_function", std::string("torch.nn.modules.activation.Tanh"));
  for (const auto& [name, known] : kActivations) {
    if (last_word(activation) != name) continue;
    spec.activation = known;
    return spec;
  }
  config.refuse("activation_function", fmt::format("'{}' is not supported", activation));
}

void read_modules(const fs::path& folder, EmbeddingFiles& files) {
  const fs::path file = folder / "modules.json";
  const Json modules = read_json_file(file.string());
  if (!modules.is_array()) corrupt(file, "expected an array");
  for (const Json& module : modules) {
    if (!module.is_object() || !module.contains("type") || !module["type"].is_string()) {
      corrupt(file, "a module has no 'type'");
    }
    const auto type = module["type"].get<std::string>();
    const std::string name = last_word(type);
    const std::string path =
        module.contains("path") && module["path"].is_string() ? module["path"].get<std::string>() : std::string();
    const fs::path place = below(folder, file, path);
    const auto refuse = [&](const std::string& message) {
      throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: module {}: {}", file.string(), type, message));
    };
    if (name == "Transformer") {
      if (!path.empty()) refuse("a transformer that is not at the top of the folder is not supported");
    } else if (files.normalize) {
      refuse("a module after Normalize is not supported");
    } else if (name == "Pooling") {
      if (files.pooling) refuse("a second pooling is not supported");
      files.pooling = read_pooling(read_config((place / "config.json").string()));
    } else if (name == "Normalize") {
      files.normalize = true;
    } else if (name == "Dense" && files.pooling) {
      files.dense_folders.push_back(place.string());
    } else if (name != "Dropout") {  // Dropout only acts in training
      refuse("is not supported");
    }
  }
}

void read_prompts(const fs::path& file, EmbeddingFiles& files) {
  const Config config = read_config(file.string());
  if (const Json* prompts = config.find("prompts")) {
    if (!prompts->is_object()) config.refuse("prompts", "expected an object");
    for (const auto& [name, text] : prompts->items()) {
      if (text.is_null()) continue;
      if (!text.is_string()) config.refuse("prompts", fmt::format("expected a string as {}", dump_json(name)));
      files.prompts[name] = text.get<std::string>();
    }
  }
  files.default_prompt = config.get("default_prompt_name", std::string());
  if (!files.default_prompt.empty() && !files.prompts.contains(files.default_prompt)) {
    config.refuse("default_prompt_name", fmt::format("'{}' is not among the prompts", files.default_prompt));
  }
  files.truncate_dim = config.get("truncate_dim", 0);
  if (files.truncate_dim < 0) config.refuse("truncate_dim", "is negative");
}

}  // namespace

ScoreActivation read_score_activation(const Config& config) {
  const ScoreActivation usual = read_labels(config) == 1 ? ScoreActivation::kSigmoid : ScoreActivation::kSoftmax;
  const Config modern = config.object("sentence_transformers");
  modern.ignore("version");
  const auto old = config.get("sbert_ce_default_activation_function", std::string());
  const auto name = last_word(modern.get("activation_fn", old));
  refuse_unread(modern);
  if (name == "Identity") return ScoreActivation::kNone;
  if (name == "Sigmoid") return ScoreActivation::kSigmoid;
  if (name == "Softmax") return ScoreActivation::kSoftmax;
  if (!name.empty()) {
    config.refuse(old.empty() ? "sentence_transformers" : "sbert_ce_default_activation_function",
                  fmt::format("'{}' is not supported", name));
  }
  const auto problem = config.get("problem_type", std::string());
  if (problem == "regression") return ScoreActivation::kNone;
  return problem == "multi_label_classification" ? ScoreActivation::kSigmoid : usual;
}

namespace {

// config.json declares it by keys that vLLM also reads.
void read_matryoshka(const Config& config, EmbeddingFiles& files) {
  files.matryoshka_dimensions = config.get("matryoshka_dimensions", std::vector<int>{});
  for (const int size : files.matryoshka_dimensions) {
    if (size < 1) config.refuse("matryoshka_dimensions", fmt::format("{} is not positive", size));
  }
  files.matryoshka = config.get("is_matryoshka", !files.matryoshka_dimensions.empty()) || files.truncate_dim > 0;
}

EmbeddingFiles read_files(const Checkpoint& checkpoint) {
  const fs::path folder = checkpoint.folder;
  EmbeddingFiles files;
  if (!checkpoint.pooling.empty()) {  // GGUF: one file has everything; embeddings have length 1, as in llama.cpp
    return {.present = true,
            .pooling = parse_pooling(checkpoint.config, "pooling", checkpoint.pooling),
            .dense_tensors = checkpoint.config.get("sentence_transformers_dense", std::vector<std::string>{}),
            .normalize = true};
  }
  files.present = present(folder / "modules.json");
  if (!files.present) return files;
  read_modules(folder, files);
  const fs::path prompts = folder / "config_sentence_transformers.json", lengths = folder / "sentence_bert_config.json";
  if (present(prompts)) read_prompts(prompts, files);
  if (present(lengths)) {
    const Config config = read_config(lengths.string());
    files.max_seq_length = config.get("max_seq_length", 0);
    if (files.max_seq_length < 0) config.refuse("max_seq_length", "is negative");
  }
  return files;
}

}  // namespace

EmbeddingFiles read_embedding_files(const Checkpoint& checkpoint) {
  EmbeddingFiles files = read_files(checkpoint);
  read_matryoshka(checkpoint.config, files);
  return files;
}

std::vector<Dense> load_dense(const EmbeddingFiles& files, LoadContext& context, int inputs) {
  std::vector<Dense> layers;
  for (const std::string& name : files.dense_tensors) {
    const TensorEntry* weight = context.checkpoint.find(name + ".weight");
    const int outputs = weight != nullptr && weight->shape.rank() == 2 ? static_cast<int>(weight->shape[0]) : inputs;
    layers.emplace_back(Weights(context), DenseSpec{.name = name, .outputs = outputs, .bias = false}, inputs);
    inputs = outputs;
  }
  for (const std::string& folder : files.dense_folders) {
    const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder);
    LoadContext own{.checkpoint = *checkpoint,
                    .queue = context.queue,
                    .ops = context.ops,
                    .dtype = context.dtype,
                    .task = context.task,
                    .dry = context.dry};
    layers.emplace_back(Weights(own), read_dense(checkpoint->config, inputs), inputs);
    own.finish();
    checkpoint->check_files();
    context.weight_bytes += own.weight_bytes;
    context.parameters += own.parameters;
    inputs = layers.back().outputs();
  }
  return layers;
}

}  // namespace sluice
