// Lists every block format of this folder, for code that is instantiated once per format.
#pragma once

#include "quant/few_bits.h"
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

// Related formats. Code that takes long to compile for all formats has a file for each of these lists.
using LegacyCodecs = CodecList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0>;
using SuperBlockCodecs = CodecList<Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0>;
using LevelCodecs = CodecList<IQ4_NL, IQ4_XS, MXFP4, NVFP4, ScaledNVFP4, NF4>;
using GroupCodecs = CodecList<Int4G32, Int4G64, Int4G128, Int8G128, Fp8, Q1_0, Q2_0>;
// Codebooks, and the format of activations.
using OtherCodecs = CodecList<IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, Q8_K>;

template <class... A, class... B>
CodecList<A..., B...> operator+(CodecList<A...>, CodecList<B...>);
using AllCodecs = decltype(LegacyCodecs{} + SuperBlockCodecs{} + LevelCodecs{} + GroupCodecs{} + OtherCodecs{});

}  // namespace sluice::quant
