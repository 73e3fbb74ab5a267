// Decode attention to a part of the keys (ops::KeyShare), for every compute capability: the kernel of decode.cu in few
// shapes. Ranks that divide keys attend with the heads of all of them, so there are mostly two tiles of rows. Most
// kinds of caches have no prefill kernel for parts. Their prompts are decoded, 16 packed rows at a time, or eight.
#include "kernels/cuda/attention/decode.cuh"

namespace sluice::cuda {

template <class T>
void attention_decode_part(const Launch& l, const PartParams& p, const AttentionIndices& at) {
  if (std::max(p.head_dim, p.value_dim) <= 128) return launch_packs<T, 128, 2>(l, p, at);
  launch_packs<T, 256, 1>(l, p, at);
}

template void attention_decode_part<__nv_bfloat16>(const Launch&, const PartParams&, const AttentionIndices&);
template void attention_decode_part<__half>(const Launch&, const PartParams&, const AttentionIndices&);
template void attention_decode_part<__nv_fp8_e4m3>(const Launch&, const PartParams&, const AttentionIndices&);

}  // namespace sluice::cuda
