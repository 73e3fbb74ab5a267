// Products of many rows by cuBLASLt, which is opened when it is first needed: the program starts where it is not
// installed, and the streaming kernels then take all rows.
//
// In cuBLAS's column-major terms out^T [n, rows] = weight^T [n, k] * x^T [k, rows], with the weight's rows as columns.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>

#include "base/log.h"
#include "kernels/cuda/launch.h"

namespace sluice::cuda {
namespace {

// The functions of the library that are used.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  cublasLtHandle_t handle = nullptr;

  bool open() {
    void* library = dlopen("libcublasLt.so." SLUICE_CUBLASLT_MAJOR, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      log::warning("{}: matrix products of many rows will be slower", dlerror());
      return false;
    }
    return load(library, "cublasLtCreate", create) && load(library, "cublasLtMatmul", matmul) &&
           load(library, "cublasLtMatmulAlgoGetHeuristic", choose) &&
           load(library, "cublasLtMatmulDescCreate", desc_create) &&
           load(library, "cublasLtMatmulDescSetAttribute", desc_set) &&
           load(library, "cublasLtMatrixLayoutCreate", layout_create) &&
           load(library, "cublasLtMatmulPreferenceCreate", preference_create) &&
           load(library, "cublasLtMatmulPreferenceSetAttribute", preference_set) &&
           create(&handle) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  template <class F>
  static bool load(void* library, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(library, name));
    return function != nullptr;
  }
};

// Null when it cannot be used here.
const Library* library() {
  static Library loaded;
  static const bool opened = loaded.open();
  return opened ? &loaded : nullptr;
}

void check(cublasStatus_t status, const char* what) {
  CHECK(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {}: status {}", what, static_cast<int>(status));
}

// What decides which kernel is best.
struct Problem {
  DType type;
  int64_t n, rows, k, x_stride, out_stride;
  bool bias;
  uint32_t out_alignment, bias_alignment;
  auto key() const { return std::tie(type, n, rows, k, x_stride, out_stride, bias, out_alignment, bias_alignment); }
  bool operator<(const Problem& other) const { return key() < other.key(); }
};

struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool possible = false;
};

uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(address == 0 ? 256 : std::min<uintptr_t>(256, address & -address));
}

cudaDataType_t data_type(DType type) {
  return type == &kFloat32 ? CUDA_R_32F : type == &kBFloat16 ? CUDA_R_16BF : CUDA_R_16F;
}

cublasLtMatrixLayout_t layout(const Library& lib, cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
  cublasLtMatrixLayout_t made = nullptr;
  check(lib.layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride), "layout");
  return made;
}

Plan make_plan(const Library& lib, const Problem& p, size_t workspace) {
  Plan plan;
  check(lib.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");  // no tf32
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(lib.desc_set(plan.desc, attribute, &value, sizeof value), "attribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  if (p.bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  const cudaDataType_t type = data_type(p.type);
  plan.weight = layout(lib, type, p.k, p.n, p.k);
  plan.x = layout(lib, type, p.k, p.rows, p.x_stride);
  plan.out = layout(lib, CUDA_R_32F, p.n, p.rows, p.out_stride);
  cublasLtMatmulPreference_t preference = nullptr;
  check(lib.preference_create(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lib.preference_set(preference, attribute, &value, sizeof value), "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{workspace});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.out_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      lib.choose(lib.handle, plan.desc, plan.weight, plan.x, plan.out, plan.out, preference, 1, &found, &count);
  plan.possible = status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = found.algo;
  return plan;
}

}  // namespace

bool multiply_dense(const Launch& l, const Product& p) {
  const Library* lib = library();
  if (lib == nullptr || p.matrices != 1) return false;
  const int64_t rows = p.x.rows(), k = padded_k(p.k);
  const bool rounded = p.type != &kFloat32;
  if (!rounded && (p.k != k || p.x.row_stride % 4 != 0 || alignment(p.x.data) < 16)) return false;
  const size_t x_bytes = rounded ? (static_cast<size_t>(rows * k) * 2 + 255) / 256 * 256 : 0;
  constexpr size_t kScratch = size_t{32} << 20;  // NVIDIA's advice for Hopper
  if (x_bytes + kScratch > l.workspace_bytes) return false;
  static std::map<Problem, Plan> plans;  // launches come from one thread
  const Problem problem{p.type,
                        p.n,
                        rows,
                        k,
                        rounded ? k : p.x.row_stride,
                        p.out.row_stride,
                        p.bias != nullptr,
                        alignment(p.out.data),
                        alignment(p.bias)};
  auto plan = plans.find(problem);
  if (plan == plans.end()) plan = plans.emplace(problem, make_plan(*lib, problem, kScratch)).first;
  if (!plan->second.possible) return false;
  if (rounded) round_rows(l, l.workspace, p.type, p.x);
  const Plan& use = plan->second;
  if (p.bias != nullptr) {
    check(lib->desc_set(use.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p.bias, sizeof p.bias), "bias");
  }
  const float one = 1.0f, keep = p.accumulate ? 1.0f : 0.0f;
  const void* x = rounded ? l.workspace : p.x.data;
  check(lib->matmul(lib->handle, use.desc, &one, p.weight, use.weight, x, use.x, &keep, p.out.data, use.out, p.out.data,
                    use.out, &use.algorithm, l.workspace + x_bytes, kScratch, l.stream),
        "product");
  return true;
}

}  // namespace sluice::cuda
