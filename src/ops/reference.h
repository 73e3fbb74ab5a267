// Parts of the scalar reference that have files of their own.
#pragma once

#include "ops/ops.h"

namespace sluice::ops::reference {

// Codes of a vector in an int8 cache; returns their scale.
float encode_int8(const float* from, int8_t* to, int64_t count);
void rope_store(ThreadPool&, const RopeStoreArgs& args);
void latent_store(ThreadPool&, const LatentStoreArgs& args);
void attention(ThreadPool&, const AttentionArgs& args);
void copy_rows(ThreadPool&, Tensor x, Indices pairs);
void sample(ThreadPool&, const SampleArgs& args);
void feed_sampled(ThreadPool&, const FeedSampledArgs& args);
void pooling(ThreadPool&, const PoolingArgs& args);
void multiply(ThreadPool&, Tensor out, Tensor x, Activation activation);
void softplus(ThreadPool&, Tensor x, const float* bias, float low, float high);
void causal_conv(ThreadPool&, const CausalConvArgs& args);
void selective_scan(ThreadPool&, const SelectiveScanArgs& args);
void head_scan(ThreadPool&, const HeadScanArgs& args);
void delta_rule(ThreadPool&, const DeltaRuleArgs& args);
void gated_lru(ThreadPool&, const GatedLruArgs& args);
void route(ThreadPool&, const RouteArgs& args);
void group_by_expert(ThreadPool&, const GroupByExpertArgs& args);
void expert_matmul(ThreadPool&, const MatmulKernels& kernels, const ExpertMatmulArgs& args);
void head_matmul(ThreadPool&, const MatmulKernels& kernels, const HeadMatmulArgs& args);
void combine(ThreadPool&, const CombineArgs& args);

}  // namespace sluice::ops::reference
