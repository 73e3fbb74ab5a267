// Runs several token mixers and adds their results.
#include "nn/token_mixer_sum.h"

#include <algorithm>

namespace sluice {

TokenMixerSum::TokenMixerSum(std::vector<Part> parts, int hidden) : parts_(std::move(parts)), hidden_(hidden) {
  const auto caching = [](const Part& p) { return p.mixer->kv_shape().has_value(); };
  const auto recurrent = [](const Part& p) { return p.mixer->state_values() > 0; };
  CHECK(std::ranges::count_if(parts_, caching) <= 1 && std::ranges::count_if(parts_, recurrent) <= 1);
}

void TokenMixerSum::operator()(ops::Ctx& c, const TokenMixerStep& step, const Tensor& out, const Tensor& x,
                               bool accumulate) const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const bool onto = accumulate || i > 0;
    Arena::Scope scope(c.arena);
    if (part.scale == 1.0f || !onto) {
      (*part.mixer)(c, step, out, x, onto);
      if (part.scale != 1.0f) ops::map(c, out, ops::Map::kScale, part.scale);
      continue;
    }
    const Tensor mixed = c.arena.take(&kFloat32, {x.rows(), hidden_});
    (*part.mixer)(c, step, mixed, x, false);
    ops::add(c, out, mixed, part.scale);
  }
}

int64_t TokenMixerSum::floats_per_token() const {
  int64_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.mixer->floats_per_token());
  return hidden_ + most;
}

std::optional<KvShape> TokenMixerSum::kv_shape() const {
  for (const Part& part : parts_) {
    if (const auto shape = part.mixer->kv_shape()) return shape;
  }
  return std::nullopt;
}

int64_t TokenMixerSum::state_values() const {
  int64_t values = 0;
  for (const Part& part : parts_) values += part.mixer->state_values();
  return values;
}

}  // namespace sluice
