// Hyper-connections: the streams are kept twice, as a sublayer found them and as it leaves them.
#include "nn/hyper_connections.h"

#include "ops/compression.h"

namespace sluice {

StreamWeights::StreamWeights(const Weights& w, const Names& names, const Spec& spec, int64_t hidden,
                             bool collapses_only)
    : spec_(spec), columns_(collapses_only ? spec.streams : int64_t{2 + spec.streams} * spec.streams) {
  LoadContext& context = w.context();
  const int64_t inputs = spec.streams * hidden;
  matrix_ = PackedWeight(context, &kFloat32, columns_, inputs);
  const TensorEntry* entry = w.tensor(names.matrix, {columns_, inputs});
  if (entry != nullptr && context.packs()) {
    int64_t row = 0;
    for (const Tensor& rows : entry->rows(0, columns_)) {
      matrix_.pack(context, row, rows);
      row += rows.rows();
    }
  }
  base_ = Vector(context, w.vector(names.base, columns_));
  scale_ = Vector(context, w.vector(names.scale, collapses_only ? 1 : 3));
}

void StreamWeights::into(ops::Ctx& c, const Tensor& weights, const Tensor& streams) const {
  Arena::Scope scope(c.arena);
  const Tensor normed = c.arena.take(&kFloat32, streams.shape);
  ops::rms_norm(c, normed, streams, nullptr, spec_.norm_eps);
  ops::matmul(c, {.out = weights, .x = normed, .weight = &matrix_.view()});
  ops::stream_weights(c, {.logits = weights,
                          .scale = scale_.data(),
                          .base = base_.data(),
                          .streams = spec_.streams,
                          .iterations = spec_.iterations,
                          .eps = spec_.eps});
}

Tensor HyperConnections::by_stream(const Tensor& streams) const {
  return Tensor(streams.data, &kFloat32, {streams.rows() * spec_.streams, hidden_});
}

std::vector<Shape> HyperConnections::shapes(int64_t tokens) const {
  const int64_t n = spec_.streams;
  std::vector<Shape> all{{tokens, n * hidden_}, {tokens, n * hidden_}, {tokens, (2 + n) * n}};
  if (table_columns_ > 0) all.push_back({tokens, table_columns_});
  return all;
}

AuxiliaryStream::Tensors HyperConnections::begin(ops::Ctx& c, const BatchView& batch, const Tensor& x) {
  Tensors made;
  for (const Shape& shape : shapes(x.rows())) made.push_back(c.arena.take(&kFloat32, shape));
  for (int64_t i = 0; i < spec_.streams; ++i) ops::copy(c, made[0].slice_columns(i * hidden_, hidden_), x);
  if (table_columns_ > 0) tables_.into(c, made[kTable], batch.tokens);
  return made;
}

void HyperConnections::before_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const {
  const Tensor found = auxiliary[layer % 2], weights = auxiliary[2];
  sublayers_[layer].into(c, weights, found);
  ops::combine(c, {.out = x, .x = by_stream(found), .weights = weights.slice_columns(0, spec_.streams), .places = {}});
}

void HyperConnections::after_layer(ops::Ctx& c, int layer, const Tensors& auxiliary, const Tensor& x) const {
  const Tensor found = auxiliary[layer % 2], made = auxiliary[(layer + 1) % 2], weights = auxiliary[2];
  const int64_t n = spec_.streams;
  for (int64_t i = 0; i < n; ++i) {
    const Tensor to = made.slice_columns(i * hidden_, hidden_);
    ops::combine(c, {.out = to, .x = by_stream(found), .weights = weights.slice_columns((2 + i) * n, n), .places = {}});
    ops::combine(c, {.out = to, .x = x, .weights = weights.slice_columns(n + i, 1), .places = {}, .accumulate = true});
  }
}

void HyperConnections::end(ops::Ctx& c, const BatchView& batch, const Tensors& auxiliary, const Tensor& rows) const {
  if (rows.rows() == 0) return;
  Arena::Scope scope(c.arena);
  const Tensor streams = c.arena.take(&kFloat32, {rows.rows(), spec_.streams * hidden_});
  ops::gather_rows(c, streams, auxiliary[sublayers_.size() % 2], batch.sample_rows);
  const Tensor weights = c.arena.take(&kFloat32, {rows.rows(), spec_.streams});
  head_.into(c, weights, streams);
  ops::combine(c, {.out = rows, .x = by_stream(streams), .weights = weights, .places = {}});
}

}  // namespace sluice
