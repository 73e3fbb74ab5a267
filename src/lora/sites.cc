// Allocates the sites of adapters and finds them by name.
#include "lora/sites.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/check.h"

namespace sluice {

void LoraScratch::add(int64_t items, int64_t inner) {
  int64_t& most = needs_[items];
  most = std::max(most, inner);
}

int64_t LoraScratch::floats(int64_t rows) const {
  int64_t most = 0;
  for (const auto& [items, inner] : needs_) {
    most = std::max(most, ops::LoraWeight::inner_rows(rows * items) * inner);
  }
  return most;
}

std::shared_ptr<LoraSite> LoraSites::add(std::vector<LoraSite::Part> parts, const LoraShare& share) {
  // More projections than these are never fused; without a site the layer cannot have adapters.
  if (parts.size() > ops::LoraWeight::kMostParts) return nullptr;
  std::shared_ptr<LoraSite> site = make(std::move(parts), share, {}, {});
  for (size_t i = 0; i < site->parts.size(); ++i) {
    const LoraSite::Part& part = site->parts[i];
    name(part.module, {.site = site.get(), .part = i, .outputs = part.module_outputs});
  }
  return site;
}

std::shared_ptr<LoraSite> LoraSites::add_experts(std::vector<LoraSite::Part> parts, const LoraShare& share,
                                                 const LoraExperts& experts) {
  if (!room_.experts) return nullptr;
  const size_t before = bytes_;
  std::shared_ptr<LoraSite> site = make(std::move(parts), share, experts, {});
  expert_bytes_ += bytes_ - before;
  return site;
}

std::shared_ptr<LoraSite> LoraSites::add_heads(LoraSite::Part part, const LoraShare& share, const LoraHeads& heads) {
  std::shared_ptr<LoraSite> site = make({std::move(part)}, share, {}, heads);
  const LoraSite::Part& made = site->parts[0];
  name(made.module, {.site = site.get(), .outputs = made.module_outputs});
  return site;
}

std::shared_ptr<LoraSite> LoraSites::make(std::vector<LoraSite::Part> parts, const LoraShare& share,
                                          const LoraExperts& experts, const LoraHeads& heads) {
  auto site = std::make_shared<LoraSite>();
  site->parts = std::move(parts);
  site->share = share;
  site->experts = experts;
  site->heads = heads;
  ops::LoraWeight& w = site->weight;
  w = {.k = share.inputs.count,
       .slots = static_cast<int>(room_.slots * site->matrices()),
       .rank = room_.rank,
       .parts = static_cast<int>(site->parts.size()),
       .type = room_.type};
  for (size_t i = 0; i < site->parts.size(); ++i) {
    for (const RowRange& range : site->parts[i].rows) w.n += range.count;
    w.part_ends[i] = w.n;
  }
  site->used.resize(static_cast<size_t>(room_.slots));
  site->extras.resize(static_cast<size_t>(room_.slots));
  const auto inner = static_cast<size_t>(w.inner());
  const auto slots_a = static_cast<size_t>(room_.slots * site->matrices_a());
  const auto slots_b = static_cast<size_t>(room_.slots * site->matrices_b());
  sites_.push_back(site);
  if (share.elsewhere) return site;
  const size_t a = slots_a * inner * static_cast<size_t>(w.k), b = slots_b * static_cast<size_t>(w.n * w.rank);
  const size_t scales = slots_a * site->parts.size();
  const size_t each = room_.type->block_bytes;
  bytes_ += (a + b) * each + scales * sizeof(float);
  scratch_.add(heads.count > 0 ? heads.held.count : experts.chosen, w.inner());
  if (!dry_) {
    site->a = Buffer(a * each, memory_);
    site->b = Buffer(b * each, memory_);
    site->scales = Buffer(scales * sizeof(float), memory_);
    w.a = site->a.data();
    w.b = site->b.data();
    w.scales = reinterpret_cast<const float*>(site->scales.data());
  }
  return site;
}

std::shared_ptr<LoraSite> LoraSites::add_table(LoraSite::Part part, int64_t ids, int64_t columns, bool elsewhere) {
  auto site = std::make_shared<LoraSite>();
  site->table = true;
  site->share = {.module_inputs = ids, .inputs = {0, ids}, .elsewhere = elsewhere};
  site->weight = {.n = columns, .k = ids, .slots = room_.slots};
  site->used.resize(static_cast<size_t>(room_.slots));
  site->extras.resize(static_cast<size_t>(room_.slots));
  name(part.module, {.site = site.get(), .outputs = part.module_outputs});
  site->parts.push_back(std::move(part));
  scratch_.add(1, room_.rank);
  sites_.push_back(site);
  return site;
}

void LoraSites::update(LoraSite& site) {
  const bool changes = std::ranges::find(site.used, true) != site.used.end();
  const bool has_extras = std::ranges::any_of(site.extras, [](const auto& of_slot) { return !of_slot.empty(); });
  changed_ += changes && !site.changed ? 1 : 0;
  site.changed |= changes;
  with_extras_ += static_cast<int>(has_extras) - static_cast<int>(site.has_extras);
  site.has_extras = has_extras;
}

namespace {

// Replaces the last number between dots by a `*`, and returns it; -1 if there is none.
int64_t take_number(std::string& module) {
  for (size_t end = module.size(); end != std::string::npos && end > 0;) {
    const size_t dot = module.rfind('.', end - 1), begin = dot == std::string::npos ? 0 : dot + 1;
    int64_t number = -1;
    const char *first = module.data() + begin, *last = module.data() + end;
    if (const auto [at, error] = std::from_chars(first, last, number); error == std::errc() && at == last) {
      module = fmt::format("{}*{}", std::string_view(module).substr(0, begin), std::string_view(module).substr(end));
      return number;
    }
    end = dot;
  }
  return -1;
}

}  // namespace

std::vector<LoraSites::Place> LoraSites::find(std::string_view module) const {
  if (const auto found = places_.find(module); found != places_.end()) return found->second;
  std::string of_expert(module);
  const int64_t number = take_number(of_expert);
  const auto found = number < 0 ? places_.end() : places_.find(of_expert);
  if (found == places_.end()) return {};
  std::vector<Place> places = found->second;
  for (Place& place : places) place.expert = number;
  return places;
}

}  // namespace sluice
