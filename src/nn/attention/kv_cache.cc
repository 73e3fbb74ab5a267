// Assigns layers to groups and places, then cuts one buffer into regions. A region holds the keys or the values of one
// place in all blocks.
#include "nn/attention/kv_cache.h"

#include <algorithm>
#include <climits>
#include <functional>
#include <map>

namespace sluice {
namespace {

constexpr int64_t kMostGroups = 16;  // each step carries a block table per group
constexpr size_t kAlign = 128;       // bytes

size_t bytes_of(DType dtype, int64_t elements) {
  return static_cast<size_t>(elements) / dtype->block_size * dtype->block_bytes;
}

size_t align(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

KvLayout::Place place_for(const KvShape& l, int block_size) {
  const int64_t rows = int64_t{l.kv_heads} * block_size;
  return {.k = rows * l.head_dim, .v = rows * l.value_dim};
}

// Layers with equal windows.
struct Kind {
  std::vector<int> layers;
  int64_t elements = 0;   // elements that a layer's keys (or values) take in a block
  int64_t per_place = 0;  // layers per place
  int64_t places() const { return (static_cast<int64_t>(layers.size()) + per_place - 1) / per_place; }
};
using Kinds = std::map<int, Kind, std::greater<>>;  // keyed by window; no window is INT_MAX

// A place size that layers of every kind fill without remainder; zero elements if there is none.
KvLayout::Place common_place(const KvLayout& layout, Kinds& kinds) {
  int64_t most = 0;
  for (auto& [window, kind] : kinds) {
    kind.elements = place_for(layout.shapes[kind.layers[0]], layout.block_size).k;
    for (const int i : kind.layers) {
      const KvLayout::Place place = place_for(layout.shapes[i], layout.block_size);
      if (place.k != kind.elements || place.v != kind.elements) return {};
    }
    most = std::max(most, kind.elements);
  }
  for (auto& [window, kind] : kinds) {
    if (kind.elements == 0 || most % kind.elements != 0) return {};
    kind.per_place = most / kind.elements;
  }
  return {.k = most, .v = most};
}

// With `places` places in a block: the average number of places that a sequence of `longest` tokens holds per
// block_size tokens.
double places_held(const Kinds& kinds, int64_t places, int longest) {
  double sum = 0;
  for (const auto& [window, kind] : kinds) {
    const double share = std::min(1.0, static_cast<double>(window) / longest);
    sum += share * static_cast<double>((kind.places() + places - 1) / places * places);
  }
  return sum;
}

int64_t groups_with(const Kinds& kinds, int64_t places) {
  int64_t groups = 0;
  for (const auto& [window, kind] : kinds) groups += (kind.places() + places - 1) / places;
  return groups;
}

// Chooses the number of places in a block. Takes the largest number (fewest groups) that costs little more memory than
// the best one.
int64_t choose_places(const Kinds& kinds, int longest) {
  constexpr double kTolerance = 1.05;
  int64_t most = 0;
  for (const auto& [window, kind] : kinds) most = std::max(most, kind.places());
  double least = places_held(kinds, most, longest);
  for (int64_t n = most; n > 0 && groups_with(kinds, n) <= kMostGroups; --n) {
    least = std::min(least, places_held(kinds, n, longest));
  }
  int64_t n = most;
  while (places_held(kinds, n, longest) > least * kTolerance) --n;
  return n;
}

}  // namespace

bool KvLayout::held(size_t place) const {
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].place == static_cast<int>(place) && shapes[i].held) return true;
  }
  return false;
}

size_t KvLayout::block_bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    if (held(i)) sum += bytes_of(dtype, places[i].k) + bytes_of(dtype, places[i].v);
  }
  for (const Scales& of : scales()) sum += bytes_of(&kFloat32, of.count);
  return sum;
}

KvLayout::Scales KvLayout::scales_of(size_t layer, bool values) const {
  const Layer& where = layers[layer];
  const int64_t vectors = int64_t{shapes[layer].kv_heads} * block_size;
  return {.place = where.place, .count = vectors * groups[where.group].ids_per_block, .values = values};
}

std::set<KvLayout::Scales> KvLayout::scales() const {
  std::set<Scales> all;
  for (size_t i = 0; dtype == &kInt8 && i < layers.size(); ++i) {
    if (!shapes[i].held) continue;
    all.insert(scales_of(i, false));
    if (shapes[i].value_dim > 0) all.insert(scales_of(i, true));
  }
  return all;
}

KvLayout one_group(const std::vector<KvShape>& layers, DType dtype, int block_size) {
  KvLayout layout{
      .dtype = dtype, .block_size = block_size, .groups = {{}}, .places = {}, .shapes = layers, .layers = {}};
  int widest = 0;
  for (const KvShape& l : layers) {
    layout.layers.push_back({.place = static_cast<int>(layout.places.size())});
    layout.places.push_back(place_for(l, block_size));
    widest = std::max(widest, l.window);
  }
  const bool all_slide = std::ranges::all_of(layers, [](const KvShape& l) { return l.window > 0; });
  if (all_slide) layout.groups[0].window = widest;
  return layout;
}

KvLayout one_place(const std::vector<KvShape>& layers, DType dtype, int block_size) {
  KvLayout layout{
      .dtype = dtype, .block_size = block_size, .groups = {{}}, .places = {{}}, .shapes = layers, .layers = {}};
  layout.layers.resize(layers.size());
  for (const KvShape& l : layers) {
    const KvLayout::Place own = place_for(l, block_size);
    layout.places[0] = {.k = std::max(layout.places[0].k, own.k), .v = std::max(layout.places[0].v, own.v)};
  }
  return layout;
}

KvLayout groups_by_window(const std::vector<KvShape>& layers, DType dtype, int block_size, int longest) {
  constexpr double kWorthwhile = 0.9;
  KvLayout layout = one_group(layers, dtype, block_size);
  Kinds kinds;
  for (size_t i = 0; i < layers.size(); ++i) {
    const int window = layers[i].window;
    kinds[window > 0 && window < longest ? window : INT_MAX].layers.push_back(static_cast<int>(i));
  }
  if (kinds.size() < 2) return layout;
  const KvLayout::Place place = common_place(layout, kinds);
  if (place.k == 0) return layout;
  const int64_t places = choose_places(kinds, longest);
  const double held = places_held(kinds, places, longest) * static_cast<double>(bytes_of(dtype, place.k + place.v));
  if (held > kWorthwhile * static_cast<double>(layout.block_bytes())) return layout;
  layout.groups.clear();
  layout.places.assign(static_cast<size_t>(places), place);
  for (const auto& [window, kind] : kinds) {
    const int64_t of_group = places * kind.per_place;
    for (size_t i = 0; i < kind.layers.size(); ++i) {
      const int64_t n = static_cast<int64_t>(i) % of_group;
      if (n == 0) {
        layout.groups.push_back(
            {.window = window == INT_MAX ? 0 : window, .ids_per_block = static_cast<int>(kind.per_place)});
      }
      layout.layers[kind.layers[i]] = {.group = static_cast<int>(layout.groups.size()) - 1,
                                       .place = static_cast<int>(n / kind.per_place),
                                       .part = static_cast<int>(n % kind.per_place)};
    }
  }
  return layout;
}

KvLayout with_second_model(KvLayout layout, const std::vector<KvShape>& layers) {
  BlockGroup& group = layout.groups[0];
  int open = -1, parts_used = 0;  // the place that is being filled
  for (const KvShape& layer : layers) {
    const bool further = group.window > 0 && (layer.window == 0 || layer.window > group.window);
    if (further) group.window = layer.window;
    const KvLayout::Place own = place_for(layer, layout.block_size);
    const KvLayout::Place place{.k = own.k * group.ids_per_block, .v = own.v * group.ids_per_block};
    const bool fits = open >= 0 && parts_used < group.ids_per_block && layout.places[open].k == place.k &&
                      layout.places[open].v == place.v;
    if (!fits) {
      open = static_cast<int>(layout.places.size());
      parts_used = 0;
      layout.places.push_back(place);
    }
    layout.shapes.push_back(layer);
    layout.layers.push_back({.group = 0, .place = open, .part = parts_used++});
  }
  return layout;
}

KvCache::KvCache(const KvCache& whole, size_t first)
    : layers_(whole.layers_.begin() + static_cast<std::ptrdiff_t>(first), whole.layers_.end()) {}

KvCache::KvCache(const KvLayout& layout, int blocks, Memory& memory)
    : memory_(layout.block_bytes() * blocks + (layout.places.size() * 2 + layout.scales().size()) * kAlign, memory) {
  size_t at = 0;
  const auto take = [&](DType dtype, int64_t elements) {
    const Tensor region(memory_.data() + at, dtype, Shape{blocks, elements});
    at += align(region.bytes());
    return regions_.emplace_back(region);
  };
  for (size_t i = 0; i < layout.places.size(); ++i) {
    const KvLayout::Place place = layout.held(i) ? layout.places[i] : KvLayout::Place{};
    for (const int64_t elements : {place.k, place.v}) take(layout.dtype, elements);
  }
  std::map<KvLayout::Scales, Tensor> scales;
  for (const KvLayout::Scales& of : layout.scales()) scales[of] = take(&kFloat32, of.count);
  CHECK(at <= memory_.size());
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const KvLayout::Layer& where = layout.layers[i];
    const KvShape& shape = layout.shapes[i];
    if (!shape.held) {
      layers_.push_back({.k = {}, .v = {}, .group = where.group, .share = layout.share});
      continue;
    }
    const int64_t parts = layout.groups[where.group].ids_per_block;
    const auto tensor = [&](const Tensor& region, int dim, bool values) {
      const size_t part = bytes_of(layout.dtype, region.shape[1] / parts);
      ops::CacheTensor cache(Tensor(region.data + part * where.part, layout.dtype,
                                    {blocks * parts - where.part, shape.kv_heads, layout.block_size, dim}));
      const auto of = scales.find(layout.scales_of(i, values));
      if (of != scales.end()) cache.scales = of->second.f32() + of->second.shape[1] / parts * where.part;
      return cache;
    };
    const size_t place = static_cast<size_t>(where.place) * 2;
    layers_.push_back({.k = tensor(regions_[place], shape.head_dim, false),
                       .v = tensor(regions_[place + 1], shape.value_dim, true),
                       .group = where.group,
                       .share = layout.share});
  }
}

void KvCache::copy_blocks(ops::Ctx& c, const Indices& pairs) const {
  for (const Tensor& region : regions_) {
    if (region.row_elements() > 0) ops::copy_rows(c, region, region, pairs);
  }
}

namespace {

// A backend has room for so many indices of an op; the step of many prompts with modules may have more.
void copy_in_parts(ops::Ctx& c, const Tensor& rows, std::span<const int32_t> pairs) {
  constexpr size_t kMostIndices = 1 << 17;
  for (; !pairs.empty(); pairs = pairs.subspan(std::min(pairs.size(), kMostIndices))) {
    ops::copy_rows(c, rows, rows, pairs.first(std::min(pairs.size(), kMostIndices)));
  }
}

}  // namespace

// Rows of the layers' tensors are vectors: one for each block, head and token.
void KvCache::copy_tokens(ops::Ctx& c, std::span<const int32_t> pairs) const {
  if (pairs.empty()) return;
  std::vector<int32_t> rows;
  int64_t listed = 0;  // heads that `rows` is for
  const auto copy = [&](const ops::CacheTensor& cache) {
    if (cache.data == nullptr || cache.shape[3] == 0) return;
    const int64_t heads = cache.shape[1], size = cache.shape[2], vectors = cache.shape[0] * heads * size;
    if (heads != listed) {
      rows.clear();
      for (size_t i = 0; i < pairs.size(); i += 2) {
        for (int64_t head = 0; head < heads; ++head) {
          const auto row = [&](int32_t slot) {
            return static_cast<int32_t>((slot / size * heads + head) * size + slot % size);
          };
          rows.insert(rows.end(), {row(pairs[i]), row(pairs[i + 1])});
        }
      }
      listed = heads;
    }
    copy_in_parts(c, Tensor(cache.data, cache.dtype, {vectors, cache.shape[3]}), rows);
    if (cache.scales == nullptr) return;
    copy_in_parts(c, Tensor(reinterpret_cast<std::byte*>(cache.scales), &kFloat32, {vectors, 1}), rows);
  };
  for (const Layer& layer : layers_) {
    CHECK(layer.group == 0 && layer.share.whole(), "tokens of a cache of several groups or ranks are not copied alone");
    copy(layer.k);
    copy(layer.v);
  }
}

namespace {

// The regions' bytes of a block follow each other, each from a multiple of 16 on.
size_t packed_bytes_of(const Tensor& region) { return (bytes_of(region.dtype, region.row_elements()) + 15) / 16 * 16; }

// Calls f(region, the columns of `packed` that its bytes take).
template <class F>
void each_packed(const std::vector<Tensor>& regions, const Tensor& packed, size_t at, F&& f) {
  for (const Tensor& region : regions) {
    if (region.row_elements() == 0) continue;
    Tensor columns(packed.data + at, region.dtype, {packed.rows(), region.row_elements()});
    columns.row_stride = packed.row_stride / region.dtype->block_bytes;
    f(region, columns);
    at += packed_bytes_of(region);
  }
}

}  // namespace

size_t KvCache::packed_bytes() const {
  size_t bytes = 0;
  for (const Tensor& region : regions_) bytes += packed_bytes_of(region);
  return bytes;
}

void KvCache::pack(ops::Ctx& c, const Tensor& packed, size_t at, const Indices& pairs) const {
  each_packed(regions_, packed, at,
              [&](const Tensor& region, const Tensor& columns) { ops::copy_rows(c, columns, region, pairs); });
}

void KvCache::unpack(ops::Ctx& c, const Tensor& packed, size_t at, const Indices& pairs) const {
  each_packed(regions_, packed, at,
              [&](const Tensor& region, const Tensor& columns) { ops::copy_rows(c, region, columns, pairs); });
}

}  // namespace sluice
