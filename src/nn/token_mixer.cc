// The default of a token mixer, and helpers that recurrent layers share when they load.
#include "nn/token_mixer.h"

#include <cmath>

#include "nn/layers.h"

namespace sluice {

void TokenMixer::with_norm(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x, bool accumulate,
                           const NextNorm* next) const {
  (*this)(c, step, out, x, accumulate);
  apply(c, next, out);
}

std::vector<float> transposed(const std::vector<float>& matrix, int64_t rows) {
  const int64_t columns = static_cast<int64_t>(matrix.size()) / rows;
  std::vector<float> out(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) out[j * rows + i] = matrix[i * columns + j];
  }
  return out;
}

std::vector<float> decay_rates(std::vector<float> logs) {
  for (float& v : logs) v = -std::exp(v);
  return logs;
}

}  // namespace sluice
