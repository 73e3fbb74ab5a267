// Gated delta net: unpacks each layout's projections for the delta rule.
#include "nn/recurrent/delta_net.h"

namespace sluice {
namespace {

// Rows of a projection that is stored by key head. `parts` are the numbers of rows of each part within one key head.
std::vector<RowRange> by_part(int key_heads, std::initializer_list<int64_t> parts) {
  int64_t stride = 0, at = 0;
  for (const int64_t rows : parts) stride += rows;
  std::vector<RowRange> all;
  for (const int64_t rows : parts) {
    for (int head = 0; head < key_heads; ++head) all.push_back({head * stride + at, rows});
    at += rows;
  }
  return all;
}

std::vector<Linear::Part> in_parts(const DeltaNetSpec& s) {
  const int64_t q = s.keys(), v = s.values();
  if (s.layout == DeltaNetLayout::kSeparate) {
    return {{"in_proj_qkv", 2 * q + v}, {"in_proj_z", v}, {"in_proj_b", s.heads}, {"in_proj_a", s.heads}};
  }
  if (s.layout == DeltaNetLayout::kApart) {
    return {{"q_proj", q}, {"k_proj", q}, {"v_proj", v}, {"g_proj", v}, {"b_proj", s.heads}, {"a_proj", s.heads}};
  }
  const int64_t mine = s.heads / s.key_heads, values = mine * s.value_dim;
  return {{"in_proj_qkvz", 2 * (q + v), by_part(s.key_heads, {s.key_dim, s.key_dim, values, values})},
          {"in_proj_ba", 2 * int64_t{s.heads}, by_part(s.key_heads, {mine, mine})}};
}

// The tensors of the convolution, which are joined. transformers writes them as equal thirds, whatever belongs to
// queries, keys and values.
std::vector<CausalConv::Part> conv_parts(const Weights& w, const DeltaNetSpec& s) {
  const int64_t channels = s.conv().channels;
  if (s.layout != DeltaNetLayout::kApart) return {{"conv1d", channels}};
  const int64_t third = (channels + 2) / 3;
  const TensorEntry* first = w.context().checkpoint.find((w / "q_conv1d").prefix() + "weight");
  if (first != nullptr && first->shape.rank() == 3 && first->shape[0] == third) {
    return {{"q_conv1d", third}, {"k_conv1d", third}, {"v_conv1d", channels - 2 * third}};
  }
  return {{"q_conv1d", s.keys()}, {"k_conv1d", s.keys()}, {"v_conv1d", s.values()}};
}

// The outputs of the input projection (queries, keys, values, gate, beta, dt) that belong to the part.
Linear::Split in_split(const DeltaNetSpec& s, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  std::vector<RowRange> kept = delta_columns(s, part);
  const int64_t gate = 2 * s.keys() + s.values(), beta = gate + s.values();
  kept.push_back(scaled(part->heads, s.value_dim, gate));
  kept.push_back(scaled(part->heads, 1, beta));
  kept.push_back(scaled(part->heads, 1, beta + s.heads));
  return {.outputs = std::move(kept)};
}

Linear::Split out_split(const DeltaNetSpec& s, const std::optional<DeltaPart>& part) {
  if (!part) return {};
  return {.inputs = scaled(part->heads, s.value_dim)};
}

}  // namespace

DeltaNet::DeltaNet(const Weights& w, const DeltaNetSpec& s, int hidden)
    : DeltaNet(w, s, hidden, delta_part(w.context().ranks, s)) {}

DeltaNet::DeltaNet(const Weights& w, const DeltaNetSpec& s, int hidden, const std::optional<DeltaPart>& part)
    : spec_(s),
      in_(w, in_parts(s), hidden, false, in_split(s, part)),
      out_(w, {{s.layout == DeltaNetLayout::kApart ? "o_proj" : "out_proj", hidden}}, s.values(), false,
           out_split(s, part)),
      rule_(w, s, part, conv_parts(w, s), s.layout == DeltaNetLayout::kApart ? "o_norm" : "norm",
            w.vector("A_log", s.heads), w.vector("dt_bias", s.heads)) {
  spec_.keep(part);
}

void DeltaNet::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                          bool accumulate) const {
  const int64_t values = spec_.values(), qkv = 2 * spec_.keys() + values;
  const Tensor projected = in_(c, x);
  const Tensor y = rule_(c, step,
                         {.qkv = projected.slice_columns(0, qkv),
                          .dt = projected.slice_columns(qkv + values + spec_.heads, spec_.heads),
                          .beta = projected.slice_columns(qkv + values, spec_.heads),
                          .gate = projected.slice_columns(qkv, values),
                          .gate_activation = ops::Activation::kSilu});
  out_.into(c, out, y, accumulate);
}

}  // namespace sluice
