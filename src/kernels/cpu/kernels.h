// What one instruction set provides, as plain pointers: constant data, so that nothing compiled for an instruction set
// runs before the CPU was asked for it. dispatch/backends.cc makes op tables of it.
#pragma once

#include "ops/ops.h"

namespace sluice::kernels {

using Matmul = void (*)(ThreadPool&, const ops::MatmulArgs&);

struct CpuKernels {
  void (*embed)(ThreadPool&, Tensor out, const Tensor& table, Indices ids);
  void (*rms_norm)(ThreadPool&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset);
  void (*layer_norm)(ThreadPool&, Tensor out, Tensor x, const float* weight, const float* bias, float eps);
  void (*match_rms)(ThreadPool&, Tensor x, Tensor like, float floor);
  void (*gaussian_top_k)(ThreadPool&, Tensor x, float deviations);
  void (*glu)(ThreadPool&, Tensor out, Tensor gate_up, ops::Activation activation);
  void (*clamped_glu)(ThreadPool&, Tensor out, Tensor gate_up, float alpha, float limit);
  void (*unary)(ThreadPool&, Tensor x, ops::Activation activation);
  void (*xielu)(ThreadPool&, Tensor x, const ops::Xielu& parameters);
  void (*map)(ThreadPool&, Tensor x, ops::Map function, float parameter);
  void (*copy)(ThreadPool&, Tensor out, Tensor x);
  void (*add)(ThreadPool&, Tensor out, Tensor x, float scale);
  void (*multiply)(ThreadPool&, Tensor out, Tensor x, ops::Activation activation);
  void (*softplus)(ThreadPool&, Tensor x, const float* bias, float low, float high);
  void (*rope_store)(ThreadPool&, const ops::RopeStoreArgs&);
  void (*latent_store)(ThreadPool&, const ops::LatentStoreArgs&);
  void (*attention)(ThreadPool&, const ops::AttentionArgs&);
  void (*causal_conv)(ThreadPool&, const ops::CausalConvArgs&);
  void (*selective_scan)(ThreadPool&, const ops::SelectiveScanArgs&);
  void (*head_scan)(ThreadPool&, const ops::HeadScanArgs&);
  void (*delta_rule)(ThreadPool&, const ops::DeltaRuleArgs&);
  void (*gated_lru)(ThreadPool&, const ops::GatedLruArgs&);
  void (*gather_rows)(ThreadPool&, Tensor out, Tensor x, Indices rows);
  void (*combine)(ThreadPool&, const ops::CombineArgs&);
  Matmul matmul_f32, matmul_bf16, matmul_fp16;
  Matmul (*matmul_blocks)(DType format);  // for weights as pack_blocks orders them; null when there is none
  Matmul (*matmul_int8)(DType format);    // for weights as int8_packing orders them; null when there is none
  bool rounding_attention;                // see ops::Ops
};

}  // namespace sluice::kernels

#ifdef SLUICE_ISA
namespace sluice::SLUICE_ISA {

void embed(ThreadPool&, Tensor out, const Tensor& table, Indices ids);
void rms_norm(ThreadPool&, Tensor out, Tensor x, const float* weight, float eps, float weight_offset);
void layer_norm(ThreadPool&, Tensor out, Tensor x, const float* weight, const float* bias, float eps);
void match_rms(ThreadPool&, Tensor x, Tensor like, float floor);
void gaussian_top_k(ThreadPool&, Tensor x, float deviations);
void glu(ThreadPool&, Tensor out, Tensor gate_up, ops::Activation activation);
void clamped_glu(ThreadPool&, Tensor out, Tensor gate_up, float alpha, float limit);
void unary(ThreadPool&, Tensor x, ops::Activation activation);
void xielu(ThreadPool&, Tensor x, const ops::Xielu& parameters);
void map(ThreadPool&, Tensor x, ops::Map function, float parameter);
void copy(ThreadPool&, Tensor out, Tensor x);
void add(ThreadPool&, Tensor out, Tensor x, float scale);
void multiply(ThreadPool&, Tensor out, Tensor x, ops::Activation activation);
void softplus(ThreadPool&, Tensor x, const float* bias, float low, float high);
void rope_store(ThreadPool&, const ops::RopeStoreArgs&);
void latent_store(ThreadPool&, const ops::LatentStoreArgs&);
void attention(ThreadPool&, const ops::AttentionArgs&);
void causal_conv(ThreadPool&, const ops::CausalConvArgs&);
void selective_scan(ThreadPool&, const ops::SelectiveScanArgs&);
void head_scan(ThreadPool&, const ops::HeadScanArgs&);
void delta_rule(ThreadPool&, const ops::DeltaRuleArgs&);
void gated_lru(ThreadPool&, const ops::GatedLruArgs&);
void gather_rows(ThreadPool&, Tensor out, Tensor x, Indices rows);
void combine(ThreadPool&, const ops::CombineArgs&);
void matmul_f32(ThreadPool&, const ops::MatmulArgs&);
void matmul_bf16(ThreadPool&, const ops::MatmulArgs&);
void matmul_fp16(ThreadPool&, const ops::MatmulArgs&);
kernels::Matmul matmul_blocks(DType format);
kernels::Matmul matmul_int8(DType format);

}  // namespace sluice::SLUICE_ISA
#endif
