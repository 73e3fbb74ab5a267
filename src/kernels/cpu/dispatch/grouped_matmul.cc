// Matmul with many matrices of one weight (experts, heads). The work is divided into jobs of one matrix, a window of
// its columns and a chunk of its rows. One thread computes a job with the type's own matmul. There is one barrier for
// all jobs, and matrices without rows cost nothing.
#include "kernels/cpu/dispatch/grouped_matmul.h"

#include <algorithm>

#include "base/thread_pool.h"

namespace sluice::kernels {
namespace {

constexpr int64_t kRowChunk = 192;   // rows of a job: bounds a thread's scratch memory (rows * k * 4 bytes)
constexpr int64_t kFewRows = 16;     // up to this many rows, idle threads cost more than converting x for every window
constexpr int64_t kFewColumns = 64;  // columns of a job in that case
constexpr int64_t kManyColumns = 512;

int64_t pieces(int64_t count, int64_t size) { return (count + size - 1) / size; }

int64_t columns_of_job(const ops::Queue& queue, int64_t rows, int64_t n) {
  if (queue.threads().threads() == 1) return n;
  return rows <= kFewRows ? kFewColumns : kManyColumns;
}

// Runs the matmul of one job on the calling thread only.
void run_alone(ops::Device& device, const ops::MatmulKernels& kernels, const ops::MatmulArgs& args) {
  thread_local ThreadPool alone(1, false);
  ops::Queue queue(device, alone);
  kernels.matmul(queue, args);
}

// Selects columns [column, column + columns) of matrix `matrix` in a stack of matrices with n outputs.
struct Window {
  int64_t matrix, n, column, columns;
};

void multiply(ops::Device& device, const ops::MatmulKernels& kernels, const ops::Weight& stack, const Window& w,
              const Tensor& out, const Tensor& x, const float* bias) {
  const ops::Weight weight = ops::window(kernels, stack, w.matrix * ops::stacked_outputs(w.n) + w.column, w.columns);
  run_alone(device, kernels,
            {.out = out.slice_columns(w.column, w.columns),
             .x = x,
             .weight = &weight,
             .bias = bias != nullptr ? bias + w.matrix * w.n + w.column : nullptr});
}

}  // namespace

void expert_matmul(ops::Queue& queue, const ops::MatmulKernels& kernels, const ops::ExpertMatmulArgs& args) {
  const int64_t n = args.out.shape[1], experts = args.starts.shape.elements() - 1;
  const auto* starts = args.starts.as<int32_t>();
  struct Group {
    int64_t expert, first_job, windows, chunks;
  };
  auto* groups = reinterpret_cast<Group*>(queue.threads().scratch(static_cast<size_t>(experts) * sizeof(Group)));
  int64_t count = 0, jobs = 0;
  int64_t most = 0;
  for (int64_t e = 0; e < experts; ++e) most = std::max<int64_t>(most, starts[e + 1] - starts[e]);
  const int64_t columns = columns_of_job(queue, most, n), windows = pieces(n, columns);
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t rows = starts[e + 1] - starts[e];
    if (rows == 0) continue;
    groups[count] = {e, jobs, windows, pieces(rows, kRowChunk)};
    jobs += windows * groups[count++].chunks;
  }
  queue.threads().parallel_for(jobs, 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const Group* group =
          std::upper_bound(groups, groups + count, job, [](int64_t j, const Group& g) { return j < g.first_job; }) - 1;
      // Chunks of one window are consecutive, so its weights are read from memory once.
      const int64_t at = job - group->first_job, chunk = at % group->chunks, column = at / group->chunks * columns;
      const int64_t first = starts[group->expert], rows = starts[group->expert + 1] - first;
      const int64_t row = first + chunk * rows / group->chunks, last = first + (chunk + 1) * rows / group->chunks;
      multiply(queue.device(), kernels, *args.weight, {group->expert, n, column, std::min(columns, n - column)},
               args.out.slice_rows(row, last - row), args.x.slice_rows(row, last - row), args.bias);
    }
  });
}

void head_matmul(ops::Queue& queue, const ops::MatmulKernels& kernels, const ops::HeadMatmulArgs& args) {
  const int64_t rows = args.x.rows(), columns = columns_of_job(queue, rows, args.n);
  const int64_t windows = pieces(args.n, columns), chunks = pieces(rows, kRowChunk);
  queue.threads().parallel_for(args.heads * windows * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t job = begin; job < end; ++job) {
      const int64_t chunk = job % chunks, column = job / chunks % windows * columns, head = job / chunks / windows;
      const int64_t row = chunk * rows / chunks, count = (chunk + 1) * rows / chunks - row;
      multiply(queue.device(), kernels, *args.weight, {head, args.n, column, std::min(columns, args.n - column)},
               args.out.slice_rows(row, count).slice_columns(head * args.out_stride, args.n),
               args.x.slice_rows(row, count).slice_columns(head * args.x_stride, args.weight->k), nullptr);
    }
  });
}

}  // namespace sluice::kernels
