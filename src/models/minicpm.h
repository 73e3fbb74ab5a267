// Code shared by the generations of MiniCPM.
#pragma once

#include "nn/decoder_config.h"

namespace sluice {

// The factors for embedding, residuals and logits, with the family's defaults.
struct MiniCpmScales {
  float embedding = 1.0f;
  float depth = 1.0f;
  float base = 1.0f;
};
void read_minicpm_scales(const Config& config, DecoderSpec& spec, const MiniCpmScales& defaults);

}  // namespace sluice
