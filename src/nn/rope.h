// Rotary position embedding: from a configuration to a table of cosines and sines per position, with every scaling that
// Hugging Face names (transformers, modeling_rope_utils.py): default, linear, dynamic, yarn, llama3, longrope.
//
// Scalings that depend on the length of the text (dynamic, longrope) are applied by position: the rotation of position p
// is the one a text of p + 1 tokens has. It is what a token-by-token run of the reference computes, and the only choice
// that makes cached keys independent of chunking and of what follows.
#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "tensor/tensor.h"

namespace sluice {

class ThreadPool;

struct RopeSpec {
  std::string type = "default";
  double theta = 10000.0;
  int rotary_dim = 0;            // even; dimensions of a head that are rotated
  bool interleaved = false;
  double factor = 1.0;
  double attention_factor = 1.0; // multiplies cosines and sines
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  bool truncate = true;                                  // yarn: whole dimensions
  int original_max_positions = 0;
  std::vector<double> short_factor, long_factor;         // longrope, rotary_dim / 2 each
};

// Reads "rope_parameters" (transformers 5) or "rope_theta" with "rope_scaling" (before). Both, and contradicting: an
// error by name. `max_positions` is max_position_embeddings.
RopeSpec read_rope(const Config& config, int head_dim, int max_positions);

// Table [positions, rotary_dim] fp32: rotary_dim/2 cosines, then as many sines, for positions 0 .. positions-1.
struct RopeTable {
  RopeTable() = default;
  RopeTable(const RopeSpec& spec, int positions, ThreadPool& pool);
  static size_t bytes(const RopeSpec& spec, int positions) {
    return static_cast<size_t>(positions) * spec.rotary_dim * sizeof(float);
  }
  Tensor cos_sin;

 private:
  Buffer memory_;
};

// Inverse frequencies for a text of `length` tokens: rotary_dim / 2 values.
std::vector<double> rope_frequencies(const RopeSpec& spec, int length);

}  // namespace sluice
