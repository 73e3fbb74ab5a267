// Rotary position embedding (RoPE): from a configuration to a table of cosines and sines per position. Supports every
// scaling of Hugging Face (transformers, modeling_rope_utils.py): default, linear, dynamic, yarn, llama3, longrope,
// proportional. "none" rotates nothing and only applies a temperature.
//
// Some scalings depend on the length of the text (dynamic, longrope). They take the length from the sequence, not from
// the step: all tokens of a prompt are rotated for the prompt's length, a generated token for its own position. The
// reference computes the same for a prompt in one piece followed by single tokens, so chunking does not change results.
// Keys of equal prefixes then differ with the prompt's length; rope_class() tells which prompts may share keys.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "formats/checkpoint.h"
#include "ops/ops.h"
#include "tensor/tensor.h"

namespace sluice {

struct LoadContext;

struct RopeSpec {
  std::string type = "default";
  double theta = 10000.0;
  int rotary_dim = 0;     // dimensions of a head that are rotated; even
  bool backward = false;  // rotates by the negative angles
  // "proportional": number of frequencies that rotate, of those for all dimensions; the others stay fixed (Gemma 4).
  int angles = 0;
  // A temperature that grows with the position p. It multiplies cosines and sines by 1 + temperature * ln(1 + floor((p
  // + temperature_shift) / temperature_period)). In a rotation of queries alone it scales the scores of far positions
  // (Nakanishi 2025, arXiv:2501.19399).
  double temperature = 0.0;
  double temperature_period = 1.0;
  int temperature_shift = 0;
  // > 1: at positions p beyond this, cosines and sines are also multiplied by ln(p) / ln(log_length) (Grok 2).
  int log_length = 0;
  double factor = 1.0;
  double attention_factor = 1.0;       // multiplies cosines and sines
  double long_attention_factor = 1.0;  // longrope: attention_factor for texts beyond the original length
  double score_scale = 1.0;            // yarn: multiplies the scores in families that ask for it (DeepSeek)
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: round to whole dimensions
  int original_max_positions = 0;
  std::vector<double> short_factor{}, long_factor{};  // longrope, rotary_dim / 2 each
};

// A family's defaults, and which optional parameters it reads.
struct RopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;      // fraction of a head that is rotated
  bool temperature = false;  // reads llama_4_scaling_beta
  // rope_theta beside rope_parameters is a default that transformers writes and does not read
  bool stray_theta = false;
  // rope_parameters may hold one object per name in layer_types; this names the one to read
  std::string_view layer_type{};
  // rope_parameters, as JSON, of a configuration that has neither these nor rope_scaling. Its theta is not overridden
  // by a rope_theta beside it.
  std::string_view parameters{};
  // names of theta and the fraction beside rope_parameters
  const char* theta_key = "rope_theta";
  const char* partial_key = "partial_rotary_factor";
};

// Reads "rope_parameters" (transformers 5) or "rope_theta" with "rope_scaling" (older). Contradicting values are an
// error that names the key. `max_positions` is max_position_embeddings.
RopeSpec read_rope(const Config& config, int head_dim, int max_positions, const RopeDefaults& defaults = {});

// Cosines and sines for positions 0 .. positions-1 of every length. If they depend on the length, they are computed per
// step.
class Rope {
 public:
  Rope() = default;
  Rope(const RopeSpec& spec, int positions, LoadContext& context);  // counts its bytes in `context`

  int64_t step_floats(int tokens) const;  // arena floats per step
  // A step's table [rows, rotary_dim] fp32 (rotary_dim/2 cosines, then as many sines), and the table row of each token.
  struct Rows {
    Tensor cos_sin;
    Indices rows;
  };
  Rows rows(ops::Ctx& c, const BatchView& batch);

 private:
  RopeSpec spec_;
  Buffer memory_;
  Tensor table_;
  std::vector<int32_t> own_row_;  // 0, 1, 2, ...
  std::vector<float> step_rows_;  // the step's table on the host
};

bool depends_on_length(const RopeSpec& spec);
// Prompts of equal class have equal rotations at equal positions. 0 for all prompts if nothing depends on the length.
int rope_class(const RopeSpec& spec, int prompt_len);

// Inverse frequencies for a text of `length` tokens: rotary_dim / 2 values.
std::vector<double> rope_frequencies(const RopeSpec& spec, int length);

}  // namespace sluice
