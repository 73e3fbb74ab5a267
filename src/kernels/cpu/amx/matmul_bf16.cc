// Products with bf16 weights on AMX tiles: the panels of kernels/cpu/panels.h are tiles as they are, 32 inputs of 16
// columns in 16 rows of 64 bytes. x is rounded to bf16; a tile product adds even and odd inputs of 32 in fp32, both in
// ascending order, and adds them to the row's sum. That is the same for every number of rows, so a row's bits depend on
// nothing but the row, and one kernel serves all: few rows are bound by memory, many by the tile products.
#include "base/thread_pool.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_emit.h"
#include "kernels/cpu/panels.h"

namespace sluice::SLUICE_ISA {
namespace {

using kernels::kPanel;

constexpr int64_t kInputs = 32;                       // of a tile product
constexpr int64_t kStepBytes = kInputs * kPanel * 2;  // of a panel's weights in one
constexpr int64_t kSteps = 16;                        // tile products per block over k: two panels fit the first cache
constexpr int kGroup = 2;                             // panels of a task
constexpr int64_t kBlockRows = 2 * kTileRows;         // rows multiplied at a time
constexpr int64_t kRowChunk = 8 * kBlockRows;         // rows of a task
constexpr int64_t kPassRows = 4 * kRowChunk;          // rows per pass over the weights: bounds the scratch memory
constexpr int64_t kAheadBytes = 4 << 10;              // how far the first rows ask memory for what comes
constexpr int64_t kSumsBytes = kGroup * kPanel * sizeof(float);  // between rows of sums

// Rows of x as bf16, padded with zeros to whole tile products.
struct Inputs {
  const std::byte* data;
  int64_t row_bytes;
};

struct Sums {
  float* first;
  bool empty;  // nothing was added yet
};

// sums += R tiles of rows of x by `steps` tile products of P panels, `panel_bytes` apart.
template <int R, int P>
void multiply_block(Inputs x, const std::byte* weights, int64_t panel_bytes, int64_t steps, Sums sums, bool ask) {
  const auto at = [&](int r, int p) { return sums.first + r * kTileRows * kGroup * kPanel + p * kPanel; };
  if (sums.empty) {
    _tile_zero(0);
    if constexpr (P == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && P == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, at(0, 0), kSumsBytes);
    if constexpr (P == 2) _tile_loadd(1, at(0, 1), kSumsBytes);
    if constexpr (R == 2) _tile_loadd(2, at(1, 0), kSumsBytes);
    if constexpr (R == 2 && P == 2) _tile_loadd(3, at(1, 1), kSumsBytes);
  }
  const std::byte* rows0 = x.data;
  const std::byte* rows1 = x.data + kTileRows * x.row_bytes;
  for (int64_t i = 0; i < steps; ++i) {
    if (ask) {
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(weights + kAheadBytes + line, 0, 2);
        if constexpr (P == 2) __builtin_prefetch(weights + panel_bytes + kAheadBytes + line, 0, 2);
      }
    }
    _tile_loadd(4, rows0, x.row_bytes);
    _tile_loadd(6, weights, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P == 2) {
      _tile_loadd(7, weights + panel_bytes, kTileBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R == 2) {
      _tile_loadd(5, rows1, x.row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (P == 2) _tile_dpbf16ps(3, 5, 7);
    }
    weights += kStepBytes;
    rows0 += kInputs * 2;
    rows1 += kInputs * 2;
  }
  _tile_stored(0, at(0, 0), kSumsBytes);
  if constexpr (P == 2) _tile_stored(1, at(0, 1), kSumsBytes);
  if constexpr (R == 2) _tile_stored(2, at(1, 0), kSumsBytes);
  if constexpr (R == 2 && P == 2) _tile_stored(3, at(1, 1), kSumsBytes);
}

// Steps of whole tile products over k, then the rest of k from a copy padded with zeros.
template <int P>
class Task {
 public:
  Task(const ops::MatmulArgs& args, int64_t panel)
      : args_(args), panel_(panel), panel_bytes_(kernels::panel_bytes(args.weight->k, 2, 2)) {
    weights_ = args.weight->data + panel * panel_bytes_;
    whole_ = panel_bytes_ / kStepBytes;
    const int64_t left = panel_bytes_ % kStepBytes;
    if (left == 0) return;
    for (int p = 0; p < P; ++p) {
      __builtin_memset(tail_[p], 0, kStepBytes);
      __builtin_memcpy(tail_[p], weights_ + p * panel_bytes_ + whole_ * kStepBytes, static_cast<size_t>(left));
    }
    has_tail_ = true;
  }

  void run(Inputs x, int64_t row, int64_t rows) {
    for (int64_t begin = 0; begin < whole_; begin += kSteps) {
      const int64_t steps = whole_ - begin < kSteps ? whole_ - begin : kSteps;
      multiply_rows(x, rows, begin, steps, weights_ + begin * kStepBytes, panel_bytes_);
    }
    if (has_tail_) multiply_rows(x, rows, whole_, 1, tail_[0], kStepBytes);
    for (int64_t r = 0; r < rows; ++r) {
      for (int p = 0; p < P; ++p) {
        emit(args_, row + r, (panel_ + p) * kPanel, load(sums_ + (r * kGroup + p) * kPanel, All{}));
      }
    }
  }

 private:
  void multiply_rows(Inputs x, int64_t rows, int64_t step, int64_t steps, const std::byte* weights,
                     int64_t panel_bytes) {
    x.data += step * kInputs * 2;
    for (int64_t at = 0; at < rows; at += kBlockRows) {
      const auto here = static_cast<int>(rows - at < kBlockRows ? rows - at : kBlockRows);
      const int rows0 = here < kTileRows ? here : kTileRows;
      const Inputs part{x.data + at * x.row_bytes, x.row_bytes};
      const Sums sums{sums_ + at * kGroup * kPanel, step == 0};
      const TileScope scope(rows0, here - rows0, kInputs * 2);
      const bool ask = at == 0 && weights != tail_[0];
      if (here > kTileRows) {
        multiply_block<2, P>(part, weights, panel_bytes, steps, sums, ask);
      } else {
        multiply_block<1, P>(part, weights, panel_bytes, steps, sums, ask);
      }
    }
  }

  const ops::MatmulArgs& args_;
  int64_t panel_, panel_bytes_, whole_;
  const std::byte* weights_;
  bool has_tail_ = false;
  alignas(64) float sums_[kRowChunk * kGroup * kPanel];
  alignas(64) std::byte tail_[P][kStepBytes];
};

Inputs round_rows(ThreadPool& pool, const Tensor& x, int64_t row, int64_t rows) {
  const int64_t k = x.shape[1], padded = (k + kInputs - 1) / kInputs * kInputs;
  const int64_t stride = padded + kInputs;  // rows start on lines, and not all on the same sets of the cache
  auto* to = reinterpret_cast<Bf16*>(pool.scratch(static_cast<size_t>(rows * stride) * sizeof(Bf16)));
  constexpr int64_t kGrain = 1 << 15;  // elements worth handing to another thread
  pool.parallel_for(rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = reinterpret_cast<const float*>(x.data) + (row + r) * x.row_stride;
      each_vec(k, [&](int64_t i, auto n) { store(to + r * stride + i, load(from + i, n), n); });
      for (int64_t i = k; i < padded; ++i) to[r * stride + i].bits = 0;
    }
  });
  return {reinterpret_cast<const std::byte*>(to), stride * static_cast<int64_t>(sizeof(Bf16))};
}

}  // namespace

void matmul_bf16(ThreadPool& pool, const ops::MatmulArgs& args) {
  const int64_t panels = (args.weight->n + kPanel - 1) / kPanel, groups = (panels + kGroup - 1) / kGroup;
  const int64_t total = args.x.shape[0];
  for (int64_t pass = 0; pass < total; pass += kPassRows) {
    const int64_t rows = total - pass < kPassRows ? total - pass : kPassRows;
    const Inputs x = round_rows(pool, args.x, pass, rows);
    const int64_t chunks = (rows + kRowChunk - 1) / kRowChunk;
    // Chunks of one group of panels follow each other, so that its weights come from memory once.
    pool.parallel_for(groups * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t panel = task / chunks * kGroup, first = task % chunks * kRowChunk;
        const int64_t count = rows - first < kRowChunk ? rows - first : kRowChunk;
        const Inputs part{x.data + first * x.row_bytes, x.row_bytes};
        if (panel + 1 < panels) {
          Task<2>(args, panel).run(part, pass + first, count);
        } else {
          Task<1>(args, panel).run(part, pass + first, count);
        }
      }
    });
  }
}

}  // namespace sluice::SLUICE_ISA
