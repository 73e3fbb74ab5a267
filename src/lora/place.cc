// Puts the matrices of an adapter into the slots of the layers that it changes.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// Names of the text decoder within multimodal models, and what this engine calls it (formats/text_part.h).
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kTextParts = {{
    {"model.language_model.", "model."},
    {"language_model.model.", "model."},
    {"language_model.", ""},
    {"model.text_model.", "model."},
    {"model.", "backbone."},
}};

// Names of modules in transformers, and in published checkpoints where these differ.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kModules = {{
    {".mlp.shared_experts.", ".mlp.shared_mlp."},
    {".mlp.shared_experts.", ".mlp.shared_expert."},
    {".mlp.", ".block_sparse_moe."},
    {".self_attn.forget_gate.", ".self_attn."},
}};

std::span<const LoraSites::Place> places_named(const LoraSites& sites, const std::string& module) {
  const auto found = sites.find(module);
  if (!found.empty()) return found;
  for (const auto& [theirs, ours] : kTextParts) {
    if (!module.starts_with(theirs)) continue;
    const auto renamed = sites.find(std::string(ours) + module.substr(theirs.size()));
    if (!renamed.empty()) return renamed;
  }
  for (const auto& [theirs, ours] : kModules) {
    const size_t at = module.find(theirs);
    if (at == std::string::npos) continue;
    const auto renamed = sites.find(std::string(module).replace(at, theirs.size(), ours));
    if (!renamed.empty()) return renamed;
  }
  return {};
}

[[noreturn]] void refuse(const Adapter& adapter, const Adapter::Module& module, const std::string& why) {
  throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: module '{}' {}", adapter.folder, module.name, why));
}

// PEFT also saves the weights of embeddings and heads that an adapter changes. They must be the model's, up to
// rounding. Quantized ones are not compared.
void check_base(const Adapter& adapter, const Adapter::Module& module, const LoraSite::Part& part,
                const Checkpoint& model) {
  const TensorEntry* own = model.find(part.tensor);
  if (module.base.empty() || own == nullptr || own->compute || own->dtype->block_size > 1) return;
  const auto values = [](const TensorEntry& entry) {
    std::vector<float> out(static_cast<size_t>(entry.shape.elements()));
    entry.read(out.data());
    return out;
  };
  std::vector<float> wanted = row_lengths(values(*own), own->shape[0]);
  if (module.base.size() > wanted.size()) {
    const TensorEntry* bias = model.find(module.name + ".bias");
    if (bias != nullptr) std::ranges::copy(values(*bias), std::back_inserter(wanted));
  }
  const auto near = [](float a, float b) { return std::abs(a - b) <= 0.02f * std::max(std::abs(a), std::abs(b)); };
  if (!std::ranges::equal(module.base, wanted, near)) {
    refuse(adapter, module, "was trained on another base_layer.weight than the model has");
  }
}

// The values of one slot of a site.
struct SlotValues {
  std::vector<float> a, b, scales;
};

void add_module(const LoraSite& site, size_t part, const Adapter::Module& module, SlotValues& to) {
  const ops::LoraWeight& w = site.weight;
  const std::vector<float>& scale = site.parts[part].input_scale;
  for (int64_t j = 0; j < module.rank; ++j) {
    float* row = to.a.data() + (static_cast<int64_t>(part) * w.rank + j) * w.k;
    for (int64_t i = 0; i < w.k; ++i) {
      const int64_t from = j * module.inputs + site.share.inputs.begin + i;
      row[i] = module.a[static_cast<size_t>(from)] * (scale.empty() ? 1.0f : scale[static_cast<size_t>(i)]);
    }
  }
  int64_t output = site.first_output(part);
  for (const RowRange& range : site.parts[part].rows) {
    for (int64_t row = range.begin; row < range.begin + range.count; ++row, ++output) {
      std::copy_n(module.b.data() + row * module.rank, module.rank, to.b.data() + output * w.rank);
    }
  }
  to.scales[part] = module.scale;
}

}  // namespace

std::vector<LoraSites::Place> places_of(const LoraSites& sites, const Adapter::Module& module) {
  std::vector<LoraSites::Place> out;
  for (const LoraSites::Place& place : places_named(sites, module.name)) {
    if (module.rank == 0 || place.site->table == module.embedding) out.push_back(place);
  }
  return out;
}

std::vector<float> row_lengths(const std::vector<float>& matrix, int64_t rows) {
  std::vector<float> lengths(static_cast<size_t>(rows));
  const size_t columns = matrix.size() / lengths.size();
  for (size_t i = 0; i < lengths.size(); ++i) {
    double squares = 0;
    for (size_t j = i * columns; j < (i + 1) * columns; ++j) squares += double{matrix[j]} * matrix[j];
    lengths[i] = static_cast<float>(std::sqrt(squares));
  }
  return lengths;
}

void check_adapter(const Adapter& adapter, const LoraSites& sites, const Checkpoint& model) {
  if (adapter.rank > sites.room().rank) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("{}: rank {} is above --max-lora-rank {}", adapter.folder,
                                                          adapter.rank, sites.room().rank));
  }
  for (const Adapter::Module& module : adapter.modules) {
    const auto places = places_of(sites, module);
    if (places.empty()) {
      refuse(
          adapter, module,
          "is not one that adapters can change in this model (its embedding, and its linear layers outside experts)");
    }
    for (const LoraSites::Place& place : places) {
      const LoraSite::Part& part = place.site->parts[place.part];
      if (part.rescaled) refuse(adapter, module, "has weights that are normalized, to which nothing can be added");
      const bool replaced = module.rank == 0, dense = replaced || !module.magnitude.empty();
      if (replaced && sites.shares_tensor(part.tensor)) {
        refuse(adapter, module, "shares its weight with another module, so that it cannot be replaced");
      }
      if (dense && !part.input_scale.empty()) refuse(adapter, module, "has scaled inputs: only lora_A and lora_B work");
      const bool turned = replaced && place.site->table;
      const int64_t inputs = turned ? module.outputs : module.inputs, outputs = turned ? module.inputs : module.outputs;
      const int64_t columns = place.site->share.module_inputs;
      if (inputs != columns || outputs != part.module_outputs) {
        refuse(adapter, module,
               fmt::format("is [{}, {}] in the adapter, but [{}, {}] in the model", outputs, inputs,
                           part.module_outputs, columns));
      }
      check_base(adapter, module, part, model);
    }
  }
}

void place_adapter(const Adapter* adapter, int slot, LoraSites& sites, ops::Queue& queue) {
  std::map<LoraSite*, std::vector<std::pair<size_t, const Adapter::Module*>>> changes;
  if (adapter != nullptr) {
    for (const Adapter::Module& module : adapter->modules) {
      for (const LoraSites::Place& place : places_of(sites, module)) {
        auto& here = changes[place.site];
        const bool small = module.rank > 0 && !module.embedding && module.magnitude.empty();
        if (small) here.emplace_back(place.part, &module);
      }
    }
  }
  const auto at = static_cast<size_t>(slot);
  Memory& memory = queue.device().memory();
  queue.wait();  // for steps that read what is there
  for (const std::shared_ptr<LoraSite>& site : sites.all()) {
    const auto found = changes.find(site.get());
    if (site->share.elsewhere || (found == changes.end() && !site->used[at])) continue;
    std::vector<const LoraExtra*>& extras = site->extras[at];
    extras.clear();
    if (adapter != nullptr) {
      for (const auto& extra : adapter->extras) {
        if (extra->site == site.get()) extras.push_back(&extra->what);
      }
    }
    site->used[at] = found != changes.end();
    sites.update(*site);
    if (site->table) continue;
    const ops::LoraWeight& w = site->weight;
    SlotValues values{.a = std::vector<float>(static_cast<size_t>(w.inner() * w.k)),
                      .b = std::vector<float>(static_cast<size_t>(w.n * w.rank)),
                      .scales = std::vector<float>(site->parts.size())};
    if (found != changes.end()) {
      for (const auto& [part, module] : found->second) add_module(*site, part, *module, values);
    }
    const auto copy = [&](Buffer& to, DType type, const std::vector<float>& from) {
      std::vector<std::byte> stored(from.size() * type->block_bytes);
      from_float(type, from.data(), stored.data(), from.size());
      memory.copy(to.data() + at * stored.size(), stored.data(), stored.size());
    };
    copy(site->a, w.type, values.a), copy(site->b, w.type, values.b), copy(site->scales, &kFloat32, values.scales);
  }
}

}  // namespace sluice
