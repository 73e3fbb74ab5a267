// Allocates the sites of adapters and finds them by name.
#include "lora/sites.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {

std::shared_ptr<LoraSite> LoraSites::add(std::vector<LoraSite::Part> parts, const LoraShare& share) {
  // More projections than these are never fused; without a site the layer cannot have adapters.
  if (parts.size() > ops::LoraWeight::kMostParts) return nullptr;
  auto site = std::make_shared<LoraSite>();
  ops::LoraWeight& w = site->weight;
  w = {.k = share.inputs.count,
       .slots = room_.slots,
       .rank = room_.rank,
       .parts = static_cast<int>(parts.size()),
       .type = room_.type};
  for (size_t i = 0; i < parts.size(); ++i) {
    for (const RowRange& range : parts[i].rows) w.n += range.count;
    w.part_ends[i] = w.n;
    places_[parts[i].module].push_back({site.get(), i});
  }
  site->parts = std::move(parts);
  site->share = share;
  site->used.resize(static_cast<size_t>(room_.slots));
  site->extras.resize(static_cast<size_t>(room_.slots));
  const auto slots = static_cast<size_t>(room_.slots), inner = static_cast<size_t>(w.inner());
  sites_.push_back(site);
  if (share.elsewhere) return site;
  const size_t a = slots * inner * static_cast<size_t>(w.k), b = slots * static_cast<size_t>(w.n * w.rank);
  const size_t scales = slots * site->parts.size();
  const size_t each = room_.type->block_bytes;
  bytes_ += (a + b) * each + scales * sizeof(float);
  most_inner_ = std::max(most_inner_, w.inner());
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
  places_[part.module].push_back({site.get(), 0});
  site->parts.push_back(std::move(part));
  most_inner_ = std::max(most_inner_, int64_t{room_.rank});
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

bool LoraSites::shares_tensor(std::string_view tensor) const {
  const std::string* first = nullptr;  // a module may have several sites: layers of two stages may share it
  for (const std::shared_ptr<LoraSite>& site : sites_) {
    for (const LoraSite::Part& part : site->parts) {
      if (part.tensor != tensor) continue;
      if (first != nullptr && *first != part.module) return true;
      first = &part.module;
    }
  }
  return false;
}

std::span<const LoraSites::Place> LoraSites::find(std::string_view module) const {
  const auto found = places_.find(module);
  return found == places_.end() ? std::span<const Place>() : std::span<const Place>(found->second);
}

}  // namespace sluice
