// Device memory with random values, launch timing and error measures for cuda_bench.
#include "cuda/timing.h"

#include <cmath>

#include "base/thread_pool.h"

namespace sluice::cuda {
namespace {

std::vector<float> to_host(const Tensor& t) {
  std::vector<float> values(static_cast<size_t>(t.shape.elements()));
  device_memory().copy(values.data(), t.data, values.size() * sizeof(float));
  return values;
}

}  // namespace

Queue& bench_queue() {
  static ThreadPool threads(4, false);
  static const auto queue = ops::select_backend("cuda").open(0).make_queue(threads);
  return current(*queue);
}

double seconds(const std::function<void()>& body, cudaStream_t stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    body();
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaEventSynchronize(end), "event");
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    if (i >= 2) times.push_back(milliseconds);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2] * 1e-3;
}

double seconds_per_call(int calls, const std::function<void(int)>& body) {
  cudaStream_t stream = launch().stream;
  for (int i = 0; i < calls; ++i) body(i);  // warms up: libraries choose kernels, and shared memory is allowed
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "capture");
  for (int i = 0; i < calls; ++i) body(i);
  check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "graph");
  const double s = seconds([&] { check_cuda(cudaGraphLaunch(executable, stream), "graph"); }, stream);
  cudaGraphExecDestroy(executable), cudaGraphDestroy(graph);
  return s / calls;
}

double relative_error(const Tensor& a, const Tensor& b) {
  bench_queue().wait();
  const std::vector<float> x = to_host(a), y = to_host(b);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    norm += double{y[i]} * y[i];
  }
  const double error = std::sqrt(difference / norm);
  return std::isnan(error) ? INFINITY : error;
}

}  // namespace sluice::cuda
