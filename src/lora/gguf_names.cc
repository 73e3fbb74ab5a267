// Gives the modules of an adapter from GGUF Hugging Face's names, and the rows of their B Hugging Face's order, by the
// rules of the model's own tensors (formats/gguf/architecture.h). B has the rows of the matrix that it changes.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/registry.h"
#include "formats/gguf/format.h"
#include "formats/gguf/outline.h"
#include "formats/gguf/tensors.h"
#include "lora/adapter_formats.h"
#include "sluice/error.h"

namespace sluice::gguf_names {
namespace {

constexpr std::string_view kWeight = ".weight";

std::string without_weight(std::string name) {
  if (name.ends_with(kWeight)) name.resize(name.size() - kWeight.size());
  return name;
}

[[noreturn]] void refuse(const Adapter& adapter, const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: {}", adapter.folder, why));
}

[[noreturn]] void refuse_architecture(const Adapter& adapter, std::string_view model) {
  refuse(adapter, fmt::format("metadata \"general.architecture\": the adapter is for {}, but the model is {}",
                              dump_json(adapter.gguf), model));
}

// llama.cpp calls Mistral's models llama.
bool same_architecture(const Json& translated, const Config& config) {
  const std::string theirs = translated.at("architectures").at(0).get<std::string>();
  const auto own = config.get("architectures", std::vector<std::string>{});
  const auto has = [&](std::string_view name) { return std::ranges::find(own, name) != own.end(); };
  return has(theirs) || (theirs == "LlamaForCausalLM" && has("MistralForCausalLM"));
}

// The rules for a model. `outline` holds what they refer to.
GgufConfig rules_for(const Adapter& adapter, const Checkpoint& model, std::unique_ptr<GgufOutline>& outline) {
  const GgufArchitecture* architecture = Registry<GgufArchitecture>::find(adapter.gguf);
  if (const GgufFile* own = gguf_file_of(model); own != nullptr) {
    const std::string_view name = own->metadata.required_text("general.architecture");
    if (architecture == nullptr || name != adapter.gguf) refuse_architecture(adapter, dump_json(std::string(name)));
    GgufConfig config(*own, adapter.gguf);
    architecture->configure(config);
    return config;
  }
  const auto own = model.config.get("architectures", std::vector<std::string>{""}).front();
  if (architecture == nullptr) refuse_architecture(adapter, own);
  outline = std::make_unique<GgufOutline>(model.config, adapter.gguf);
  GgufConfig config(outline->file(), adapter.gguf);
  try {
    architecture->configure(config);
  } catch (const Error& e) {
    refuse(adapter, fmt::format("adapters of {} in GGUF need a model in GGUF: {}", dump_json(adapter.gguf), e.what()));
  }
  if (!same_architecture(config.hf, model.config)) refuse_architecture(adapter, own);
  return config;
}

class Names {
 public:
  Names(const Adapter& adapter, GgufConfig config) : adapter_(adapter), config_(std::move(config)) {
    config_.scalars.clear();
  }

  std::vector<Adapter::Module> take() {
    if (!halves_.empty()) refuse(halves_.front(), "needs its gate or up counterpart beside it");
    std::ranges::sort(named_, {}, &Adapter::Module::name);
    const auto twice = std::ranges::adjacent_find(named_, {}, &Adapter::Module::name);
    if (twice != named_.end()) refuse(*twice, "is changed by two tensors");
    return std::move(named_);
  }

  void add(Adapter::Module module) {
    const GgufTensors::Name name = GgufTensors::parse(module.name);
    const TensorRule* rule = GgufTensors::rule_of(config_, name.base);
    if (rule == nullptr) refuse(module, "is not one that this architecture has");
    std::string hf(rule->hf);
    if (const size_t at = hf.find("{}"); at != std::string::npos) hf.replace(at, 2, name.layer);
    const bool half = rule->form == TensorForm::kGateRows || rule->form == TensorForm::kUpRows;
    if (module.name.find("_exps.") != std::string::npos) return add_experts(std::move(module), name.base, hf);
    if (half) return add_half(std::move(module), rule->form == TensorForm::kUpRows, hf);
    add_matrix(module);
  }

 private:
  [[noreturn]] void refuse(const Adapter::Module& module, const std::string& why) const {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: tensor {} {}", adapter_.folder, dump_json(module.name), why));
  }

  // The rows of B go where the rows of the model's matrix go. Rows may be divided among several modules.
  void add_matrix(const Adapter::Module& module) {
    GgufFile file;
    file.metadata.file = adapter_.folder;
    file.tensors.push_back({.name = module.name,
                            .dtype = &kFloat32,
                            .shape = {module.outputs, module.rank},
                            .data = reinterpret_cast<const std::byte*>(module.b.data()),
                            .bytes = module.b.size() * sizeof(float)});
    GgufTensors translated(file, config_);
    auto found = translated.take();
    if (found.empty()) refuse(module, "is of a layer that is not computed");
    for (auto& [name, entry] : found) {
      if (std::exchange(entry.transposed, false)) entry.shape = {entry.shape[1], entry.shape[0]};
      Adapter::Module& out = named_.emplace_back(module);
      out.name = without_weight(name);
      out.b.resize(static_cast<size_t>(entry.shape.elements()));
      entry.read(out.b.data());
      out.outputs = entry.shape.elements() / module.rank;
    }
  }

  // Modules of single experts, which have names in every layout of the experts (nn/moe/expert_adapters.h).
  void add_experts(Adapter::Module module, std::string_view base, const std::string& hf) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kProjections = {
        {{"ffn_gate_exps", "gate_proj"}, {"ffn_up_exps", "up_proj"}, {"ffn_down_exps", "down_proj"}}};
    constexpr std::string_view kNumber = "{e}";
    std::string name = hf;
    if (name.find(kNumber) == std::string::npos) {
      const auto projection =
          std::ranges::find_if(kProjections, [&](const auto& p) { return base.ends_with(p.first); });
      if (projection == kProjections.end()) {  // gate and up of all experts in one
        module.name = hf;
        named_.push_back(std::move(module));
        return;
      }
      name.resize(name.rfind('.'));
      name += fmt::format("{}.{{e}}.{}", name.ends_with(".experts") ? "" : ".experts", projection->second);
    }
    const int64_t experts = module.experts, size_a = module.rank * module.inputs;
    for (int64_t e = 0; e < experts; ++e) {
      Adapter::Module& one = named_.emplace_back();
      one = {.name = name, .rank = module.rank, .inputs = module.inputs, .outputs = module.outputs};
      one.name.replace(one.name.find(kNumber), kNumber.size(), std::to_string(e));
      one.scale = module.scale;
      one.a.assign(module.a.begin() + e * size_a, module.a.begin() + (e + 1) * size_a);
      one.b.resize(module.b.size() / static_cast<size_t>(experts));
      for (size_t i = 0; i < one.b.size(); ++i) {
        one.b[i] = module.b[i * static_cast<size_t>(experts) + static_cast<size_t>(e)];
      }
    }
  }

  // Gate and up are one matrix of the model. A module of it has one A.
  void add_half(Adapter::Module module, bool up, const std::string& hf) {
    const std::string name = std::exchange(module.name, without_weight(hf));
    const auto other = std::ranges::find(halves_, module.name, &Adapter::Module::name);
    if (other == halves_.end()) {
      halves_.push_back(std::move(module));
      return;
    }
    if (other->a != module.a || other->outputs != module.outputs) {
      module.name = name;
      refuse(module, "must have the lora_a of its gate or up counterpart: the model has one matrix for both");
    }
    Adapter::Module &first = up ? *other : module, &second = up ? module : *other;
    first.b.insert(first.b.end(), second.b.begin(), second.b.end());
    first.outputs *= 2;
    named_.push_back(std::move(first));
    halves_.erase(other);
  }

  const Adapter& adapter_;
  GgufConfig config_;
  std::vector<Adapter::Module> named_;
  std::vector<Adapter::Module> halves_;  // those whose counterpart has not come
};

}  // namespace
}  // namespace sluice::gguf_names

namespace sluice {

void name_modules(Adapter& adapter, const Checkpoint& model) {
  if (adapter.gguf.empty()) return take_text_modules(adapter, model);
  std::unique_ptr<GgufOutline> outline;
  gguf_names::Names names(adapter, gguf_names::rules_for(adapter, model, outline));
  for (Adapter::Module& module : adapter.modules) names.add(std::move(module));
  adapter.modules = names.take();
  adapter.gguf.clear();
}

}  // namespace sluice
