// Lists every block format of this folder, for code that is instantiated once per format.
#pragma once

#include "quant/fp4.h"
#include "quant/groups.h"
#include "quant/iq_quants.h"
#include "quant/k_quants.h"
#include "quant/nf4.h"
#include "quant/q_legacy.h"
#include "quant/ternary.h"

namespace sluice::quant {

template <class... Codecs>
struct CodecList {};

using AllCodecs = CodecList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ1_S, IQ1_M, IQ2_XXS,
                            IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0, MXFP4, NVFP4, ScaledNVFP4, NF4,
                            Int4G32, Int4G64, Int4G128, Int8G128, Fp8>;

}  // namespace sluice::quant
