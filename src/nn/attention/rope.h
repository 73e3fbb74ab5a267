// Rotary position embedding: from a configuration to a table of cosines and sines per position, with every scaling that
// Hugging Face names (transformers, modeling_rope_utils.py): default, linear, dynamic, yarn, llama3, longrope,
// proportional; "none" turns nothing and is for temperatures alone.
//
// Scalings that depend on the length of the text (dynamic, longrope) take it from the sequence, not from the step: all
// tokens of a prompt are rotated for the prompt's length, a generated token for its own position. That is what the
// reference computes for a prompt in one piece followed by single tokens, whatever the chunking here. Keys of equal
// prefixes then differ with the length of the prompt: rope_class() tells which prompts may share them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "batch/batch.h"
#include "formats/checkpoint.h"
#include "tensor/tensor.h"

namespace sluice {

struct LoadContext;

struct RopeSpec {
  std::string type = "default";
  double theta = 10000.0;
  int rotary_dim = 0;     // even; dimensions of a head that are rotated
  bool backward = false;  // by the negative of the angles
  // "proportional": so many of the frequencies of all dimensions, the others do not turn (Gemma 4).
  int angles = 0;
  // What grows with the position: cosines and sines times 1 + temperature * ln(1 + floor((p + temperature_shift) /
  // temperature_period)). In a rotation of the queries alone it scales the scores of far positions (Nakanishi 2025,
  // arXiv:2501.19399).
  double temperature = 0.0;
  double temperature_period = 1.0;
  int temperature_shift = 0;
  double factor = 1.0;
  double attention_factor = 1.0;                         // multiplies cosines and sines
  double long_attention_factor = 1.0;                    // longrope: the same of texts beyond the original length
  double score_scale = 1.0;                              // yarn: of the scores, where a family asks for it (DeepSeek)
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: whole dimensions
  int original_max_positions = 0;
  std::vector<double> short_factor{}, long_factor{};  // longrope, rotary_dim / 2 each
};

// What a family takes when the configuration says nothing, and whose parameters are read.
struct RopeDefaults {
  double theta = 10000.0;
  double partial = 1.0;           // part of a head that is rotated
  bool temperature = false;       // llama_4_scaling_beta counts
  std::string_view layer_type{};  // rope_parameters may hold an object for each of layer_types' names
};

// Reads "rope_parameters" (transformers 5) or "rope_theta" with "rope_scaling" (before). Both, and contradicting: an
// error by name. `max_positions` is max_position_embeddings.
RopeSpec read_rope(const Config& config, int head_dim, int max_positions, const RopeDefaults& defaults = {});

// Cosines and sines for positions 0 .. positions-1 of every length, or, when they depend on the length, for one step.
class Rope {
 public:
  Rope() = default;
  Rope(const RopeSpec& spec, int positions, LoadContext& context);  // counts its bytes

  int64_t step_floats(int tokens) const;  // of the arena, per step
  // For a step: the table [rows, rotary_dim] fp32 (rotary_dim/2 cosines, then as many sines) and the row of each token.
  struct Rows {
    Tensor cos_sin;
    Indices rows;
  };
  Rows rows(Arena& arena, const BatchView& batch);

 private:
  RopeSpec spec_;
  Buffer memory_;
  Tensor table_;
  std::vector<int32_t> own_row_;  // 0, 1, 2, ...
  std::vector<float> step_rows_;  // the step's table on the host
};

bool depends_on_length(const RopeSpec& spec);
// Prompts of equal class have equal rotations at equal positions; 0 for all when nothing depends on the length.
int rope_class(const RopeSpec& spec, int prompt_len);

// Inverse frequencies for a text of `length` tokens: rotary_dim / 2 values.
std::vector<double> rope_frequencies(const RopeSpec& spec, int length);

}  // namespace sluice
