// Matmul with bf16 weights on AMX tiles. The panels of kernels/cpu/panels.h already have the shape of tiles: 32 inputs
// of 16 columns in 16 rows of 64 bytes. x is rounded to bf16. A tile matmul adds the even and the odd inputs of 32 in
// fp32, each in ascending order, and adds both to the row's sum. This order is the same for every number of rows, so a
// row's bits depend only on the row.
//
// Up to kFewRows rows take the GEMV path: every pair of panels is one stream from memory. With more rows that fit in
// L2, a task is one pair of panels: its steps stay in L1 for all rows. With still more rows, tiles multiply faster than
// L3 can deliver. A task then has more panels: L2 holds a few steps of its rows of x, and its sums, while one pair of
// panels after the other is multiplied.
#include <algorithm>

#include "base/thread_pool.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matmul_emit.h"
#include "kernels/cpu/panels.h"

namespace sluice::SLUICE_ISA {
namespace {

using kernels::kPanel;

constexpr int64_t kInputs = 32;                       // inputs of a step over k: one tile matmul
constexpr int64_t kStepBytes = kInputs * kPanel * 2;  // weight bytes of a panel in one step
constexpr int64_t kRowBytes = kInputs * 2;            // bytes of a row of x in one step
constexpr int kPair = 2;                              // panels, and tiles of rows, multiplied together
constexpr int64_t kFewRows = kPair * kTileRows;
constexpr int64_t kBlockRows = 256;                   // rows of a task
constexpr size_t kHeldBytes = 1 << 20;                // most bytes of x for which L2 holds all rows
constexpr int64_t kHeldSteps = 16;                    // steps of a pair of panels that L1 holds in that case
constexpr int64_t kBlockSteps = 8, kTaskPanels = 32;  // otherwise: 128 KiB of x and 512 KiB of sums in L2
constexpr int64_t kPassRows = 4 * kBlockRows;         // rows per pass over the weights: bounds the scratch memory
constexpr int64_t kAheadBytes = 4 << 10;              // prefetch distance of the GEMV path
constexpr int64_t kPairSums = kPair * kPanel;         // floats per row for the sums of two panels

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

// Rows of x as bf16 in tiles: [tile][step][row][32 inputs], padded with zeros to whole steps. A tile has 16 rows; the
// last one has the remaining rows.
struct Inputs {
  std::byte* data;
  int64_t rows, steps;

  static int64_t steps_of(int64_t k) { return pieces(k, kInputs); }
  static size_t bytes(int64_t rows, int64_t k) { return static_cast<size_t>(rows * steps_of(k) * kRowBytes); }
  int rows_of(int64_t tile) const {
    return static_cast<int>(std::clamp<int64_t>(rows - tile * kTileRows, 0, kTileRows));
  }
  std::byte* at(int64_t tile, int64_t step) const {
    return data + (tile * kTileRows * steps + step * rows_of(tile)) * kRowBytes;
  }
};

// Rounds `rows` rows to bf16 and pads with zeros.
void round_rows(ops::Queue& queue, const Tensor& x, int64_t first, int64_t rows, const Inputs& to) {
  const int64_t k = x.shape[1];
  constexpr int64_t kGrain = 1 << 15;  // elements worth handing to another thread
  queue.threads().parallel_for(to.rows, kGrain / (k + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = reinterpret_cast<const float*>(x.data) + (first + r) * x.row_stride;
      const int64_t given = r < rows ? k : 0, tile = r / kTileRows;
      for (int64_t step = 0; step < to.steps; ++step) {
        auto* row = reinterpret_cast<Bf16*>(to.at(tile, step) + r % kTileRows * kRowBytes);
        const int64_t here = std::clamp<int64_t>(given - step * kInputs, 0, kInputs);
        each_vec(here, [&](int64_t i, auto n) { store(row + i, load(from + step * kInputs + i, n), n); });
        for (int64_t i = here; i < kInputs; ++i) row[i].bits = 0;
      }
    }
  });
}

// Operands of a tile matmul: up to kPair tiles of rows of x and P panels, with the distances to their next steps.
struct Operands {
  const std::byte* rows[kPair];
  int64_t row_step[kPair];
  const std::byte* weights;
  int64_t panel_bytes;
};

// Adds `steps` steps to the sums in the tiles. Each step i calls ask(i), which prefetches.
template <int R, int P, class Ask>
SLUICE_INLINE void multiply_steps(Operands o, int64_t steps, Ask&& ask) {
  for (int64_t i = 0; i < steps; ++i) {
    ask(i);
    _tile_loadd(4, o.rows[0], kRowBytes);
    _tile_loadd(6, o.weights, kTileBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P == 2) {
      _tile_loadd(7, o.weights + o.panel_bytes, kTileBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (R == 2) {
      _tile_loadd(5, o.rows[1], kRowBytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (P == 2) _tile_dpbf16ps(3, 5, 7);
    }
    o.weights += kStepBytes;
    o.rows[0] += o.row_step[0], o.rows[1] += o.row_step[1];
  }
}

// Load or store the sums of R tiles of rows by P panels, in rows of kPairSums floats.
template <int R, int P>
SLUICE_INLINE void begin_sums(const float* from) {
  constexpr int64_t kBytes = kPairSums * sizeof(float);
  if (from == nullptr) {
    _tile_zero(0);
    if constexpr (P == 2) _tile_zero(1);
    if constexpr (R == 2) _tile_zero(2);
    if constexpr (R == 2 && P == 2) _tile_zero(3);
  } else {
    _tile_loadd(0, from, kBytes);
    if constexpr (P == 2) _tile_loadd(1, from + kPanel, kBytes);
    if constexpr (R == 2) _tile_loadd(2, from + kTileRows * kPairSums, kBytes);
    if constexpr (R == 2 && P == 2) _tile_loadd(3, from + kTileRows * kPairSums + kPanel, kBytes);
  }
}
template <int R, int P>
SLUICE_INLINE void leave_sums(float* to) {
  constexpr int64_t kBytes = kPairSums * sizeof(float);
  _tile_stored(0, to, kBytes);
  if constexpr (P == 2) _tile_stored(1, to + kPanel, kBytes);
  if constexpr (R == 2) _tile_stored(2, to + kTileRows * kPairSums, kBytes);
  if constexpr (R == 2 && P == 2) _tile_stored(3, to + kTileRows * kPairSums + kPanel, kBytes);
}

// Packed weights. copy_tail() copies the inputs after the last whole step of up to two panels, padded with zeros.
class Panels {
 public:
  explicit Panels(const ops::Weight& weight)
      : data_(weight.data), bytes_(kernels::panel_bytes(weight.k, 2, 2)), count_(pieces(weight.n, kPanel)) {}
  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }
  int64_t whole_steps() const { return bytes_ / kStepBytes; }
  bool has_tail() const { return bytes_ % kStepBytes != 0; }
  const std::byte* at(int64_t panel, int64_t step) const { return data_ + panel * bytes_ + step * kStepBytes; }

  using Tail = std::byte[kPair * kStepBytes];
  void copy_tail(int64_t panel, int panels, Tail& to) const {
    for (int p = 0; p < panels; ++p) {
      __builtin_memset(to + p * kStepBytes, 0, kStepBytes);
      __builtin_memcpy(to + p * kStepBytes, at(panel + p, whole_steps()), static_cast<size_t>(bytes_ % kStepBytes));
    }
  }

 private:
  const std::byte* data_;
  int64_t bytes_, count_;
};

// GEMV path: up to kFewRows rows by P panels. The weights are read once.
template <int R, int P>
void stream(const ops::MatmulArgs& args, const Panels& panels, const Inputs& x, int64_t first_row, int64_t panel) {
  alignas(64) float sums[kFewRows * kPairSums];
  Operands o{.rows = {x.at(0, 0), x.at(1, 0)},
             .row_step = {x.rows_of(0) * kRowBytes, x.rows_of(1) * kRowBytes},
             .weights = panels.at(panel, 0),
             .panel_bytes = panels.bytes()};
  {
    const TileScope scope(x.rows_of(0), x.rows_of(1), kRowBytes);
    begin_sums<R, P>(nullptr);
    multiply_steps<R, P>(o, panels.whole_steps(), [&](int64_t i) {
      const std::byte* later = o.weights + i * kStepBytes + kAheadBytes;
      for (int64_t line = 0; line < kStepBytes; line += 64) {
        __builtin_prefetch(later + line, 0, 2);
        if constexpr (P == 2) __builtin_prefetch(later + panels.bytes() + line, 0, 2);
      }
    });
    if (panels.has_tail()) {
      alignas(64) Panels::Tail tail;
      panels.copy_tail(panel, P, tail);
      o.rows[0] = x.at(0, x.steps - 1), o.rows[1] = x.at(1, x.steps - 1);
      o.weights = tail, o.panel_bytes = kStepBytes;
      multiply_steps<R, P>(o, 1, [](int64_t) {});
    }
    leave_sums<R, P>(sums);
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int p = 0; p < P; ++p) {
      emit(args, first_row + r, (panel + p) * kPanel, load(sums + r * kPairSums + p * kPanel, All{}));
    }
  }
}

// A task of many rows: at most kBlockRows rows from row `first` of x, by up to kTaskPanels panels.
class Block {
 public:
  // `sums` holds every pair of panels: [kBlockRows][kPairSums] each.
  Block(const Panels& panels, const Inputs& x, int64_t first, int64_t panel, int64_t count, int64_t block_steps,
        float* sums)
      : panels_(panels),
        x_(x),
        tile_(first / kTileRows),
        tiles_(std::min(kBlockRows, x.rows - first) / kTileRows),
        panel_(panel),
        count_(count),
        block_steps_(block_steps),
        sums_(sums) {}

  void multiply() {
    const TileScope scope(kTileRows, kTileRows, kRowBytes);
    for (int64_t step = 0; step < panels_.whole_steps(); step += block_steps_) {
      const int64_t steps = std::min(block_steps_, panels_.whole_steps() - step);
      for (int64_t p = 0; p < count_; p += kPair) {
        const bool last = p + kPair >= count_;
        const std::byte* next = last ? panels_.at(panel_, step + steps) : panels_.at(panel_ + p + kPair, step);
        multiply_pair(p, panels_.at(panel_ + p, step), panels_.bytes(), step, steps, next);
      }
    }
    if (!panels_.has_tail()) return;
    alignas(64) Panels::Tail tail;
    for (int64_t p = 0; p < count_; p += kPair) {
      panels_.copy_tail(panel_ + p, static_cast<int>(std::min<int64_t>(kPair, count_ - p)), tail);
      multiply_pair(p, tail, kStepBytes, panels_.whole_steps(), 1, nullptr);
    }
  }

  // Writes the first `rows` rows of the block to the rows of the result from `row` on.
  void write(const ops::MatmulArgs& args, int64_t row, int64_t rows) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t p = 0; p < count_; ++p) {
        emit(args, row + r, (panel_ + p) * kPanel, load(sums_of(p / kPair, r) + p % kPair * kPanel, All{}));
      }
    }
  }

 private:
  float* sums_of(int64_t pair, int64_t row) const { return sums_ + (pair * kBlockRows + row) * kPairSums; }

  void multiply_pair(int64_t p, const std::byte* weights, int64_t panel_bytes, int64_t step, int64_t steps,
                     const std::byte* next) {
    if (p + 1 < count_) {
      multiply_rows<2>(p / kPair, weights, panel_bytes, step, steps, next);
    } else {
      multiply_rows<1>(p / kPair, weights, panel_bytes, step, steps, next);
    }
  }

  // Multiplies all rows. Meanwhile it prefetches the next steps of the panels, or the next panels.
  template <int P>
  void multiply_rows(int64_t pair, const std::byte* weights, int64_t panel_bytes, int64_t step, int64_t steps,
                     const std::byte* next) {
    constexpr int64_t kLines = kStepBytes / 64;
    // Cache lines of a panel to prefetch per step of a pair of tiles.
    const int64_t each = pieces(kLines * kPair, tiles_);
    for (int64_t tile = 0; tile < tiles_; tile += kPair) {
      float* sums = sums_of(pair, tile * kTileRows);
      begin_sums<2, P>(step == 0 ? nullptr : sums);
      const std::byte* later = next == nullptr ? nullptr : next + tile / kPair * steps * each * 64;
      multiply_steps<2, P>({.rows = {x_.at(tile_ + tile, step), x_.at(tile_ + tile + 1, step)},
                            .row_step = {kTileRows * kRowBytes, kTileRows * kRowBytes},
                            .weights = weights,
                            .panel_bytes = panel_bytes},
                           steps, [&](int64_t i) {
                             if (later == nullptr) return;
                             for (int64_t line = i * each; line < (i + 1) * each; ++line) {
                               __builtin_prefetch(later + line * 64, 0, 2);
                               if constexpr (P == 2) __builtin_prefetch(later + panel_bytes + line * 64, 0, 2);
                             }
                           });
      leave_sums<2, P>(sums);
    }
  }

  const Panels& panels_;
  const Inputs& x_;
  int64_t tile_, tiles_, panel_, count_, block_steps_;
  float* sums_;
};

void multiply_few(ops::Queue& queue, const ops::MatmulArgs& args, int64_t rows) {
  const Panels panels(*args.weight);
  const int64_t k = args.weight->k;
  const Inputs x{queue.threads().scratch(Inputs::bytes(rows, k)), rows, Inputs::steps_of(k)};
  round_rows(queue, args.x, 0, rows, x);
  queue.threads().parallel_for(pieces(panels.count(), kPair), 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin * kPair; panel < std::min(end * kPair, panels.count()); panel += kPair) {
      const bool both = panel + 1 < panels.count();
      if (rows > kTileRows) {
        both ? stream<2, 2>(args, panels, x, 0, panel) : stream<2, 1>(args, panels, x, 0, panel);
      } else {
        both ? stream<1, 2>(args, panels, x, 0, panel) : stream<1, 1>(args, panels, x, 0, panel);
      }
    }
  });
}

}  // namespace

void matmul_bf16(ops::Queue& queue, const ops::MatmulArgs& args) {
  const int64_t total = args.x.shape[0], k = args.weight->k;
  if (total <= kFewRows) return multiply_few(queue, args, total);
  const Panels panels(*args.weight);
  constexpr int64_t kSums = kTaskPanels / kPair * kBlockRows * kPairSums;  // floats of sums per thread
  for (int64_t pass = 0; pass < total; pass += kPassRows) {
    const int64_t rows = std::min(kPassRows, total - pass), padded = pieces(rows, kFewRows) * kFewRows;
    const size_t x_bytes = Inputs::bytes(padded, k);
    std::byte* memory =
        queue.threads().scratch(x_bytes + static_cast<size_t>(queue.threads().threads()) * kSums * sizeof(float));
    const Inputs x{memory, padded, Inputs::steps_of(k)};
    auto* sums = reinterpret_cast<float*>(memory + x_bytes);
    round_rows(queue, args.x, pass, rows, x);
    const int64_t blocks = pieces(rows, kBlockRows);
    const bool held = blocks == 1 && x_bytes <= kHeldBytes;
    // Makes enough tasks for all threads to finish together.
    const int64_t share = panels.count() * blocks / (2 * queue.threads().threads());
    const int64_t task_panels = held ? kPair : std::clamp<int64_t>(share / kPair * kPair, kPair, kTaskPanels);
    const int64_t steps = held ? kHeldSteps : kBlockSteps;
    // Blocks of the same panels run consecutively, so the weights are read from memory once.
    queue.threads().parallel_for(
        pieces(panels.count(), task_panels) * blocks, 1, [&](int64_t begin, int64_t end, int worker) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t panel = task / blocks * task_panels, first = task % blocks * kBlockRows;
            Block block(panels, x, first, panel, std::min(task_panels, panels.count() - panel), steps,
                        sums + worker * kSums);
            block.multiply();
            block.write(args, pass + first, std::min(kBlockRows, rows - first));
          }
        });
  }
}

}  // namespace sluice::SLUICE_ISA
