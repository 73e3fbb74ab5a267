// Tests checkpoints of other quantizers. A small model is quantized here by the plain definition of each format. It
// must give the logits of the same model with the weights that its integers and scales represent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>

#include "golden/folder_model.h"
#include "golden/goldens.h"
#include "golden/rank_group.h"
#include "quant/fp4.h"
#include "quant/groups.h"
#include "quant/nf4.h"
#include "sluice/error.h"

namespace sluice::quantized_test {
namespace {

using testing::TempFolder;

struct Stored {
  DType type = nullptr;
  Shape shape;
  std::vector<std::byte> bytes;
};
using Tensors = std::map<std::string, Stored>;

template <class T>
void put(Tensors& tensors, const std::string& name, DType type, const Shape& shape, const std::vector<T>& values) {
  Stored& to = tensors[name];
  to = {type, shape, std::vector<std::byte>(values.size() * sizeof(T))};
  std::memcpy(to.bytes.data(), values.data(), to.bytes.size());
}
void put_floats(Tensors& tensors, const std::string& name, DType type, const Shape& shape,
                const std::vector<float>& values) {
  Stored& to = tensors[name];
  to = {type, shape, std::vector<std::byte>(values.size() * static_cast<size_t>(type->block_bytes))};
  from_float(type, values.data(), to.bytes.data(), values.size());
}

float rounded_to(DType type, float x) {
  std::array<std::byte, 4> stored;
  from_float(type, &x, stored.data(), 1);
  to_float(type, stored.data(), &x, 1);
  return x;
}

struct Matrix {
  int64_t n = 0, k = 0;
  std::vector<float> values;
  float& at(int64_t o, int64_t i) { return values[static_cast<size_t>(o * k + i)]; }
};

// The quantized integers of a matrix; `group_of` maps inputs to groups.
struct Integers {
  int64_t groups = 0;
  std::vector<int> q;             // [n, k]
  std::vector<float> scale;       // [n, groups]
  std::vector<int> zero;          // [n, groups]
  std::vector<int32_t> group_of;  // [k]
};

// Rounds the matrix to integers and replaces it by the values that they represent.
Integers quantize(Matrix& m, int bits, int64_t group, bool symmetric, DType scale_type,
                  std::vector<int32_t> group_of = {}) {
  Integers out{.groups = (m.k + group - 1) / group, .q = {}, .scale = {}, .zero = {}, .group_of = std::move(group_of)};
  if (out.group_of.empty()) {
    for (int64_t i = 0; i < m.k; ++i) out.group_of.push_back(static_cast<int32_t>(i / group));
  }
  const int most = (1 << bits) - 1;
  for (int64_t o = 0; o < m.n; ++o) {
    for (int64_t g = 0; g < out.groups; ++g) {
      float low = 0, high = 0;
      for (int64_t i = 0; i < m.k; ++i) {
        if (out.group_of[i] != g) continue;
        low = std::min(low, m.at(o, i)), high = std::max(high, m.at(o, i));
      }
      const float largest = std::max(high, -low);
      const float scale = rounded_to(scale_type, symmetric ? 2 * largest / most : (high - low) / most);
      out.scale.push_back(scale);
      out.zero.push_back(symmetric ? 1 << (bits - 1) : std::clamp(static_cast<int>(std::round(-low / scale)), 1, most));
    }
    for (int64_t i = 0; i < m.k; ++i) {
      const size_t g = static_cast<size_t>(o * out.groups + out.group_of[i]);
      const int q = std::clamp(static_cast<int>(std::round(m.at(o, i) / out.scale[g])) + out.zero[g], 0, most);
      out.q.push_back(q);
      m.at(o, i) = out.scale[g] * static_cast<float>(q - out.zero[g]);
    }
  }
  return out;
}

using Field = std::function<int(int64_t row, int64_t column)>;
// Packs [rows, columns] numbers of `bits` bits along the columns; `order` says which position in a word each of its
// columns takes.
std::vector<int32_t> packed_columns(int64_t rows, int64_t columns, int bits, const Field& field,
                                    const std::vector<int>& order = {}) {
  const int64_t per = 32 / bits, words = (columns * bits + 31) / 32;
  std::vector<uint32_t> out(static_cast<size_t>(rows * words));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t place = order.empty() ? c : c / per * per + order[static_cast<size_t>(c % per)];
      for (int64_t bit = 0; bit < bits; ++bit) {
        const int64_t at = place * bits + bit;
        const auto one = static_cast<uint32_t>(field(r, c) >> bit & 1);
        out[static_cast<size_t>(r * words + at / 32)] |= one << (at % 32);
      }
    }
  }
  return {out.begin(), out.end()};
}
std::vector<int32_t> packed_rows(int64_t rows, int64_t columns, int bits, const Field& field) {
  const int64_t words = (rows * bits + 31) / 32;
  const std::vector<int32_t> turned =
      packed_columns(columns, rows, bits, [&](int64_t c, int64_t r) { return field(r, c); });
  std::vector<int32_t> out(turned.size());
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t w = 0; w < words; ++w)
      out[static_cast<size_t>(w * columns + c)] = turned[static_cast<size_t>(c * words + w)];
  }
  return out;
}
std::vector<float> turned(const std::vector<float>& values, int64_t rows, int64_t columns) {
  std::vector<float> out;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) out.push_back(values[static_cast<size_t>(r * columns + c)]);
  }
  return out;
}

// Stores a matrix in a format under NAME.something, and replaces it by the stored values.
using Writer = std::function<void(Tensors&, const std::string& name, Matrix&)>;

// `indexed`: the file has the group of every input, as it must if they are in disorder.
Writer gptq(int bits, int64_t group, bool symmetric, int zero_offset, bool disorder = false, bool indexed = true) {
  return [=](Tensors& to, const std::string& name, Matrix& m) {
    const int64_t size = group < 0 ? m.k : group;
    std::vector<int32_t> order;
    if (disorder) {
      for (int64_t i = 0; i < m.k; ++i) order.push_back(static_cast<int32_t>(i * 7 % m.k / size));
    }
    const Integers q = quantize(m, bits, size, symmetric, &kFloat16, order);
    const auto quant = [&](int64_t i, int64_t o) { return q.q[static_cast<size_t>(o * m.k + i)]; };
    const auto zero = [&](int64_t g, int64_t o) { return q.zero[static_cast<size_t>(o * q.groups + g)] - zero_offset; };
    put(to, name + ".qweight", &kInt32, {m.k * bits / 32, m.n}, packed_rows(m.k, m.n, bits, quant));
    put(to, name + ".qzeros", &kInt32, {q.groups, m.n * bits / 32}, packed_columns(q.groups, m.n, bits, zero));
    put_floats(to, name + ".scales", &kFloat16, {q.groups, m.n}, turned(q.scale, m.n, q.groups));
    if (indexed) put(to, name + ".g_idx", &kInt32, {m.k}, q.group_of);
  };
}

// Values of 8 bits, one matrix of 3 bits, and 4 bits otherwise.
void gptq_of_mixed_bits(Tensors& to, const std::string& name, Matrix& m) {
  if (name.ends_with("v_proj")) return gptq(8, 64, true, 1)(to, name, m);
  if (name.ends_with("layers.0.mlp.down_proj")) return gptq(3, 32, true, 1)(to, name, m);
  gptq(4, 64, true, 1)(to, name, m);
}

void awq(Tensors& to, const std::string& name, Matrix& m) {
  const Integers q = quantize(m, 4, 64, false, &kFloat16);
  const std::vector<int> order = {0, 4, 1, 5, 2, 6, 3, 7};
  const auto quant = [&](int64_t i, int64_t o) { return q.q[static_cast<size_t>(o * m.k + i)]; };
  const auto zero = [&](int64_t g, int64_t o) { return q.zero[static_cast<size_t>(o * q.groups + g)]; };
  put(to, name + ".qweight", &kInt32, {m.k, m.n / 8}, packed_columns(m.k, m.n, 4, quant, order));
  put(to, name + ".qzeros", &kInt32, {q.groups, m.n / 8}, packed_columns(q.groups, m.n, 4, zero, order));
  put_floats(to, name + ".scales", &kFloat16, {q.groups, m.n}, turned(q.scale, m.n, q.groups));
}

Writer packed(int bits, int64_t group, bool symmetric) {
  return [=](Tensors& to, const std::string& name, Matrix& m) {
    const Integers q = quantize(m, bits, group < 0 ? m.k : group, symmetric, &kBFloat16);
    const auto quant = [&](int64_t o, int64_t i) { return q.q[static_cast<size_t>(o * m.k + i)]; };
    const auto zero = [&](int64_t o, int64_t g) { return q.zero[static_cast<size_t>(o * q.groups + g)]; };
    put(to, name + ".weight_packed", &kInt32, {m.n, m.k * bits / 32}, packed_columns(m.n, m.k, bits, quant));
    put_floats(to, name + ".weight_scale", &kBFloat16, {m.n, q.groups}, q.scale);
    put(to, name + ".weight_shape", &kInt64, {2}, std::vector<int64_t>{m.n, m.k});
    if (symmetric) return;
    const int64_t per = 32 / bits;
    put(to, name + ".weight_zero_point", &kInt32, {(m.n + per - 1) / per, q.groups},
        packed_rows(m.n, q.groups, bits, zero));
  };
}

void int8(Tensors& to, const std::string& name, Matrix& m) {
  const Integers q = quantize(m, 8, m.k, true, &kFloat32);
  std::vector<int8_t> values;
  for (const int v : q.q) values.push_back(static_cast<int8_t>(v - 128));
  put(to, name + ".weight", &kInt8, {m.n, m.k}, values);
  put_floats(to, name + ".weight_scale", &kFloat32, {m.n, 1}, q.scale);
}

// One scale and one zero point for the matrix.
void int8_tensor(Tensors& to, const std::string& name, Matrix& m) {
  Matrix row{.n = 1, .k = m.n * m.k, .values = std::move(m.values)};
  const Integers q = quantize(row, 8, row.k, false, &kFloat32);
  m.values = std::move(row.values);
  std::vector<int8_t> values;
  for (const int v : q.q) values.push_back(static_cast<int8_t>(v - 128));
  put(to, name + ".weight", &kInt8, {m.n, m.k}, values);
  put_floats(to, name + ".weight_scale", &kFloat32, {1}, q.scale);
  put(to, name + ".weight_zero_point", &kInt8, {1}, std::vector<int8_t>{static_cast<int8_t>(q.zero[0] - 128)});
}

// One scale per block of this many outputs and inputs; 0: all of them.
Writer fp8(int64_t block_outputs, int64_t block_inputs, const std::string& scale_name, const Shape& scale_shape = {}) {
  return [=](Tensors& to, const std::string& name, Matrix& m) {
    const int64_t outputs = block_outputs > 0 ? block_outputs : m.n, inputs = block_inputs > 0 ? block_inputs : m.k;
    const int64_t rows = (m.n + outputs - 1) / outputs, columns = (m.k + inputs - 1) / inputs;
    std::vector<float> scales(static_cast<size_t>(rows * columns));
    const auto scale = [&](int64_t o, int64_t i) -> float& {
      return scales[static_cast<size_t>(o / outputs * columns + i / inputs)];
    };
    for (int64_t o = 0; o < m.n; ++o) {
      for (int64_t i = 0; i < m.k; ++i) scale(o, i) = std::max(scale(o, i), std::abs(m.at(o, i)) / 448.0f);
    }
    std::vector<uint8_t> values;
    for (int64_t o = 0; o < m.n; ++o) {
      for (int64_t i = 0; i < m.k; ++i) {
        values.push_back(quant::Fp8::nearest(m.at(o, i) / scale(o, i)));
        m.at(o, i) = scale(o, i) * quant::Fp8::value(values.back());
      }
    }
    put(to, name + ".weight", &kFloat8E4M3, {m.n, m.k}, values);
    put_floats(to, name + scale_name, &kFloat32, scale_shape.rank() > 0 ? scale_shape : Shape{rows, columns}, scales);
    put_floats(to, name + ".input_scale", &kFloat32, {1}, {0.5f});
  };
}

// bitsandbytes: indices of levels, in blocks of `block` numbers of the whole matrix. If `nested`, the scales are
// quantized in blocks of 256.
Writer levels(const std::string& kind, const std::array<float, 16>& levels, int64_t block, bool nested) {
  return [=](Tensors& to, const std::string& name, Matrix& m) {
    const auto count = static_cast<int64_t>(m.values.size()), blocks = (count + block - 1) / block;
    std::vector<float> scales(static_cast<size_t>(blocks)), map(256), outer;
    for (int64_t i = 0; i < count; ++i) {
      float& scale = scales[static_cast<size_t>(i / block)];
      scale = std::max(scale, std::abs(m.values[static_cast<size_t>(i)]));
    }
    const float offset = 0.05f;
    std::vector<uint8_t> codes;
    for (int i = 0; i < 256; ++i) map[static_cast<size_t>(i)] = static_cast<float>(i - 128) / 128.0f;
    for (int64_t i = 0; nested && i < blocks; ++i) {
      if (i % 256 == 0) outer.push_back(0.11f + 0.01f * static_cast<float>(i / 256));
      float& scale = scales[static_cast<size_t>(i)];
      codes.push_back(
          static_cast<uint8_t>(std::clamp(std::round((scale - offset) / outer.back() * 128), -127.0f, 127.0f) + 128));
      scale = map[codes.back()] * outer.back() + offset;
    }
    std::vector<uint8_t> packed(static_cast<size_t>((count + 1) / 2));
    for (int64_t i = 0; i < count; ++i) {
      float& value = m.values[static_cast<size_t>(i)];
      const float scale = scales[static_cast<size_t>(i / block)];
      const auto best =
          std::ranges::min_element(levels, {}, [&](float level) { return std::abs(level * scale - value); });
      packed[static_cast<size_t>(i / 2)] |= static_cast<uint8_t>((best - levels.begin()) << (i % 2 == 0 ? 4 : 0));
      value = *best * scale;
    }
    const std::string weight = name + ".weight";
    put(to, weight, &kUInt8, {(count + 1) / 2, 1}, packed);
    put_floats(to, weight + ".quant_map", &kFloat32, {16}, {levels.begin(), levels.end()});
    Json state = {{"quant_type", kind}, {"blocksize", block}, {"dtype", "bfloat16"}, {"shape", {m.n, m.k}}};
    if (nested) {
      put(to, weight + ".absmax", &kUInt8, {blocks}, codes);
      put_floats(to, weight + ".nested_absmax", &kFloat32, {static_cast<int64_t>(outer.size())}, outer);
      put_floats(to, weight + ".nested_quant_map", &kFloat32, {256}, map);
      state.update(Json{{"nested_blocksize", 256}, {"nested_dtype", "float32"}, {"nested_offset", offset}});
    } else {
      put_floats(to, weight + ".absmax", &kFloat32, {blocks}, scales);
    }
    const std::string text = dump_json(state);
    put(to, weight + ".quant_state.bitsandbytes__" + kind, &kUInt8, {static_cast<int64_t>(text.size())},
        std::vector<char>(text.begin(), text.end()));
  };
}

void llm_int8(Tensors& to, const std::string& name, Matrix& m) {
  const Integers q = quantize(m, 8, m.k, true, &kFloat32);
  std::vector<int8_t> values;
  for (const int v : q.q) values.push_back(static_cast<int8_t>(v - 128));
  std::vector<float> most;
  for (const float scale : q.scale) most.push_back(scale * 127);
  put(to, name + ".weight", &kInt8, {m.n, m.k}, values);
  put_floats(to, name + ".SCB", &kFloat32, {m.n}, most);
  put(to, name + ".weight_format", &kUInt8, {}, std::vector<uint8_t>{0});
}

// 4-bit floats with one scale per group: groups of 16 inputs with E4M3 scales and a tensor scale, or groups of 32 with
// powers of two.
Writer fp4(const std::string& weight, bool nvidia, const std::string& whole_name, bool divides) {
  return [=](Tensors& to, const std::string& name, Matrix& m) {
    const int64_t group = nvidia ? 16 : 32;
    const float whole = nvidia ? 0x1.2p-9f : 1.0f;
    std::vector<uint8_t> packed(static_cast<size_t>(m.n * m.k / 2)), scales;
    for (int64_t first = 0; first < m.n * m.k; first += group) {
      float* values = &m.values[static_cast<size_t>(first)];
      float most = 0;
      for (int64_t i = 0; i < group; ++i) most = std::max(most, std::abs(values[i]));
      const int exponent = static_cast<int>(std::floor(std::log2(most))) - 2;
      scales.push_back(nvidia ? quant::Fp8::nearest(most / 6 / whole) : static_cast<uint8_t>(exponent + 127));
      const float scale = nvidia ? quant::Fp8::value(scales.back()) * whole : std::exp2f(static_cast<float>(exponent));
      for (int64_t i = 0; i < group; ++i) {
        const auto best = std::ranges::min_element(
            quant::kFp4Levels, {}, [&](int8_t twice) { return std::abs(0.5f * twice * scale - values[i]); });
        packed[static_cast<size_t>((first + i) / 2)] |=
            static_cast<uint8_t>((best - quant::kFp4Levels) << (i % 2 == 0 ? 0 : 4));
        values[i] = 0.5f * *best * scale;
      }
    }
    put(to, name + weight, &kUInt8, {m.n, m.k / 2}, packed);
    put(to, name + ".weight_scale", nvidia ? &kFloat8E4M3 : &kUInt8, {m.n, m.k / group}, scales);
    if (!whole_name.empty()) put_floats(to, name + whole_name, &kFloat32, {}, {divides ? 1 / whole : whole});
    put_floats(to, name + ".input_scale", &kFloat32, {}, {0.5f});
  };
}

constexpr int64_t kHidden = 256, kInner = 320, kVocabulary = 304, kLayers = 2;

Json config() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", kHidden},
          {"intermediate_size", kInner},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 64},
          {"vocab_size", kVocabulary},
          {"max_position_embeddings", 64},
          {"hidden_act", "silu"},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"dtype", "float32"}};
}

// The model's tensors in both forms.
struct Pair {
  Tensors quantized, plain;
};
Pair make_tensors(const Writer& write) {
  Pair out;
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 0.06f);
  const auto matrix = [&](int64_t n, int64_t k) {
    Matrix m{n, k, std::vector<float>(static_cast<size_t>(n * k))};
    for (float& v : m.values) v = normal(random);
    return m;
  };
  const auto both = [&](const std::string& name, const Shape& shape, const std::vector<float>& values) {
    put_floats(out.quantized, name, &kFloat32, shape, values);
    put_floats(out.plain, name, &kFloat32, shape, values);
  };
  const auto linear = [&](const std::string& name, int64_t n, int64_t k) {
    Matrix m = matrix(n, k);
    write(out.quantized, name, m);
    put_floats(out.plain, name + ".weight", &kFloat32, {n, k}, m.values);
  };
  both("model.embed_tokens.weight", {kVocabulary, kHidden}, matrix(kVocabulary, kHidden).values);
  both("lm_head.weight", {kVocabulary, kHidden}, matrix(kVocabulary, kHidden).values);
  both("model.norm.weight", {kHidden}, std::vector<float>(kHidden, 1.1f));
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    both(prefix + "input_layernorm.weight", {kHidden}, std::vector<float>(kHidden, 0.9f));
    both(prefix + "post_attention_layernorm.weight", {kHidden}, std::vector<float>(kHidden, 1.2f));
    linear(prefix + "self_attn.q_proj", 256, kHidden);
    linear(prefix + "self_attn.k_proj", 128, kHidden);
    linear(prefix + "self_attn.v_proj", 128, kHidden);
    linear(prefix + "self_attn.o_proj", kHidden, 256);
    linear(prefix + "mlp.gate_proj", kInner, kHidden);
    linear(prefix + "mlp.up_proj", kInner, kHidden);
    linear(prefix + "mlp.down_proj", kHidden, kInner);
  }
  return out;
}

void write(const TempFolder& folder, const Json& config, Tensors& tensors) {
  std::vector<NamedTensor> named;
  for (auto& [name, stored] : tensors) named.push_back({name, Tensor(stored.bytes.data(), stored.type, stored.shape)});
  write_model(folder, config, named);
}

std::vector<int32_t> some_ids() {
  std::vector<int32_t> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(static_cast<int32_t>(i * 37 % kVocabulary));
  return ids;
}

TextLogits some_logits(const TempFolder& folder, const char* activation_quantization = "none", const char* backend = "",
                       const std::string& packed_cache = {}) {
  return logits_of(folder, some_ids(), activation_quantization, backend, packed_cache);
}

// The same when several ranks compute the model together.
std::vector<float> logits_of_ranks(const TempFolder& folder, int ranks, const char* backend) {
  EngineOptions options;
  options.backend = backend;
  options.model = folder.path();
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.tensor_parallel_size = ranks;
  options.activation_quantization = "none";
  RankGroup group(options);
  std::vector<float> values;
  for_each_logits(group.runner(), group.plan(), options.block_size, some_ids(), 16,
                  [&](int, std::span<const float> row) { values.insert(values.end(), row.begin(), row.end()); });
  return values;
}

// The largest difference relative to the largest magnitude.
double relative_error(const TextLogits& got, const TextLogits& want) {
  EXPECT_EQ(got.values.size(), want.values.size());
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.values.size(); ++i) {
    worst = std::max(worst, std::abs(double{got.values[i]} - want.values[i]));
    largest = std::max(largest, std::abs(double{want.values[i]}));
  }
  EXPECT_GT(largest, 0.1);
  return worst / largest;
}

// Weights must be read exactly; matmuls may round their inputs to int8. `smaller`: by how much the weights must at
// least be smaller than fp32.
void expect_equal(const Json& quantization, const Writer& writer, double smaller) {
  SCOPED_TRACE(dump_json(quantization));
  Pair tensors = make_tensors(writer);
  const TempFolder quantized, plain;
  Json with = config();
  with["quantization_config"] = quantization;
  write(quantized, with, tensors.quantized);
  write(plain, config(), tensors.plain);
  const TextLogits got = some_logits(quantized), want = some_logits(plain);
  EXPECT_LE(relative_error(some_logits(quantized, "none", "reference"), want), 2e-4);
  EXPECT_LE(relative_error(got, want), 5e-2);
  for (const int ranks : {2, 4}) {  // four ranks cut o_proj through groups of 128, so they gather its inputs
    EXPECT_LE(relative_error({.values = logits_of_ranks(quantized, ranks, "reference")}, want), 2e-4) << ranks;
    EXPECT_LE(relative_error({.values = logits_of_ranks(quantized, ranks, "")}, want), 5e-2) << ranks;
  }
  EXPECT_LT(static_cast<double>(got.weight_bytes) * smaller, static_cast<double>(want.weight_bytes));
  const TempFolder cache;
  const std::string host(ops::select_host_backend().name);
  const std::vector<float> in_memory = some_logits(quantized, "none", host.c_str()).values;
  for (const char* way : {"written", "mapped"}) {
    EXPECT_EQ(some_logits(quantized, "none", host.c_str(), cache / "packed").values, in_memory)
        << "packed cache " << way;
  }
}

TEST(Quantized, Gptq) {
  const auto json = [](int bits, int group, bool order, const char* format) {
    return Json{{"quant_method", "gptq"}, {"bits", bits},        {"group_size", group},        {"desc_act", order},
                {"sym", false},           {"damp_percent", 0.1}, {"checkpoint_format", format}};
  };
  expect_equal(json(4, 64, false, "gptq"), gptq(4, 64, false, 1), 2);
  expect_equal(json(4, 32, false, "gptq_v2"), gptq(4, 32, true, 0), 2);
  expect_equal(json(8, -1, false, "gptq"), gptq(8, -1, false, 1), 1.4);
  expect_equal(json(4, 64, true, "gptq"), gptq(4, 64, false, 1, true), 0.9);
  expect_equal(json(2, 32, false, "gptq"), gptq(2, 32, false, 1), 2);
  expect_equal(json(3, 64, false, "gptq"), gptq(3, 64, false, 1), 2);
  expect_equal(json(4, 64, false, "gptq"), gptq(4, 64, false, 1, false, false), 2);
  Json dynamic = json(4, 64, false, "gptq");
  dynamic["dynamic"] = {{"-:.*embed.*", Json::object()}, {"lm_head", Json::object()}, {"+:.*mlp.*", {{"sym", false}}}};
  expect_equal(dynamic, gptq(4, 64, false, 1), 2);
  dynamic["dynamic"] = {{"+:.*v_proj", {{"bits", 8}}}, {".*layers.0.mlp.down_proj", {{"bits", 3}, {"group_size", 32}}}};
  expect_equal(dynamic, gptq_of_mixed_bits, 1.8);
  for (const bool indexed : {true, false}) {  // the last group of a matrix is cut
    expect_equal(json(4, 96, false, "gptq"), gptq(4, 96, false, 1, false, indexed), 0.9);
  }
}

// Act-order has no block format: the load says that the weights grow.
TEST(Quantized, TellsWhatDoesNotStayPacked) {
  for (const bool act_order : {false, true}) {
    Pair tensors = make_tensors(gptq(4, 64, false, 1, act_order));
    const TempFolder folder;
    Json with = config();
    with["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 64}, {"desc_act", act_order}};
    write(folder, with, tensors.quantized);
    EngineOptions options;
    options.model = folder.path();
    options.kv_cache_memory_bytes = 16 << 20;
    options.max_num_seqs = 64;
    ThreadPool pool(1);
    const std::vector<std::string> warnings = plan_load(options, pool).warnings;
    const auto found = std::ranges::find_if(
        warnings, [](const std::string& w) { return w.find("do not stay packed") != std::string::npos; });
    EXPECT_EQ(found != warnings.end(), act_order);
    if (act_order && found != warnings.end()) {
      EXPECT_NE(found->find("act-order"), std::string::npos) << *found;
    }
  }
}

TEST(Quantized, AutoRound) {
  const Json good = {{"quant_method", "auto-round"},
                     {"packing_format", "auto_round:auto_gptq"},
                     {"bits", 4},
                     {"group_size", 64},
                     {"sym", true},
                     {"data_type", "int"},
                     {"autoround_version", "0.5.1"},
                     {"extra_config", {{"lm_head", {{"bits", 16}, {"data_type", "float"}}}}}};
  expect_equal(good, gptq(4, 64, true, 1), 2);
  Json mixed = good;
  mixed["extra_config"]["model.layers.0.mlp.down_proj"] = {{"bits", 3}, {"group_size", 32}};
  mixed["extra_config"][".*v_proj"] = {{"bits", 8}, {"data_type", "int"}};
  expect_equal(mixed, gptq_of_mixed_bits, 1.8);
  Json awq_form = good;
  awq_form["packing_format"] = "auto_round:auto_awq";
  expect_equal(awq_form, awq, 2);
}

TEST(Quantized, BitsAndBytes) {
  const Json four = {{"quant_method", "bitsandbytes"},
                     {"load_in_4bit", true},
                     {"_load_in_4bit", true},
                     {"bnb_4bit_quant_type", "nf4"},
                     {"bnb_4bit_compute_dtype", "bfloat16"},
                     {"llm_int8_skip_modules", {"lm_head"}}};
  expect_equal(four, levels("nf4", quant::kNf4Levels, 64, true), 2);
  expect_equal(four, levels("nf4", quant::kNf4Levels, 128, false), 2);
  expect_equal(four, levels("nf4", quant::kNf4Levels, 4096, false), 2);
  expect_equal(four, levels("nf4", quant::kNf4Levels, 96, true), 0.9);  // blocks that span rows
  constexpr std::array<float, 16> kFp4 = {0.0f,  0.0052f,  0.6667f,  1.0f,  0.3333f,  0.5f,  0.1667f,  0.25f,
                                          -0.0f, -0.0052f, -0.6667f, -1.0f, -0.3333f, -0.5f, -0.1667f, -0.25f};
  expect_equal(four, levels("fp4", kFp4, 64, true), 0.9);
  expect_equal({{"load_in_8bit", true}, {"llm_int8_threshold", 6.0}}, llm_int8, 1.4);
}

TEST(Quantized, ModelOptimizer) {
  expect_equal({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}},
               fp8(0, 0, ".weight_scale", {1}), 1.4);
  expect_equal({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"group_size", 16}, {"ignore", {"lm_head"}}},
               fp4(".weight", true, ".weight_scale_2", false), 2);
}

TEST(Quantized, OtherFloats) {
  expect_equal({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}}, fp8(1, 0, ".weight_scale"), 1.4);
  const auto quark = [](const char* type) {
    return Json{{"quant_method", "quark"},
                {"global_quant_config", {{"weight", {{"dtype", type}, {"qscheme", "per_tensor"}}}, {"bias", nullptr}}},
                {"layer_quant_config", Json::object()}};
  };
  expect_equal(quark("fp8_e4m3"), fp8(0, 0, ".weight_scale", {1}), 1.4);
  expect_equal(quark("fp4"), fp4(".weight", false, "", false), 2);
}

// The file that NVIDIA's tool writes beside config.json is used if config.json has no such configuration.
TEST(Quantized, ConfigurationInAFileOfItsOwn) {
  Pair tensors = make_tensors(fp4(".weight", true, ".weight_scale_2", false));
  const TempFolder quantized, plain;
  write(quantized, config(), tensors.quantized);
  write(plain, config(), tensors.plain);
  quantized.write("hf_quant_config.json", dump_json({{"producer", {{"name", "modelopt"}}},
                                                     {"quantization", {{"quant_algo", "NVFP4"}, {"group_size", 16}}}}));
  EXPECT_LE(relative_error(some_logits(quantized, "none", "reference"), some_logits(plain)), 2e-4);
}

TEST(Quantized, Awq) {
  expect_equal({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"zero_point", true}, {"version", "gemm"}},
               awq, 2);
}

Json compressed(const char* format, const char* type, int bits, const char* strategy) {
  const Json weights = {{"num_bits", bits},  {"type", type},     {"strategy", strategy},
                        {"symmetric", true}, {"dynamic", false}, {"observer", "minmax"}};
  const Json group = {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"config_groups", {{"group_0", group}}},
          {"ignore", {"lm_head"}},
          {"quantization_status", "compressed"}};
}

TEST(Quantized, CompressedTensors) {
  expect_equal(compressed("pack-quantized", "int", 4, "group"), packed(4, 32, true), 2);
  expect_equal(compressed("pack-quantized", "int", 4, "channel"), packed(4, -1, false), 2);
  expect_equal(compressed("pack-quantized", "int", 8, "channel"), packed(8, -1, false), 1.4);
  expect_equal(compressed("int-quantized", "int", 8, "channel"), int8, 1.4);
  expect_equal(compressed("int-quantized", "int", 8, "tensor"), int8_tensor, 1.4);
  expect_equal(compressed("float-quantized", "float", 8, "channel"), fp8(1, 0, ".weight_scale"), 1.4);
  expect_equal(compressed("float-quantized", "float", 8, "tensor"), fp8(0, 0, ".weight_scale", {1}), 1.4);
  expect_equal(compressed("nvfp4-pack-quantized", "float", 4, "tensor_group"),
               fp4(".weight_packed", true, ".weight_global_scale", true), 2);
  expect_equal(compressed("mxfp4-pack-quantized", "float", 4, "group"), fp4(".weight_packed", false, "", false), 2);
}

// Inputs are rounded to 8-bit floats if the checkpoint says so and the device can multiply them. That costs an error of
// about two percent per matmul, and none if it is disabled.
TEST(Quantized, Fp8Activations) {
  const auto dynamic = [](const char* strategy) {
    Json json = compressed("float-quantized", "float", 8, strategy);
    json["config_groups"]["group_0"]["input_activations"] = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}, {"symmetric", true}};
    return json;
  };
  const Json block = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
  for (const auto& [quantization, writer] : {std::pair<Json, Writer>{dynamic("channel"), fp8(1, 0, ".weight_scale")},
                                             {dynamic("tensor"), fp8(0, 0, ".weight_scale", {1})},
                                             {block, fp8(128, 128, ".weight_scale_inv")}}) {
    SCOPED_TRACE(dump_json(quantization));
    Pair tensors = make_tensors(writer);
    const TempFolder quantized;
    Json with = config();
    with["quantization_config"] = quantization;
    write(quantized, with, tensors.quantized);
    const TextLogits got = some_logits(quantized, "auto"), want = some_logits(quantized, "none");
    double error = 0, size = 0;
    for (size_t i = 0; i < want.values.size(); ++i) {
      error += std::pow(double{got.values[i]} - want.values[i], 2), size += std::pow(double{want.values[i]}, 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.15);
    if (ops::select_backend().can.batch_invariant) {
      EXPECT_EQ(error, 0);
    }
  }
}

TEST(Quantized, Fp8) {
  expect_equal(
      {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}},
      fp8(128, 128, ".weight_scale_inv"), 1.4);
  expect_equal({{"quant_method", "fp8"}, {"activation_scheme", "static"}}, fp8(0, 0, ".weight_scale", {1}), 1.4);
}

std::string refusal(const Json& quantization, const std::function<void(Tensors&)>& change, const Writer& writer) {
  Pair tensors = make_tensors(writer);
  change(tensors.quantized);
  const TempFolder folder;
  Json with = config();
  with["quantization_config"] = quantization;
  write(folder, with, tensors.quantized);
  try {
    some_logits(folder);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kUnsupportedModel);
    return e.what();
  }
  return "";
}

TEST(Quantized, RefusesByNameWhatItDoesNotKnow) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  const auto nothing = [](Tensors&) {};
  const Json good = {{"quant_method", "gptq"}, {"bits", 4}};
  const Writer write = gptq(4, 64, false, 1);
  const auto with = [&](const char* key, const Json& value) {
    Json changed = good;
    changed[key] = value;
    return refusal(changed, nothing, write);
  };
  EXPECT_THAT(with("quant_method", "hqq"), AllOf(HasSubstr("quant_method"), HasSubstr("hqq")));
  EXPECT_THAT(with("bits", 5), HasSubstr("bits"));
  EXPECT_THAT(with("checkpoint_format", "marlin"), HasSubstr("checkpoint_format"));
  EXPECT_THAT(with("rotation", "hadamard"), HasSubstr("rotation"));
  EXPECT_THAT(with("dynamic", {{".*up_proj", {{"bits", 5}}}}), AllOf(HasSubstr("dynamic"), HasSubstr("up_proj")));
  EXPECT_THAT(with("dynamic", {{"+:.*up_proj", {{"format", "awq"}}}}), AllOf(HasSubstr("up_proj"), HasSubstr("awq")));
  EXPECT_THAT(refusal(
                  good, [](Tensors& t) { t.erase("model.layers.1.mlp.up_proj.qzeros"); }, write),
              HasSubstr("model.layers.1.mlp.up_proj.qzeros"));
  EXPECT_THAT(refusal(
                  good,
                  [](Tensors& t) {
                    t.at("model.layers.0.mlp.up_proj.qzeros").shape = {1, 4 * kInner / 8};
                  },
                  write),
              HasSubstr("model.layers.0.mlp.up_proj.qzeros"));
  const Json fp8_config = {{"quant_method", "fp8"}};
  EXPECT_THAT(refusal(fp8_config, nothing, fp8(128, 128, ".weight_scale_inv")), HasSubstr("weight_scale_inv"));
  EXPECT_THAT(refusal(
                  fp8_config, [](Tensors& t) { t.erase("model.layers.0.mlp.down_proj.weight_scale"); },
                  fp8(0, 0, ".weight_scale", {1})),
              HasSubstr("model.layers.0.mlp.down_proj.weight_scale"));
}

// Unknown options of each method that no tensor shows.
TEST(Quantized, RefusesOptionsOfEveryMethodByName) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  struct Case {
    Json quantization;
    const char *key, *value;
  };
  const Json auto_round = {{"quant_method", "auto-round"}, {"bits", 4}};
  const auto with = [](Json json, const char* key, const Json& value) {
    json[key] = value;
    return json;
  };
  const Json floats = compressed("float-quantized", "float", 8, "tensor");
  Json six = floats, sparse = floats;
  six["config_groups"]["group_0"]["weights"]["num_bits"] = 6;
  sparse["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  const auto quark = [](const Json& weight) {
    return Json{{"quant_method", "quark"}, {"global_quant_config", {{"weight", weight}}}};
  };
  const Case cases[] = {
      {with(auto_round, "packing_format", "auto_round:llm_compressor"), "packing_format", "llm_compressor"},
      {with(auto_round, "data_type", "mx_fp"), "data_type", "mx_fp"},
      {with(auto_round, "act_bits", 8), "act_bits", "fewer"},
      {with(auto_round, "extra_config", {{"model.layers.0.mlp.up_proj", {{"bits", 5}}}}), "extra_config", "up_proj"},
      {with(auto_round, "rotation_config", {{"kind", "hadamard"}}), "rotation_config", "not understood"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_2bit", true}}, "load_in_2bit", "not understood"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "W4A8_AWQ"}}, "quant_algo", "W4A8_AWQ"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"pre_quant_scale", true}}, "pre_quant_scale", ""},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"has_zero_point", true}}, "has_zero_point", ""},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt", "e5m2"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 100}}}, "weight_block_size", "128"},
      {{{"quant_method", "fbgemm_fp8"}, {"group_size", 128}}, "group_size", "not understood"},
      {quark({{"dtype", "int4"}}), "dtype", "int4"},
      {quark({{"dtype", "fp4"}, {"scale_format", "float32"}}), "scale_format", "float32"},
      {with(quark({{"dtype", "fp4"}}), "layer_quant_config", {{"*.mlp", {{"weight", {{"dtype", "int8"}}}}}}),
       "layer_quant_config", "same quantization"},
      {with(floats, "format", "marlin-24"), "format", "marlin-24"},
      {with(floats, "transform_config", {{"r1", 1}}), "transform_config", ""},
      {six, "num_bits", "6"},
      {sparse, "format", "sparse-24-bitmask"},
      {{{"quant_method", "mxfp4"}, {"swizzled", true}}, "swizzled", "not understood"},
      {{{"bits", 4}}, "quant_method", ""},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(dump_json(one.quantization));
    const std::string said = refusal(
        one.quantization, [](Tensors&) {}, fp8(0, 0, ".weight_scale", {1}));
    EXPECT_THAT(said, AllOf(HasSubstr(one.key), HasSubstr(one.value)));
  }
}

// Tensors that do not fit together: the error names the wrong or missing one.
TEST(Quantized, RefusesTensorsThatDoNotFitByName) {
  using ::testing::HasSubstr;
  const std::string name = "model.layers.0.mlp.up_proj";
  const auto shape = [&](const char* part, Shape to) { return [=](Tensors& t) { t.at(name + part).shape = to; }; };
  const auto without = [&](const char* part) { return [=](Tensors& t) { t.erase(name + part); }; };
  const auto numbers = [&](const char* part, std::vector<float> values) {
    return [=](Tensors& t) { put_floats(t, name + part, &kFloat32, {static_cast<int64_t>(values.size())}, values); };
  };
  const auto state = [&](const std::string& text) {
    return [=](Tensors& t) {
      const std::vector<char> bytes(text.begin(), text.end());
      put(t, name + ".weight.quant_state.bitsandbytes__nf4", &kUInt8, {static_cast<int64_t>(text.size())}, bytes);
    };
  };
  struct Case {
    Json quantization;
    Writer writer;
    std::function<void(Tensors&)> change;
    const char* wrong;
  };
  const Json bnb = {{"quant_method", "bitsandbytes"}};
  const Json nvidia = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  const Json packed4 = compressed("pack-quantized", "int", 4, "group");
  const Writer nf4 = levels("nf4", quant::kNf4Levels, 64, true);
  const Writer nvfp4 = fp4(".weight", true, ".weight_scale_2", false);
  const Case cases[] = {
      {bnb, nf4, without(".weight.absmax"), ".weight.absmax"},
      {bnb, nf4, without(".weight.quant_map"), ".weight.quant_map"},
      {bnb, nf4, without(".weight.nested_quant_map"), ".weight.nested_quant_map"},
      {bnb, nf4, numbers(".weight.quant_map", std::vector<float>(15)), ".weight.quant_map"},
      {bnb, nf4, numbers(".weight.nested_quant_map", std::vector<float>(255)), ".weight.nested_quant_map"},
      {bnb, nf4, numbers(".weight.nested_absmax", std::vector<float>(99)), ".weight.nested_absmax"},
      {bnb, nf4, numbers(".weight.absmax", std::vector<float>(3)), ".weight.absmax"},
      {bnb, nf4, state("{"), "quant_state"},
      {bnb, nf4, state(R"({"shape": [1], "blocksize": 64})"), "shape"},
      {bnb, nf4, state(R"({"shape": [2147483647, 2147483647], "blocksize": 64})"), ".weight"},
      {bnb, nf4, state(R"({"shape": [128, 128], "blocksize": 0})"), "blocksize"},
      {bnb, llm_int8, numbers(".SCB", std::vector<float>(3)), ".SCB"},
      {bnb, llm_int8, [&](Tensors& t) { put(t, name + ".weight_format", &kUInt8, {}, std::vector<uint8_t>{1}); },
       ".weight_format"},
      {nvidia, nvfp4, shape(".weight_scale", {4, 4}), ".weight_scale"},
      {nvidia, nvfp4, numbers(".weight_scale_2", {1, 2}), ".weight_scale_2"},
      {packed4, packed(4, 32, true), without(".weight_shape"), ".weight_shape"},
      {packed4, packed(4, 32, true), without(".weight_scale"), ".weight_scale"},
      {packed4, packed(4, 32, false), shape(".weight_zero_point", {1, 1}), ".weight_zero_point"},
      {{{"quant_method", "awq"}, {"bits", 4}}, awq, without(".scales"), ".scales"},
      {{{"quant_method", "awq"}, {"bits", 4}}, awq, shape(".qzeros", {1, 1}), ".qzeros"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.wrong);
    EXPECT_THAT(refusal(one.quantization, one.change, one.writer), HasSubstr(one.wrong));
  }
}

}  // namespace
}  // namespace sluice::quantized_test
