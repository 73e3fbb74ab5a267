// What adapters do besides small matrices, made from the model's own weights: DoRA, replaced modules, biases,
// embeddings.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "lora/adapter.h"
#include "sluice/error.h"

namespace sluice {
namespace {

// Turns [columns, rows] into [rows, columns].
std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out(values.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      out[static_cast<size_t>(i * columns + j)] = values[static_cast<size_t>(j * rows + i)];
    }
  }
  return out;
}

// The model's own matrix [rows, columns] of a module.
std::vector<float> own_matrix(const Checkpoint& model, const LoraSite::Part& part, int64_t rows, int64_t columns,
                              ops::Queue& queue) {
  const TensorEntry* entry = model.find(part.tensor);
  CHECK(entry != nullptr, "{}", part.tensor);
  Buffer memory;
  const TensorEntry dense = entry->in_memory(queue.threads(), memory);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  CHECK(dense.shape.elements() == rows * columns, "{} is {}", part.tensor, dense.shape.str());
  dense.read(values.data());
  return part.transposed ? turned(values, rows, columns) : values;
}

// scale * b a, [outputs, inputs].
std::vector<float> product(const Adapter::Module& m) {
  std::vector<float> out(static_cast<size_t>(m.outputs * m.inputs));
  for (int64_t i = 0; i < m.outputs; ++i) {
    float* row = out.data() + i * m.inputs;
    for (int64_t r = 0; r < m.rank; ++r) {
      const float b = m.scale * m.b[static_cast<size_t>(i * m.rank + r)];
      const float* a = m.a.data() + r * m.inputs;
      for (int64_t j = 0; j < m.inputs; ++j) row[j] += b * a[j];
    }
  }
  return out;
}

// What is added to the module's matrix, [outputs, inputs]. A matrix that replaces it is stored as the model stores its
// own.
std::vector<float> difference(const Adapter::Module& m, const LoraSite::Part& part, int64_t inputs,
                              const Checkpoint& model, ops::Queue& queue) {
  const bool replaces = m.rank == 0;
  const int64_t outputs = part.module_outputs;
  const std::vector<float> before = own_matrix(model, part, outputs, inputs, queue);
  std::vector<float> after = !replaces ? product(m) : part.transposed ? turned(m.saved, outputs, inputs) : m.saved;
  for (size_t i = 0; i < m.magnitude.size(); ++i) {
    float* row = after.data() + static_cast<int64_t>(i) * m.inputs;
    const float* own = before.data() + static_cast<int64_t>(i) * m.inputs;
    double squares = 0;
    for (int64_t j = 0; j < m.inputs; ++j) {
      row[j] += own[j];
      squares += double{row[j]} * row[j];
    }
    const auto factor = static_cast<float>(m.magnitude[i] / std::sqrt(squares));
    for (int64_t j = 0; j < m.inputs; ++j) row[j] *= factor;
  }
  for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
  return after;
}

// The rows that are outputs of the layer, in its order, and of them the columns that are its inputs.
std::vector<float> chosen(const std::vector<float>& all, int64_t columns, const std::vector<RowRange>& rows,
                          const RowRange& inputs) {
  std::vector<float> out;
  for (const RowRange& range : rows) {
    for (int64_t row = range.begin; row < range.begin + range.count; ++row) {
      const auto begin = all.begin() + row * columns + inputs.begin;
      out.insert(out.end(), begin, begin + inputs.count);
    }
  }
  return out;
}

Buffer moved(const std::vector<float>& values, Memory& memory) {
  Buffer buffer(values.size() * sizeof(float), memory);
  memory.copy(buffer.data(), values.data(), values.size() * sizeof(float));
  return buffer;
}

void pack(Adapter::Extra& extra, std::vector<float> values, int64_t inputs, ops::Queue& queue) {
  const ops::MatmulKernels& kernels = queue.device().ops().matmul.at(&kFloat32);
  ops::Weight& weight = extra.what.weight;
  weight = {.dtype = &kFloat32, .n = static_cast<int64_t>(values.size()) / inputs, .k = inputs};
  extra.weight = Buffer(kernels.packed_bytes(weight.n, weight.k), queue.device().memory());
  weight.data = extra.weight.data();
  kernels.pack(queue, weight, 0, Tensor(values.data(), &kFloat32, {weight.n, weight.k}));
}

void set_rows(Adapter::Extra& extra, const std::vector<float>& values, int64_t columns, Memory& memory) {
  extra.rows = moved(values, memory);
  extra.what.rows = Tensor(extra.rows.data(), &kFloat32, {static_cast<int64_t>(values.size()) / columns, columns});
}

// A table [ids, columns] after DoRA, which scales its columns to the lengths in `magnitude`.
std::vector<float> scaled_table(const Adapter::Module& m, const LoraSite::Part& part, const Checkpoint& model,
                                ops::Queue& queue) {
  const int64_t columns = m.outputs;
  std::vector<float> table = own_matrix(model, part, m.inputs, columns, queue);
  std::vector<double> squares(static_cast<size_t>(columns));
  std::vector<float> a(static_cast<size_t>(m.rank));  // of one id
  for (int64_t id = 0; id < m.inputs; ++id) {
    float* row = table.data() + id * columns;
    for (size_t r = 0; r < a.size(); ++r)
      a[r] = m.scale * m.a[r * static_cast<size_t>(m.inputs) + static_cast<size_t>(id)];
    for (int64_t j = 0; j < columns; ++j) {
      row[j] += std::inner_product(a.begin(), a.end(), m.b.begin() + j * m.rank, 0.0f);
      squares[static_cast<size_t>(j)] += double{row[j]} * row[j];
    }
  }
  std::vector<float> factors(squares.size());
  for (size_t j = 0; j < factors.size(); ++j) {
    factors[j] = static_cast<float>(m.magnitude[j] / std::sqrt(squares[j]));
  }
  for (size_t i = 0; i < table.size(); ++i) table[i] *= factors[i % factors.size()];
  return table;
}

void prepare_table(Adapter::Extra& extra, const Adapter::Module& m, const LoraSite::Part& part, const Checkpoint& model,
                   ops::Queue& queue) {
  Memory& memory = queue.device().memory();
  if (m.rank == 0) return set_rows(extra, m.saved, m.inputs, memory);
  if (!m.magnitude.empty()) return set_rows(extra, scaled_table(m, part, model, queue), m.outputs, memory);
  std::vector<float> rows(m.a.size()), b = m.b;
  for (int64_t r = 0; r < m.rank; ++r) {
    for (int64_t id = 0; id < m.inputs; ++id) {
      rows[static_cast<size_t>(id * m.rank + r)] = m.a[static_cast<size_t>(r * m.inputs + id)];
    }
  }
  for (float& value : b) value *= m.scale;
  set_rows(extra, rows, m.rank, memory);
  pack(extra, std::move(b), m.rank, queue);
}

std::vector<float> added_bias(const Adapter& adapter, const Adapter::Module& m, const LoraSite::Part& part,
                              const Checkpoint& model) {
  std::vector<float> bias = m.bias;
  for (float& value : bias) value *= m.scale;
  if (m.saved_bias.empty()) return bias;
  const TensorEntry* own = model.find(part.module + ".bias");
  if (own == nullptr || own->shape.elements() != static_cast<int64_t>(m.saved_bias.size())) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("{}: module '{}' has a bias, but the model's has none", adapter.folder, m.name));
  }
  std::vector<float> before(m.saved_bias.size());
  own->read(before.data());
  bias = m.saved_bias;
  for (size_t i = 0; i < bias.size(); ++i) bias[i] -= before[i];
  return bias;
}

// Lengths of rows (DoRA) are those of whole rows, whatever this rank has of them. A rank that adds nothing has an extra
// as well: all ranks must exchange results of one type.
void prepare_layer(Adapter::Extra& extra, const Adapter& adapter, const Adapter::Module& m, const LoraSite::Part& part,
                   const Checkpoint& model, ops::Queue& queue) {
  const LoraShare& share = extra.site->share;
  if (m.rank == 0 || !m.magnitude.empty()) {
    const int64_t inputs = share.module_inputs;
    pack(extra, chosen(difference(m, part, inputs, model, queue), inputs, part.rows, share.inputs), share.inputs.count,
         queue);
  }
  const std::vector<float> bias = added_bias(adapter, m, part, model);
  if (bias.empty() || !share.adds_bias) return;
  const std::vector<float> values = chosen(bias, 1, part.rows, {0, 1});
  extra.bias = moved(values, queue.device().memory());
  extra.what.bias = Tensor(extra.bias.data(), &kFloat32, {1, static_cast<int64_t>(values.size())});
}

// What is added to the rows of some tokens, [tokens, columns].
std::vector<float> token_difference(const Adapter::Module& m, const LoraSite::Part& part, const Checkpoint& model,
                                    ops::Queue& queue) {
  const TensorEntry* entry = model.find(part.tensor);
  CHECK(entry != nullptr, "{}", part.tensor);
  std::vector<float> out = m.saved, own(static_cast<size_t>(m.inputs));
  Buffer memory;
  for (size_t i = 0; i < m.tokens.size(); ++i) {
    for (const Tensor& row : entry->rows_in_memory(m.tokens[i], 1, queue.threads(), memory)) {
      to_float(row.dtype, row.data, own.data(), own.size());
    }
    for (size_t j = 0; j < own.size(); ++j) out[i * own.size() + j] -= own[j];
  }
  return out;
}

// Tokens of a table, as many as are added at once: rows say which of them an id is.
void prepare_table_tokens(Adapter::Extra& extra, const Adapter::Module& m, const std::vector<float>& added,
                          RowRange tokens, ops::Queue& queue) {
  const int64_t ids = extra.site->share.module_inputs, n = tokens.count;
  std::vector<float> rows(static_cast<size_t>(ids * n)), columns(static_cast<size_t>(m.inputs * n));
  for (int64_t i = 0; i < n; ++i) {
    rows[static_cast<size_t>(m.tokens[static_cast<size_t>(tokens.begin + i)] * n + i)] = 1;
    for (int64_t j = 0; j < m.inputs; ++j) {
      columns[static_cast<size_t>(j * n + i)] = added[static_cast<size_t>((tokens.begin + i) * m.inputs + j)];
    }
  }
  set_rows(extra, rows, n, queue.device().memory());
  pack(extra, std::move(columns), n, queue);
}

// The rows of tokens by their outputs in a layer, as far as this rank has them.
std::map<int64_t, size_t> token_outputs(const Adapter::Module& m, const LoraSite::Part& part) {
  std::map<int64_t, size_t> out;
  for (size_t i = 0; i < m.tokens.size(); ++i) {
    int64_t first = 0;
    for (const RowRange& range : part.rows) {
      const int64_t at = m.tokens[i] - range.begin;
      if (at >= 0 && at < range.count) out.emplace(first + at, i);
      first += range.count;
    }
  }
  return out;
}

using MakeExtra = std::function<Adapter::Extra&()>;

// A head has an extra for each run of neighbouring outputs.
void prepare_head_tokens(const Adapter::Module& m, const LoraSites::Place& place, const std::vector<float>& added,
                         ops::Queue& queue, const MakeExtra& make) {
  const RowRange& inputs = place.site->share.inputs;
  const std::map<int64_t, size_t> outputs = token_outputs(m, place.site->parts[place.part]);
  if (outputs.empty()) make();
  for (auto at = outputs.begin(); at != outputs.end();) {
    const int64_t first = at->first;
    std::vector<float> rows;
    for (int64_t next = first; at != outputs.end() && at->first == next; ++at, ++next) {
      const auto row = added.begin() + static_cast<int64_t>(at->second) * m.inputs + inputs.begin;
      rows.insert(rows.end(), row, row + inputs.count);
    }
    Adapter::Extra& extra = make();
    extra.what.first += first;
    pack(extra, std::move(rows), inputs.count, queue);
  }
}

void prepare_tokens(const Adapter::Module& m, const LoraSites& sites, const LoraSites::Place& place,
                    const Checkpoint& model, ops::Queue& queue, const MakeExtra& make) {
  const std::vector<float> added = token_difference(m, place.site->parts[place.part], model, queue);
  if (!place.site->table) return prepare_head_tokens(m, place, added, queue, make);
  const auto count = static_cast<int64_t>(m.tokens.size());
  for (int64_t begin = 0; begin < count; begin += sites.room().rank) {
    prepare_table_tokens(make(), m, added, {begin, std::min<int64_t>(sites.room().rank, count - begin)}, queue);
  }
}

}  // namespace

void prepare_adapter(Adapter& adapter, const LoraSites& sites, const Checkpoint& model, ops::Queue& queue) {
  for (const Adapter::Module& m : adapter.modules) {
    if (m.plain()) continue;
    for (const LoraSites::Place& place : places_of(sites, m)) {
      const LoraSite::Part& part = place.site->parts[place.part];
      if (place.site->share.elsewhere || part.rows.empty()) continue;
      const auto make = [&, site = place.site, first = place.site->first_output(place.part)]() -> Adapter::Extra& {
        Adapter::Extra& extra = *adapter.extras.emplace_back(std::make_unique<Adapter::Extra>());
        extra.site = site;
        extra.what.first = first;
        return extra;
      };
      if (!m.tokens.empty()) {
        prepare_tokens(m, sites, place, model, queue, make);
      } else if (place.site->table) {
        prepare_table(make(), m, part, model, queue);
      } else {
        prepare_layer(make(), adapter, m, part, model, queue);
      }
    }
  }
}

}  // namespace sluice
