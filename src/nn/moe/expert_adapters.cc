// An adapter has matrices of each expert's projections, as published models have them (experts.7.gate_proj), or of all
// experts together, as transformers has them (experts.gate_up_proj). Both work with every layout.
#include "nn/moe/expert_adapters.h"

namespace sluice {
namespace {

using Place = LoraSites::Place;

// The name of a module whose parameter is a tensor of all experts.
std::string module_of(std::string tensor) {
  constexpr std::string_view kWeight = ".weight";
  if (tensor.ends_with(kWeight)) tensor.resize(tensor.size() - kWeight.size());
  return tensor;
}

// What transformers calls the module of the experts: `experts`, beside or around the checkpoint's tensors.
std::string experts_name(const MoeSpec& spec) {
  if (spec.layout == ExpertLayout::kSeparate) return "experts";
  const std::string module = module_of(spec.gate);
  const size_t dot = module.rfind('.');
  if (dot == std::string::npos) return "experts";
  const std::string parent = module.substr(0, dot);
  return parent == "experts" || parent.ends_with(".experts") ? parent : parent + ".experts";
}

class Namer {
 public:
  Namer(const Weights& w, const MoeSpec& spec, int hidden)
      : spec_(spec), layer_(w.prefix()), experts_((w / experts_name(spec)).prefix()), hidden_(hidden) {}

  // The projection of an expert, as in "experts.*.gate_proj".
  std::string each(const std::string& own, const char* usual) const {
    return experts_ + "*." + (spec_.layout == ExpertLayout::kSeparate ? own : usual);
  }
  std::string gate() const { return each(spec_.gate, "gate_proj"); }
  std::string up() const { return each(spec_.up, "up_proj"); }
  std::string down() const { return each(spec_.down, "down_proj"); }

  void name_each(LoraSites& sites, LoraSite& in, LoraSite& out) const {
    if (spec_.gated) sites.name(gate(), gate_of(in, spec_.inner));
    sites.name(up(), up_of(in, spec_.inner));
    sites.name(down(), {.site = &out, .outputs = hidden_});
  }

  // "experts.gate_up_proj", whatever the checkpoint calls it
  void name_all(LoraSites& sites, LoraSite& in, LoraSite& out) const {
    const Place of_down = turned({.site = &out, .outputs = hidden_});
    const std::string gate_up = experts_ + "gate_up_proj";
    if (spec_.gated) {
      name_both(sites, gate_up, in);
    } else {
      sites.name(experts_ + "up_proj", up_of(in, spec_.inner));
    }
    sites.name(experts_ + "down_proj", of_down);
    const std::string own = layer_ + module_of(spec_.gate);
    if (spec_.layout == ExpertLayout::kSeparate || own == gate_up) return;
    if (spec_.layout == ExpertLayout::kStackedApart) {
      sites.name(own, gate_of(in, spec_.inner));
      sites.name(layer_ + module_of(spec_.up), up_of(in, spec_.inner));
    } else {
      name_both(sites, own, in);
    }
    sites.name(layer_ + module_of(spec_.down), of_down);
  }

 private:
  Place gate_of(LoraSite& in, int64_t outputs) const { return {.site = &in, .outputs = outputs}; }
  Place up_of(LoraSite& in, int64_t outputs) const {
    return {.site = &in, .part = spec_.gated ? size_t{1} : 0, .outputs = outputs};
  }
  Place turned(Place place) const {
    place.turned = spec_.layout == ExpertLayout::kTransposedHalves;
    return place;
  }
  // Gate and up in one tensor, one after the other or in turns.
  void name_both(LoraSites& sites, const std::string& name, LoraSite& in) const {
    const bool in_turns = spec_.layout == ExpertLayout::kTransposed;
    Place first = gate_of(in, 2 * int64_t{spec_.inner}), second = up_of(in, first.outputs);
    second.first = in_turns ? 1 : spec_.inner;
    first.step = second.step = in_turns ? 2 : 1;
    sites.name(name, turned(first)), sites.name(name, turned(second));
  }

  const MoeSpec& spec_;
  std::string layer_, experts_;  // prefixes
  int64_t hidden_;
};

}  // namespace

void adapt_experts(const Weights& w, const MoeSpec& spec, int hidden, const ExpertPart& part, ExpertMatrices& adapted) {
  LoadContext& context = w.context();
  // peft has one small matrix for all experts of the flat layout, not one for each.
  if (context.lora == nullptr || spec.layout == ExpertLayout::kFlat) return;
  const RowRange wide{0, hidden};
  const RowRange held{part.experts.front(), static_cast<int64_t>(part.experts.size())};
  const LoraExperts experts{.count = spec.experts, .most = spec.choices(), .held = held, .chosen = spec.top_k};
  const auto add = [&](std::vector<LoraSite::Part> parts, int64_t inputs, RowRange kept) {
    return context.lora->add_experts(
        std::move(parts), {.module_inputs = inputs, .inputs = kept, .elsewhere = context.elsewhere}, experts);
  };
  const Namer namer(w, spec, hidden);
  const auto projection = [&](std::string name, int64_t outputs, RowRange rows) {
    return LoraSite::Part{.module = std::move(name), .module_outputs = outputs, .rows = {rows}};
  };
  std::vector<LoraSite::Part> parts{projection(namer.up(), spec.inner, part.inner)};
  if (spec.gated) parts.insert(parts.begin(), projection(namer.gate(), spec.inner, part.inner));
  const std::shared_ptr<LoraSite> of_in = add(std::move(parts), hidden, wide);
  const std::shared_ptr<LoraSite> of_out = add({projection(namer.down(), hidden, wide)}, spec.inner, part.inner);
  if (of_in == nullptr) return;
  adapted.in.adapt(of_in), adapted.out.adapt(of_out);
  namer.name_each(*context.lora, *of_in, *of_out);
  namer.name_all(*context.lora, *of_in, *of_out);
}

}  // namespace sluice
