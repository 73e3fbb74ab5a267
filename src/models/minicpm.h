// What the generations of MiniCPM share.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// The factors of embedding, residuals and logits, each with the family's default.
struct MiniCpmScales {
  float embedding = 1.0f;
  float depth = 1.0f;
  float base = 1.0f;
};
void read_minicpm_scales(const Config& config, DecoderSpec& spec, const MiniCpmScales& defaults);

}  // namespace sluice
