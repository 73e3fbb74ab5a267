// How a row without groups chooses its experts by softmax or sigmoid: the part of ops::Routing that device/route.cuh
// reads. It has no default values, so that instructions of the persistent decode kernel can have it in a union.
#pragma once

#include "ops/ops.h"

namespace sluice::cuda {

struct ExpertChoice {
  int top_k;
  bool softmax;  // else sigmoid
  bool normalize;
  float smallest_sum, scale;  // see ops::Routing
};

inline bool chooses_without_groups(const ops::RouteArgs& a) {
  const ops::Routing& r = a.routing;
  const bool usual = r.score == ops::Routing::Score::kSoftmax || r.score == ops::Routing::Score::kSigmoid;
  return usual && a.given.data == nullptr && r.top_groups >= r.groups;
}
inline ExpertChoice expert_choice(const ops::Routing& r) {
  return {.top_k = r.top_k,
          .softmax = r.score == ops::Routing::Score::kSoftmax,
          .normalize = r.normalize,
          .smallest_sum = r.smallest_sum,
          .scale = r.scale};
}

}  // namespace sluice::cuda
