// Reads rope scalings and computes their tables. Frequencies are rounded to fp32 where the reference keeps them in
// fp32.
#include "nn/attention/rope.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/json.h"
#include "base/thread_pool.h"
#include "nn/loading/weights.h"
#include "sluice/error.h"

namespace sluice {
namespace {

double base_frequency(double theta, int i, int dim) { return 1.0 / std::pow(theta, 2.0 * i / dim); }

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

void yarn_frequencies(const RopeSpec& s, std::vector<double>& freq) {
  const int dim = s.rotary_dim;
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(s.original_max_positions / (rotations * 2 * std::numbers::pi)) / (2 * std::log(s.theta));
  };
  double low = correction_dim(s.beta_fast);
  double high = correction_dim(s.beta_slow);
  if (s.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < dim / 2; ++i) {
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    freq[i] = freq[i] / s.factor * ramp + freq[i] * (1 - ramp);
  }
}

void llama3_frequencies(const RopeSpec& s, std::vector<double>& freq) {
  const double low_wavelength = s.original_max_positions / s.low_freq_factor;
  const double high_wavelength = s.original_max_positions / s.high_freq_factor;
  for (double& f : freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > low_wavelength) {
      f /= s.factor;
    } else if (wavelength >= high_wavelength) {
      const double smooth =
          (s.original_max_positions / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
      f = (1 - smooth) * f / s.factor + smooth * f;
    }
  }
}

double required(const Config& rope, const char* key) {
  const double value = rope.at<double>(key);
  if (!(value > 0)) rope.refuse(key, fmt::format("must be positive, not {}", value));
  return value;
}

// Ratio of the maximum lengths, for checkpoints that give both lengths and no factor.
double length_ratio(int max_positions, const RopeSpec& s) {
  return static_cast<double>(max_positions) / s.original_max_positions;
}

void read_yarn(const Config& rope, RopeSpec& s, bool has_original, int max_positions) {
  s.factor = has_original && !rope.has("factor") ? length_ratio(max_positions, s) : required(rope, "factor");
  s.beta_fast = rope.get("beta_fast", 32.0);
  s.beta_slow = rope.get("beta_slow", 1.0);
  s.truncate = rope.get("truncate", true);
  const double mscale = rope.get("mscale", 0.0);
  const double mscale_all = rope.get("mscale_all_dim", 0.0);
  const double by_rule = mscale != 0 && mscale_all != 0
                             ? yarn_scale(s.factor, mscale) / yarn_scale(s.factor, mscale_all)
                             : yarn_scale(s.factor, 1.0);
  s.attention_factor = rope.get("attention_factor", by_rule);
  if (mscale_all != 0) s.score_scale = std::pow(yarn_scale(s.factor, mscale_all), 2);
}

void read_longrope(const Config& rope, RopeSpec& s, bool has_original, int max_positions) {
  s.short_factor = rope.at<std::vector<double>>("short_factor");
  s.long_factor = rope.at<std::vector<double>>("long_factor");
  for (const auto* list : {&s.short_factor, &s.long_factor}) {
    if (static_cast<int>(list->size()) != s.rotary_dim / 2) {
      rope.refuse(list == &s.short_factor ? "short_factor" : "long_factor",
                  fmt::format("has {} values, expected {}", list->size(), s.rotary_dim / 2));
    }
  }
  s.factor = rope.get("factor", has_original ? length_ratio(max_positions, s) : 1.0);
  const double by_rule = s.factor <= 1 ? 1.0 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_max_positions));
  s.attention_factor = rope.get("attention_factor", by_rule);
  s.long_attention_factor = rope.get("long_mscale", s.attention_factor);
  s.attention_factor = rope.get("short_mscale", s.attention_factor);
}

// Returns the object that describes the rotation, from either spelling.
Config rope_object(const Config& config, const RopeDefaults& defaults) {
  const bool modern = config.has("rope_parameters");
  const bool old = config.has("rope_scaling");
  if (modern && old && *config.find("rope_parameters") != *config.find("rope_scaling")) {
    config.refuse("rope_scaling", "contradicts rope_parameters");
  }
  const Config rope = modern || old || defaults.parameters.empty()
                          ? config.object(modern ? "rope_parameters" : "rope_scaling")
                          : Config(parse_json(defaults.parameters), config.origin() + ": default rope_parameters");
  const bool per_type = !old && !defaults.layer_type.empty() && rope.has(defaults.layer_type);
  return per_type ? rope.object(defaults.layer_type) : rope;
}

}  // namespace

RopeSpec read_rope(const Config& config, int head_dim, int max_positions, const RopeDefaults& defaults) {
  const Config rope = rope_object(config, defaults);
  RopeSpec s;
  s.theta = rope.get("rope_theta", config.get(defaults.theta_key, defaults.theta));
  const bool stray = defaults.stray_theta || !(config.has("rope_parameters") || config.has("rope_scaling"));
  if (config.has(defaults.theta_key) && rope.has("rope_theta") && config.get(defaults.theta_key, 0.0) != s.theta &&
      !stray) {
    config.refuse(defaults.theta_key, "contradicts rope_parameters.rope_theta");
  }
  if (!(s.theta > 1)) config.refuse(defaults.theta_key, fmt::format("must be above 1, not {}", s.theta));
  s.type = rope.get("rope_type", rope.get("type", std::string("default")));
  const double partial = rope.get("partial_rotary_factor", config.get(defaults.partial_key, defaults.partial));
  if (!(partial > 0 && partial <= 1))
    config.refuse(defaults.partial_key, fmt::format("must be in (0, 1], not {}", partial));
  s.rotary_dim = static_cast<int>(head_dim * partial);
  if (s.type == "proportional") {
    s.angles = s.rotary_dim / 2;
    s.rotary_dim = head_dim;
  }
  if (s.rotary_dim < 2 || s.rotary_dim % 2 != 0) {
    config.refuse("head_dim", fmt::format("gives {} rotated dimensions, must be even and at least 2", s.rotary_dim));
  }
  // In text, a token has one position for all parts of a head. Only images use several (Qwen and other multimodal
  // models).
  if (s.type == "mrope") s.type = "default";
  for (const char* key : {"mrope_section", "mrope_interleaved"}) rope.ignore(key);
  if (s.type == "su") s.type = "longrope";  // the name Phi-3's first checkpoints used
  if (s.type == "deepseek_yarn") {          // yarn whose two factors are always given
    for (const char* key : {"mscale", "mscale_all_dim"}) required(rope, key);
    s.type = "yarn";
  }
  rope.ignore("type");
  // If both have the key, the reference uses the one in the configuration (Phi-3), not the one in the scaling.
  const char* const original = "original_max_position_embeddings";
  const bool has_original = rope.has(original) || config.has(original);
  s.original_max_positions = config.get(original, rope.get(original, max_positions));
  if (s.original_max_positions < 1) rope.refuse("original_max_position_embeddings", "must be positive");

  if (defaults.temperature) {
    s.temperature = rope.get("llama_4_scaling_beta", 0.0);
    s.temperature_period = s.original_max_positions;
    rope.ignore("max_position_embeddings");
  }

  if (s.type == "dynamic" && rope.has("alpha")) {  // Hunyuan: the same stretch for all lengths
    s.theta *= std::pow(required(rope, "alpha"), static_cast<double>(s.rotary_dim) / (s.rotary_dim - 2));
    s.type = "default";
    for (const char* unused : {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}) rope.ignore(unused);
  } else if (s.type == "proportional") {
    s.factor = rope.get("factor", 1.0);
  } else if (s.type == "linear" || s.type == "dynamic") {
    s.factor = required(rope, "factor");
    if (s.type == "dynamic") s.original_max_positions = max_positions;  // the reference stretches max_positions
  } else if (s.type == "yarn") {
    read_yarn(rope, s, has_original, max_positions);
  } else if (s.type == "llama3") {
    s.factor = required(rope, "factor");
    s.low_freq_factor = required(rope, "low_freq_factor");
    s.high_freq_factor = required(rope, "high_freq_factor");
    if (s.high_freq_factor <= s.low_freq_factor) rope.refuse("high_freq_factor", "must be above low_freq_factor");
  } else if (s.type == "longrope") {
    read_longrope(rope, s, has_original, max_positions);
  } else if (s.type != "default") {
    rope.refuse(
        "rope_type",
        fmt::format(
            "unknown type '{}' (expected one of: default, linear, dynamic, yarn, llama3, longrope, proportional)",
            s.type));
  }
  const std::vector<std::string> unread = rope.unread();
  if (!unread.empty()) rope.refuse(unread.front(), fmt::format("is not supported for rope_type '{}'", s.type));
  return s;
}

std::vector<double> rope_frequencies(const RopeSpec& s, int length) {
  const int dim = s.rotary_dim;
  double theta = s.theta;
  if (s.type == "dynamic" && length > s.original_max_positions) {
    const double stretch = s.factor * length / s.original_max_positions - (s.factor - 1);
    theta *= std::pow(stretch, static_cast<double>(dim) / (dim - 2));
  }
  std::vector<double> freq(static_cast<size_t>(dim / 2));
  for (int i = 0; i < dim / 2; ++i) freq[i] = base_frequency(theta, i, dim);
  if (s.type == "none") {
    std::ranges::fill(freq, 0.0);
  } else if (s.type == "proportional") {
    for (int i = 0; i < dim / 2; ++i) freq[i] = i < s.angles ? freq[i] / s.factor : 0.0;
  } else if (s.type == "linear") {
    for (double& f : freq) f /= s.factor;
  } else if (s.type == "yarn") {
    yarn_frequencies(s, freq);
  } else if (s.type == "llama3") {
    llama3_frequencies(s, freq);
  } else if (s.type == "longrope") {
    const auto& factors = length > s.original_max_positions ? s.long_factor : s.short_factor;
    for (int i = 0; i < dim / 2; ++i) freq[i] /= factors[i];
  }
  return freq;
}

bool depends_on_length(const RopeSpec& s) {
  return s.type == "dynamic" || (s.type == "longrope" && s.short_factor != s.long_factor);
}

int rope_class(const RopeSpec& s, int prompt_len) {
  if (!depends_on_length(s) || prompt_len <= s.original_max_positions) return 0;
  return s.type == "longrope" ? 1 : prompt_len;
}

namespace {

void fill_row(const RopeSpec& s, const std::vector<double>& freq, int length, int64_t position, float* row) {
  const int half = s.rotary_dim / 2;
  const bool beyond = s.type == "longrope" && length > s.original_max_positions;
  double factor = beyond ? s.long_attention_factor : s.attention_factor;
  if (s.temperature != 0) {
    const double periods = std::floor(static_cast<double>(position + s.temperature_shift) / s.temperature_period);
    factor *= 1 + s.temperature * std::log1p(periods);
  }
  if (s.log_length > 1 && position > s.log_length) {
    factor *= std::log(static_cast<double>(position)) / std::log(static_cast<double>(s.log_length));
  }
  const double direction = s.backward ? -factor : factor;
  for (int i = 0; i < half; ++i) {
    // The reference multiplies in fp32. At long positions the rounded angle is part of the model.
    const float angle = static_cast<float>(freq[i]) * static_cast<float>(position);
    row[i] = static_cast<float>(std::cos(static_cast<double>(angle)) * factor);
    row[half + i] = static_cast<float>(std::sin(static_cast<double>(angle)) * direction);
  }
}

}  // namespace

Rope::Rope(const RopeSpec& spec, int positions, LoadContext& context) : spec_(spec) {
  if (depends_on_length(spec)) return;
  const size_t bytes = static_cast<size_t>(positions) * spec.rotary_dim * sizeof(float);
  context.weight_bytes += bytes;
  if (context.dry) return;
  memory_ = Buffer(bytes);
  const Tensor table(memory_.data(), &kFloat32, {positions, spec.rotary_dim});
  const std::vector<double> freq = rope_frequencies(spec, 1);
  context.queue.threads().parallel_for(positions, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) fill_row(spec, freq, 1, p, table.f32() + p * spec.rotary_dim);
  });
  memory_ = moved_to(std::move(memory_), context.memory);
  table_ = Tensor(memory_.data(), &kFloat32, table.shape);
}

int64_t Rope::step_floats(int tokens) const {
  return depends_on_length(spec_) ? int64_t{tokens} * spec_.rotary_dim : 0;
}

Rope::Rows Rope::rows(ops::Ctx& c, const BatchView& batch) {
  if (!depends_on_length(spec_)) return {table_, batch.positions};
  for (int i = static_cast<int>(own_row_.size()); i < batch.size(); ++i) own_row_.push_back(i);
  const Tensor out = c.arena.take(&kFloat32, {batch.size(), spec_.rotary_dim});
  step_rows_.resize(static_cast<size_t>(out.shape.elements()));
  for (int s = 0; s < batch.sequences(); ++s) {
    int last_length = -1;
    std::vector<double> freq;
    for (int t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
      const int length = std::max({batch.prompt_len[s], batch.positions[t] + 1, spec_.original_max_positions});
      if (length != last_length) freq = rope_frequencies(spec_, length);
      last_length = length;
      fill_row(spec_, freq, length, batch.positions[t], step_rows_.data() + int64_t{t} * spec_.rotary_dim);
    }
  }
  c.queue.wait();  // ops of the previous step may still read this place
  c.arena.memory().copy(out.data, step_rows_.data(), out.bytes());
  return {out, std::span<const int32_t>(own_row_).first(static_cast<size_t>(batch.size()))};
}

}  // namespace sluice
