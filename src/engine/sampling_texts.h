// Texts among a request's sampling parameters, as tokens.
#pragma once

#include "sluice/sampling_parameters.h"
#include "tokenizer/tokenizer.h"

namespace sluice {

// Checks the lists of texts (kSamplingTexts), and fills in the lists of tokens that are made from them. Throws Error.
void resolve_texts(SamplingParams& params, const Tokenizer& tokenizer);

}  // namespace sluice
