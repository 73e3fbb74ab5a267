// Puts the matrices of an adapter into the slots of the layers that it changes.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>

#include "base/thread_pool.h"
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
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kModules = {{
    {"lm_head", "embed_out"},
    {".mlp.shared_experts.", ".mlp.shared_mlp."},
    {".mlp.shared_experts.", ".mlp.shared_expert."},
    {".mlp.", ".block_sparse_moe."},
    {".mlp.gate", ".mlp.router.gate"},
    {".mlp.router", ".block_sparse_moe.gate"},
    {".block_sparse_moe.router", ".block_sparse_moe.router.layer"},
    {".self_attn.forget_gate.", ".self_attn."},
}};

std::vector<LoraSites::Place> places_named(const LoraSites& sites, const std::string& module) {
  auto found = sites.find(module);
  if (!found.empty()) return found;
  for (const auto& [theirs, ours] : kTextParts) {
    if (!module.starts_with(theirs)) continue;
    auto renamed = sites.find(fmt::format("{}{}", ours, std::string_view(module).substr(theirs.size())));
    if (!renamed.empty()) return renamed;
  }
  for (const auto& [theirs, ours] : kModules) {
    const size_t at = module.find(theirs);
    if (at == std::string::npos) continue;
    auto renamed = sites.find(std::string(module).replace(at, theirs.size(), ours));
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
    const TensorEntry* bias = model.find(part.module + ".bias");
    if (bias != nullptr) std::ranges::copy(values(*bias), std::back_inserter(wanted));
  }
  const auto near = [](float a, float b) { return std::abs(a - b) <= 0.02f * std::max(std::abs(a), std::abs(b)); };
  if (!std::ranges::equal(module.base, wanted, near)) {
    refuse(adapter, module, "was trained on another base_layer.weight than the model has");
  }
}

bool fits(const LoraSites::Place& place, int64_t inputs, int64_t outputs) {
  return inputs == place.site->share.module_inputs && outputs == place.outputs;
}

// Whether the module's A and B are those of the transposed matrices. Earlier versions of peft always took the rows of
// the tensors of all experts for inputs.
bool is_turned(const LoraSites::Place& place, const Adapter::Module& m) {
  const bool of_all = place.site->experts.count > 0 && place.expert < 0;
  if (!of_all || !fits(place, m.outputs, m.inputs)) return false;
  return place.turned || !fits(place, m.inputs, m.outputs);
}

// The small matrices of an adapter for one matrix of a site.
struct SmallMatrices {
  std::vector<float> a, b, scales;
};

// Adds a module's matrices, of all experts' those of one.
void add_module(const LoraSites::Place& place, const Adapter::Module& module, int64_t expert, SmallMatrices& to) {
  const LoraSite& site = *place.site;
  const ops::LoraWeight& w = site.weight;
  const std::vector<float>& scale = site.parts[place.part].input_scale;
  const bool turned = is_turned(place, module);
  const auto stored_a = [&](int64_t j, int64_t input) {
    return module.a[static_cast<size_t>((expert * module.rank + j) * module.inputs + input)];
  };
  const auto stored_b = [&](int64_t j, int64_t output) {
    return module.b[static_cast<size_t>((output * module.rank + j) * module.experts + expert)];
  };
  for (int64_t j = 0; j < module.rank; ++j) {
    float* row = to.a.data() + (static_cast<int64_t>(place.part) * w.rank + j) * w.k;
    for (int64_t i = 0; i < w.k; ++i) {
      const int64_t input = site.share.inputs.begin + i;
      row[i] =
          (turned ? stored_b(j, input) : stored_a(j, input)) * (scale.empty() ? 1.0f : scale[static_cast<size_t>(i)]);
    }
  }
  float* row = to.b.data() + site.first_output(place.part) * w.rank;
  for (const RowRange& range : site.parts[place.part].rows) {
    for (int64_t i = range.begin; i < range.begin + range.count; ++i, row += w.rank) {
      const int64_t output = place.first + place.step * i;
      for (int64_t j = 0; j < module.rank; ++j) row[j] = turned ? stored_a(j, output) : stored_b(j, output);
    }
  }
  to.scales[place.part] = module.scale;
}

using Change = std::pair<LoraSites::Place, const Adapter::Module*>;

// What an adapter's slot of a site holds, in the types of the site.
struct SlotValues {
  std::vector<std::byte> a, b, scales;
};

std::vector<std::byte> stored(DType type, const std::vector<float>& values) {
  std::vector<std::byte> out(values.size() * type->block_bytes);
  from_float(type, values.data(), out.data(), values.size());
  return out;
}

// The module's rows of each head are B of the head, and A is shared; or in the layer's order of multiplication A and
// B change places, both transposed.
SlotValues values_of_heads(const LoraSite& site, std::span<const Change> changes, float scale) {
  const ops::LoraWeight& w = site.weight;
  const LoraHeads& heads = site.heads;
  std::vector<float> a(static_cast<size_t>(site.matrices_a() * w.rank * w.k));
  std::vector<float> b(static_cast<size_t>(site.matrices_b() * w.n * w.rank));
  std::vector<float> scales(static_cast<size_t>(site.matrices_a()));
  for (const auto& [place, module] : changes) {
    const int64_t width = heads.transposed ? w.k : w.n, inputs = module->inputs;  // width: rows of a head
    for (int64_t j = 0; j < module->rank; ++j) {
      const float* shared = module->a.data() + j * inputs;
      for (int64_t i = 0; i < inputs; ++i) {
        (heads.transposed ? b[static_cast<size_t>(i * w.rank + j)] : a[static_cast<size_t>(j * w.k + i)]) = shared[i];
      }
      for (int64_t head = 0; head < heads.held.count; ++head) {
        const int64_t first = (heads.held.begin + head) * heads.stride + heads.first;
        for (int64_t i = 0; i < width; ++i) {
          const float value = module->b[static_cast<size_t>((first + i) * module->rank + j)];
          (heads.transposed ? a[static_cast<size_t>((head * w.rank + j) * w.k + i)]
                            : b[static_cast<size_t>((head * w.n + i) * w.rank + j)]) = value;
        }
      }
    }
    std::ranges::fill(scales, scale * module->scale);
  }
  return {.a = stored(w.type, a), .b = stored(w.type, b), .scales = stored(&kFloat32, scales)};
}

SlotValues values_of(const LoraSite& site, std::span<const Change> changes, float scale, ThreadPool& threads) {
  if (site.heads.count > 0) return values_of_heads(site, changes, scale);
  const ops::LoraWeight& w = site.weight;
  const int64_t matrices = site.matrices();
  const auto a = static_cast<size_t>(w.inner() * w.k), b = static_cast<size_t>(w.n * w.rank);
  const size_t each = w.type->block_bytes, count = static_cast<size_t>(matrices), parts = site.parts.size();
  SlotValues out{.a = std::vector<std::byte>(count * a * each),
                 .b = std::vector<std::byte>(count * b * each),
                 .scales = std::vector<std::byte>(count * parts * sizeof(float))};
  threads.parallel_for(matrices, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      SmallMatrices values{.a = std::vector<float>(a), .b = std::vector<float>(b), .scales = std::vector<float>(parts)};
      const int64_t expert = site.experts.held.begin + i;
      for (const auto& [place, module] : changes) {
        if (place.expert < 0 || place.expert == expert) {
          add_module(place, *module, module->experts > 1 ? expert : 0, values);
        }
      }
      for (float& value : values.scales) value *= scale;
      const auto at = static_cast<size_t>(i);
      from_float(w.type, values.a.data(), out.a.data() + at * a * each, a);
      from_float(w.type, values.b.data(), out.b.data() + at * b * each, b);
      std::memcpy(out.scales.data() + at * parts * sizeof(float), values.scales.data(), parts * sizeof(float));
    }
  });
  return out;
}

void check_tokens(const Adapter& adapter, const Adapter::Module& module, const LoraSites::Place& place,
                  const LoraSites& sites) {
  const LoraSite& site = *place.site;
  const LoraSite::Part& part = site.parts[place.part];
  const bool plain = part.input_scale.empty() && !part.transposed && site.experts.count == 0 && site.heads.count == 0;
  if (!plain) refuse(adapter, module, "is not an embedding or a head whose rows can be replaced");
  const int64_t ids = site.table ? site.share.module_inputs : place.outputs;
  const int64_t columns = site.table ? place.outputs : site.share.module_inputs;
  if (module.inputs != columns) {
    refuse(adapter, module, fmt::format("has rows of {} numbers, but the model's have {}", module.inputs, columns));
  }
  const int32_t last = *std::ranges::max_element(module.tokens);
  if (last >= ids) refuse(adapter, module, fmt::format("replaces token {}, but the model has {}", last, ids));
  for (const Adapter::Module& other : adapter.modules) {
    if (&other == &module || other.saved.empty()) continue;
    const auto others = places_named(sites, other.name);
    if (std::ranges::find(others, place.site, &LoraSites::Place::site) != others.end()) {
      refuse(adapter, module, fmt::format("shares its weight with '{}', which is replaced, too", other.name));
    }
  }
}

void check_place(const Adapter& adapter, const Adapter::Module& module, const LoraSites::Place& place,
                 const LoraSites& sites) {
  const LoraSite::Part& part = place.site->parts[place.part];
  const LoraExperts& experts = place.site->experts;
  if (part.rescaled) refuse(adapter, module, "has weights that are normalized, to which nothing can be added");
  if (!module.tokens.empty()) return check_tokens(adapter, module, place, sites);
  const bool replaced = module.rank == 0, dense = replaced || !module.magnitude.empty();
  if (dense && !part.input_scale.empty()) refuse(adapter, module, "has scaled inputs: only lora_A and lora_B work");
  if (experts.count > 0 && !module.plain()) refuse(adapter, module, "is of experts: only lora_A and lora_B work");
  if (place.site->heads.count > 0 && !module.plain()) {
    refuse(adapter, module, "is a projection of latent vectors: only lora_A and lora_B work");
  }
  if (place.expert >= experts.count) {
    refuse(adapter, module, fmt::format("is of an expert that the model does not have: it has {}", experts.count));
  }
  const int64_t expected = place.expert >= 0 || experts.count == 0 ? 1 : experts.count;
  if (module.experts != expected && (expected == 1 || module.experts != experts.most)) {
    refuse(adapter, module,
           fmt::format("has the matrices of {} experts, but the model has {}", module.experts, expected));
  }
  if (is_turned(place, module)) return;
  const bool turned = replaced && (place.site->table || part.transposed);
  const int64_t inputs = turned ? module.outputs : module.inputs, outputs = turned ? module.inputs : module.outputs;
  if (!fits(place, inputs, outputs)) {
    refuse(adapter, module,
           fmt::format("is [{}, {}] in the adapter, but [{}, {}] in the model", outputs, inputs, place.outputs,
                       place.site->share.module_inputs));
  }
}

// Adds the places of other modules that have the same weight.
void add_sharing(const LoraSites& sites, std::vector<LoraSites::Place>& places) {
  const LoraSites::Place first = places.front();
  const std::string& tensor = first.site->parts[first.part].tensor;
  for (const std::shared_ptr<LoraSite>& site : sites.all()) {
    for (size_t part = 0; part < site->parts.size(); ++part) {
      const auto is_there = [&](const LoraSites::Place& p) { return p.site == site.get() && p.part == part; };
      if (site->parts[part].tensor != tensor || std::ranges::any_of(places, is_there)) continue;
      places.push_back({.site = site.get(), .part = part, .outputs = site->parts[part].module_outputs});
    }
  }
}

}  // namespace

std::vector<LoraSites::Place> places_of(const LoraSites& sites, const Adapter::Module& module) {
  std::vector<LoraSites::Place> out;
  for (const LoraSites::Place& place : places_named(sites, module.name)) {
    if (module.rank == 0 || place.site->table == module.embedding) out.push_back(place);
  }
  if (!module.tokens.empty() && !out.empty()) add_sharing(sites, out);
  return out;
}

int adapter_from(const Adapter& adapter, std::span<const int32_t> prompt) {
  if (adapter.invocation.empty()) return 0;
  const auto found = std::find_end(prompt.begin(), prompt.end(), adapter.invocation.begin(), adapter.invocation.end());
  return found == prompt.end() ? -1 : static_cast<int>(found - prompt.begin());
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
      refuse(adapter, module,
             sites.room().experts
                 ? "is not one that adapters can change in this model (its embedding, linear layers and experts)"
                 : "is not one that adapters can change in this model (its embedding and linear layers; with "
                   "--lora-experts also its experts)");
    }
    for (const LoraSites::Place& place : places) {
      check_place(adapter, module, place, sites);
      check_base(adapter, module, place.site->parts[place.part], model);
    }
  }
}

const Adapter::Module* unscalable_module(const Adapter& adapter) {
  const auto found = std::ranges::find_if_not(adapter.modules, &Adapter::Module::plain);
  return found == adapter.modules.end() ? nullptr : &*found;
}

void place_adapter(const Adapter* adapter, int slot, float scale, LoraSites& sites, ops::Queue& queue) {
  CHECK(scale == 1 || adapter == nullptr || unscalable_module(*adapter) == nullptr, "scale {} of {}", scale,
        adapter->folder);
  std::map<LoraSite*, std::vector<Change>> changes;
  if (adapter != nullptr) {
    for (const Adapter::Module& module : adapter->modules) {
      for (const LoraSites::Place& place : places_of(sites, module)) {
        auto& here = changes[place.site];
        const bool small = module.rank > 0 && !module.embedding && module.magnitude.empty();
        if (small) here.emplace_back(place, &module);
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
    const SlotValues values =
        values_of(*site, found != changes.end() ? std::span<const Change>(found->second) : std::span<const Change>(),
                  scale, queue.threads());
    const auto copy = [&](Buffer& to, const std::vector<std::byte>& from) {
      memory.copy(to.data() + at * from.size(), from.data(), from.size());
    };
    copy(site->a, values.a), copy(site->b, values.b), copy(site->scales, values.scales);
  }
}

}  // namespace sluice
