// Registers the block formats and instantiates their whole-row codecs.
#include "base/registry.h"
#include "quant/all.h"

namespace sluice::quant {

template <class Codec>
void decode_blocks(const std::byte* from, float* to, size_t count) {
  for (size_t i = 0; i < count; i += Codec::kElements, from += sizeof(typename Codec::Block)) {
    Codec::dequantize(*reinterpret_cast<const typename Codec::Block*>(from), to + i);
  }
}

template <class Codec>
void encode_blocks(const float* from, std::byte* to, size_t count) {
  auto* blocks = reinterpret_cast<typename Codec::Block*>(to);
  if constexpr (requires { Codec::quantize_row(from, blocks, count); }) return Codec::quantize_row(from, blocks, count);
  for (size_t i = 0; i < count; i += Codec::kElements) Codec::quantize(from + i, *blocks++);
}

namespace {

// Naming kType instantiates the codec's functions, and this is the only file that does so.
template <class... Codecs>
bool add(CodecList<Codecs...>) {
  (Registry<TypeInfo>(Codecs::kType), ...);
  return true;
}
const bool registered = add(AllCodecs{});

}  // namespace
}  // namespace sluice::quant
