// Parts of the scalar reference that have files of their own.
#pragma once

#include "ops/ops.h"

namespace sluice::ops::reference {

void rope_store(ThreadPool&, const RopeStoreArgs& args);
void latent_store(ThreadPool&, const LatentStoreArgs& args);
void attention(ThreadPool&, const AttentionArgs& args);
void route(ThreadPool&, const RouteArgs& args);
void group_by_expert(ThreadPool&, const GroupByExpertArgs& args);
void expert_matmul(ThreadPool&, const MatmulKernels& kernels, const ExpertMatmulArgs& args);
void head_matmul(ThreadPool&, const MatmulKernels& kernels, const HeadMatmulArgs& args);
void combine(ThreadPool&, const CombineArgs& args);

}  // namespace sluice::ops::reference
