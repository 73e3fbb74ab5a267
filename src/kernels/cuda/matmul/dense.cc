// Matmuls of many rows by cuBLASLt. The library is opened beside the load. Where it is not installed the
// program still starts, and the streaming kernels take all rows.
//
// In cuBLAS's column-major terms, out^T [n, rows] = weight^T [n, k] * x^T [k, rows], with the weight's rows as columns.
//
// Weights and inputs of 8-bit floats are multiplied as they are, with a scale per row or per 128 elements of a row. The
// tensor cores add up products of 8-bit floats with fewer bits than fp32 has. With scales per 128 elements the sums are
// added in fp32 after every 128 elements, else after more (CUBLASLT_MATMUL_DESC_FAST_ACCUM).
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <exception>
#include <map>
#include <thread>
#include <tuple>

#include "base/log.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/grid.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul/dense.h"
#include "kernels/cuda/matmul/panel_layout.h"
#include "kernels/cuda/matmul/rows.h"

namespace sluice::cuda {
namespace {

// The library functions that are used.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  bool open() {
    void* library = dlopen("libcublasLt.so." SLUICE_CUBLASLT_MAJOR, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      log::warning("cannot load cuBLASLt ({}): matmuls of many rows will be slower", dlerror());
      return false;
    }
    return load(library, "cublasLtCreate", create) && load(library, "cublasLtDestroy", destroy) &&
           load(library, "cublasLtMatmul", matmul) && load(library, "cublasLtMatmulAlgoGetHeuristic", choose) &&
           load(library, "cublasLtMatmulDescCreate", desc_create) &&
           load(library, "cublasLtMatmulDescSetAttribute", desc_set) &&
           load(library, "cublasLtMatrixLayoutCreate", layout_create) &&
           load(library, "cublasLtMatrixLayoutSetAttribute", layout_set) &&
           load(library, "cublasLtMatmulPreferenceCreate", preference_create) &&
           load(library, "cublasLtMatmulPreferenceSetAttribute", preference_set);
  }

 private:
  template <class F>
  static bool load(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
  }
};

// Null if the library cannot be used here.
const Library* functions() {
  static Library loaded;
  static const bool opened = loaded.open();
  return opened ? &loaded : nullptr;
}

}  // namespace

void begin_opening_dense_library() {
  static const std::jthread opening([] { functions(); });
}

namespace {

void check(cublasStatus_t status, const char* what) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {} failed with status {}", what, static_cast<int>(status));
}

// How operands of 8-bit floats are scaled.
enum class Scaling { kNone, kPerRow, kPerGroup };

// Everything that cuBLASLt's choice of a kernel depends on.
struct Problem {
  DType type, out_type;
  int64_t n, rows, k, weight_stride, x_stride, out_stride;  // in elements
  Scaling scaling = Scaling::kNone;
  bool bias = false;
  uint32_t out_alignment = 256, bias_alignment = 256, x_alignment = 256;
  int matrices = 1;
  int64_t weight_step = 0, x_step = 0, out_step = 0;  // from a matrix to the next one
  auto key() const {
    return std::tie(type, out_type, n, rows, k, weight_stride, x_stride, out_stride, scaling, bias, out_alignment,
                    bias_alignment, x_alignment, matrices, weight_step, x_step, out_step);
  }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;
};

// The alignment of p and of addresses that are `step` bytes apart.
uint32_t alignment(const void* p, int64_t step = 0) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(step);
  return static_cast<uint32_t>(bits == 0 ? 256 : std::min<uintptr_t>(256, bits & -bits));
}

cudaDataType_t data_type(DType type) {
  return type == &kFloat32      ? CUDA_R_32F
         : type == &kBFloat16   ? CUDA_R_16BF
         : type == &kFloat8E4M3 ? CUDA_R_8F_E4M3
                                : CUDA_R_16F;
}

cublasLtMatrixLayout_t layout(const Library& lib, DType type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(lib.layout_create(&made, data_type(type), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
        "layout");
  return made;
}
void repeat(const Library& lib, cublasLtMatrixLayout_t layout, int32_t matrices, int64_t step) {
  check(lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices, sizeof matrices), "layout");
  check(lib.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step), "layout");
}

Plan make_plan(const Library& lib, cublasLtHandle_t handle, const Problem& p, size_t workspace) {
  Plan plan;
  // CUBLAS_COMPUTE_32F does not use tf32.
  check(lib.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(lib.desc_set(plan.desc, attribute, &value, sizeof value), "attribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (p.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  if (p.scaling != Scaling::kNone) {
    const int32_t mode = p.scaling == Scaling::kPerRow ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                       : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{p.scaling == Scaling::kPerRow});
    // The choice of kernels depends on there being scales, not on where they are.
    alignas(256) static std::byte anywhere[256];
    const void* somewhere = anywhere;
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere);
  }
  plan.weight = layout(lib, p.type, p.k, p.n, p.weight_stride);
  plan.x = layout(lib, p.type, p.k, p.rows, p.x_stride);
  plan.out = layout(lib, p.out_type, p.n, p.rows, p.out_stride);
  if (p.matrices > 1) {
    repeat(lib, plan.weight, p.matrices, p.weight_step);
    repeat(lib, plan.x, p.matrices, p.x_step);
    repeat(lib, plan.out, p.matrices, p.out_step);
  }
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib.preference_create(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lib.preference_set(preference, attribute, &value, sizeof value), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.x_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      lib.choose(handle, plan.desc, plan.weight, plan.x, plan.out, plan.out, preference, 1, &found, &count);
  plan.possible = status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = found.algo;
  return plan;
}

constexpr size_t kScratch = size_t{32} << 20;  // NVIDIA's recommendation for Hopper

}  // namespace

// The state of cuBLASLt that a queue keeps. Launches write their pointers into the plans, so that no two queues may
// share one. The library takes a quarter of a second to open, so a thread does that while the weights are loaded.
class DenseLibrary {
 public:
  explicit DenseLibrary(int device) : opening_([this, device] { open(device); }) {}
  ~DenseLibrary() {
    opening_.join();
    if (handle_ != nullptr) lib_->destroy(handle_);
  }
  DenseLibrary(const DenseLibrary&) = delete;
  DenseLibrary& operator=(const DenseLibrary&) = delete;

  bool usable() {
    opened_.wait(false, std::memory_order_acquire);
    return lib_ != nullptr;
  }
  // The plan of a problem, made once; null where there is none. Only where it is usable().
  const Plan* plan_of(const Problem& problem) {
    auto plan = plans_.find(problem);
    if (plan == plans_.end()) plan = plans_.emplace(problem, make_plan(*lib_, handle_, problem, kScratch)).first;
    return plan->second.possible ? &plan->second : nullptr;
  }
  const Library& library() const { return *lib_; }
  cublasLtHandle_t handle() const { return handle_; }

 private:
  void open(int device) noexcept {
    try_make_current(device);
    const Library* lib = functions();
    if (lib != nullptr && lib->create(&handle_) == CUBLAS_STATUS_SUCCESS) {
      lib_ = lib;
      read_tables();
    }
    opened_.store(true, std::memory_order_release);
    opened_.notify_all();
  }

  // The first choice of a kernel reads the library's tables. If it fails, the first matmul reports the error.
  void read_tables() noexcept {
    try {
      plan_of({.type = &kBFloat16,
               .out_type = &kFloat32,
               .n = 1024,
               .rows = 64,
               .k = 1024,
               .weight_stride = 1024,
               .x_stride = 1024,
               .out_stride = 1024});
    } catch (const std::exception& e) {
      log::debug("cuBLASLt: {}", e.what());
    }
  }

  std::atomic<bool> opened_ = false;
  const Library* lib_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Problem, Plan> plans_;
  std::thread opening_;
};

std::shared_ptr<DenseLibrary> make_dense_library() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "device");
  return std::make_shared<DenseLibrary>(device);
}

namespace {

// What a matmul reads besides its weights.
struct Operands {
  const void* x = nullptr;
  const float *bias = nullptr, *weight_scales = nullptr, *x_scales = nullptr;
  std::byte* scratch = nullptr;  // kScratch bytes
};

void launch_plan(const Plan& plan, const Launch& l, const MatmulProblem& p, const Operands& o, bool accumulate) {
  const Library& lib = l.dense->library();
  const auto point = [&](cublasLtMatmulDescAttributes_t attribute, const float* pointer) {
    if (pointer != nullptr) check(lib.desc_set(plan.desc, attribute, &pointer, sizeof pointer), "pointer");
  };
  point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
  point(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.weight_scales);
  point(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.x_scales);
  const float one = 1.0f, keep = accumulate ? 1.0f : 0.0f;
  check(lib.matmul(l.dense->handle(), plan.desc, &one, p.weight, plan.weight, o.x, plan.x, &keep, p.out.data, plan.out,
                   p.out.data, plan.out, &plan.algorithm, o.scratch, kScratch, l.stream),
        "matmul");
}

constexpr size_t padded_bytes(int64_t bytes) { return (static_cast<size_t>(bytes) + 255) / 256 * 256; }

Scaling scaling_of(ops::InputRounding rounding) {
  using enum ops::InputRounding;
  return rounding == kFp8PerRow ? Scaling::kPerRow : rounding == kFp8PerGroup ? Scaling::kPerGroup : Scaling::kNone;
}

Problem fp8_problem(int64_t n, int64_t rows, int64_t k, DType out_type, int64_t out_stride, Scaling scaling) {
  return {.type = &kFloat8E4M3,
          .out_type = out_type,
          .n = n,
          .rows = rows,
          .k = k,
          .weight_stride = fp8_row_bytes(k),
          .x_stride = k,
          .out_stride = out_stride,
          .scaling = scaling};
}

}  // namespace

bool matmul_dense(const Launch& l, const MatmulProblem& p) {
  if (!l.dense->usable() || p.matrices != 1) return false;
  const int64_t rows = p.x.rows();
  const bool rounds = p.x.dtype != p.type;  // else x is read in place
  const int64_t k = rounds ? padded_k(p.k) : p.k;
  if (!rounds && (alignment(p.x.data) < 16 || p.x.row_stride * p.type->block_bytes % 16 != 0)) return false;
  if (p.type == &kFloat32 && k != padded_k(k)) return false;
  const size_t x_bytes = rounds ? padded_bytes(rows * k * p.type->block_bytes) : 0;
  if (x_bytes + kScratch > l.workspace_bytes) return false;
  const Plan* plan = l.dense->plan_of({.type = p.type,
                                       .out_type = p.out.dtype,
                                       .n = p.n,
                                       .rows = rows,
                                       .k = k,
                                       .weight_stride = padded_k(p.k),
                                       .x_stride = rounds ? k : p.x.row_stride,
                                       .out_stride = p.out.row_stride,
                                       .bias = p.bias != nullptr,
                                       .out_alignment = alignment(p.out.data),
                                       .bias_alignment = alignment(p.bias)});
  if (plan == nullptr) return false;
  if (rounds) round_rows(l, l.workspace, p.type, p.x);
  const void* x = rounds ? l.workspace : p.x.data;
  launch_plan(*plan, l, p, {.x = x, .bias = p.bias, .scratch = l.workspace + x_bytes}, p.accumulate);
  return true;
}

namespace {

// Rounds the inputs of all heads at once and multiplies them by the matrices of the heads.
bool matmul_head_rows(const Launch& l, const MatmulProblem& p) {
  const int64_t width = padded_k(p.x.shape[1]), element = p.type->block_bytes, rows = p.x.rows();
  const Plan* plan = l.dense->plan_of({.type = p.type,
                                       .out_type = p.out.dtype,
                                       .n = p.n,
                                       .rows = rows,
                                       .k = p.k,
                                       .weight_stride = padded_k(p.k),
                                       .x_stride = width,
                                       .out_stride = p.out.row_stride,
                                       .out_alignment = alignment(p.out.data, p.out_columns * p.out.dtype->block_bytes),
                                       .x_alignment = alignment(nullptr, p.x_columns * element),
                                       .matrices = p.matrices,
                                       .weight_step = p.weight_rows * padded_k(p.k),
                                       .x_step = p.x_columns,
                                       .out_step = p.out_columns});
  if (plan == nullptr) return false;
  round_rows(l, l.workspace, p.type, p.x);
  std::byte* scratch = l.workspace + padded_bytes(rows * width * element);
  launch_plan(*plan, l, p, {.x = l.workspace, .scratch = scratch}, false);
  return true;
}

}  // namespace

bool matmul_dense_heads(const Launch& l, const MatmulProblem& p) {
  constexpr int64_t kAligned = 8, kTile = 128;  // elements of 16 bits, rows
  if (!l.dense->usable() || p.x.dtype != &kFloat32 || p.k % kAligned != 0 || p.x_columns % kAligned != 0) return false;
  const auto row_bytes = static_cast<size_t>(padded_k(p.x.shape[1]) * p.type->block_bytes);
  if (kScratch + row_bytes * kTile + 256 > l.workspace_bytes) return false;
  const auto fit = static_cast<int64_t>((l.workspace_bytes - kScratch - 256) / row_bytes) / kTile * kTile;
  const int64_t rows = p.x.rows();
  for (int64_t first = 0; first < rows; first += fit) {
    MatmulProblem part = p;
    part.x = p.x.slice_rows(first, std::min(fit, rows - first));
    part.out = p.out.slice_rows(first, std::min(fit, rows - first));
    if (!matmul_head_rows(l, part)) matmul_streamed(l, part);
  }
  return true;
}

namespace {

// Matmuls of experts, without cuBLASLt. Few rows are taken, too: the panel kernels widen these weights at half of the
// memory's speed.
bool matmul_fp8_experts(const Launch& l, const MatmulProblem& p) {
  const int64_t rows = p.x.rows();
  const size_t x_bytes = padded_bytes(rows * p.k);
  if (p.rounding != ops::InputRounding::kFp8PerRow || p.bias != nullptr || p.x.dtype != &kFloat32) return false;
  if (alignment(p.x.data) < 16 || p.x.row_stride % 4 != 0) return false;
  if (!takes_rows(l, p) || x_bytes + padded_bytes(rows * 4) > l.workspace_bytes) return false;
  auto* scales = reinterpret_cast<float*>(l.workspace + x_bytes);
  round_to_fp8(l, l.workspace, scales, p.x, false, p.x_rows);
  matmul_fp8_rows(l, p, l.workspace, scales);
  return true;
}

// Whether cuBLASLt, which does not split k for such scales, would leave half of the device idle.
bool is_narrow(const Launch& l, const MatmulProblem& p) {
  constexpr int64_t kTile = 128;
  return pieces(p.n, kTile) * pieces(p.x.rows(), kTile) * 2 <= l.sm_count;
}

}  // namespace

bool matmul_fp8(const Launch& l, const MatmulProblem& p) {
  if (p.starts != nullptr) return matmul_fp8_experts(l, p);
  const Scaling scaling = scaling_of(p.rounding);
  const int64_t rows = p.x.rows(), k = p.k;
  if (scaling == Scaling::kNone || rows < kFp8Rows || p.matrices != 1) return false;
  const bool rounds = p.x.dtype != &kFloat8E4M3, groups = scaling == Scaling::kPerGroup;
  if (!l.dense->usable() || alignment(p.out.data) < 16 || (rounds && alignment(p.x.data) < 16)) return false;
  if (rounds && p.x.row_stride % 4 != 0) return false;
  const Plan* plan = l.dense->plan_of(fp8_problem(p.n, rows, k, p.out.dtype, p.out.row_stride, scaling));
  const int64_t scales = groups ? k / quant::Fp8::kElements : 1;  // of a row
  const size_t x_bytes = rounds ? padded_bytes(rows * k) : 0,
               x_scale_bytes = rounds ? padded_bytes(rows * scales * 4) : 0;
  const size_t weight_scale_bytes = groups ? padded_bytes(p.n * scales * 4) : 0;
  const size_t before = x_bytes + x_scale_bytes + weight_scale_bytes;
  if (plan == nullptr || before + kScratch > l.workspace_bytes) return false;
  auto* x_scales = reinterpret_cast<float*>(l.workspace + x_bytes);
  auto* weight_scales = reinterpret_cast<float*>(l.workspace + x_bytes + x_scale_bytes);
  if (rounds) round_to_fp8(l, l.workspace, x_scales, p.x, groups);
  const std::byte* x = rounds ? l.workspace : p.x.data;
  if (!rounds) x_scales = ops::row_scales(p.x);
  const bool own =
      !groups && takes_rows(l, p) && (rows <= kMostFp8RowsOfAny || (rows <= kMostFp8Rows && is_narrow(l, p)));
  if (own) {
    matmul_fp8_rows(l, p, x, x_scales);
    return true;
  }
  if (groups) gather_fp8_scales(l, weight_scales, p.weight, p.n, k);
  if (p.bias != nullptr) add_bias(l, p.out, p.bias, p.accumulate);  // cuBLASLt has no such epilogue for fp32 biases
  MatmulProblem scaled = p;
  scaled.accumulate = p.accumulate || p.bias != nullptr;
  launch_plan(
      *plan, l, scaled,
      {.x = x,
       .weight_scales = groups ? weight_scales : reinterpret_cast<const float*>(p.weight + fp8_panels_bytes(p.n, k)),
       .x_scales = x_scales,
       .scratch = l.workspace + before},
      scaled.accumulate);
  return true;
}

bool dense_possible(const Launch& l, const ops::Weight& w, int64_t rows, DType input, DType output) {
  if (!l.dense->usable()) return false;
  rows = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));  // not a plan for each number of rows
  if (w.dtype == &quant::Fp8::kType) {
    const Scaling scaling = scaling_of(w.inputs);
    return scaling != Scaling::kNone && rows >= kFp8Rows &&
           l.dense->plan_of(fp8_problem(w.n, rows, w.k, output, w.n, scaling)) != nullptr;
  }
  const int64_t k = input == w.dtype ? w.k : padded_k(w.k);
  if (input == w.dtype && k % 8 != 0) return false;
  return l.dense->plan_of({.type = w.dtype,
                           .out_type = output,
                           .n = w.n,
                           .rows = rows,
                           .k = k,
                           .weight_stride = padded_k(w.k),
                           .x_stride = k,
                           .out_stride = w.n}) != nullptr;
}

}  // namespace sluice::cuda
