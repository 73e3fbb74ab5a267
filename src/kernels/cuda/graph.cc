// CUDA graphs, captured from the queue's stream and launched on it. The persistent decode kernel
// (decode_kernel/builder.h) executes runs of consecutive ops in them.
#include <optional>

#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/queue.h"

namespace sluice::cuda {
namespace {

class Graph final : public ops::CapturedGraph {
 public:
  Graph(Queue& queue, const std::function<void()>& body) : queue_(queue) {
    cudaStream_t stream = queue.launch().stream;
    if (DecodeKernelBuilder::usable(queue.launch())) builder_.emplace(queue.launch());
    queue.begin_capture(builder_ ? &*builder_ : nullptr);
    // Relaxed mode allows the calls that libraries make besides their launches.
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "graph capture");
    body();
    if (builder_) builder_->flush();
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream, &graph), "graph capture");
    queue.end_capture();
    if (builder_) builder_->finish();
    check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "graph capture");
    check_cuda(cudaGraphDestroy(graph), "graph capture");
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override {
    make_current(queue_.launch().device);
    check_cuda(cudaGraphLaunch(executable_, queue_.launch().stream), "graph");
  }

 private:
  Queue& queue_;
  std::optional<DecodeKernelBuilder> builder_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<ops::CapturedGraph> Queue::capture(const std::function<void()>& body) {
  make_current(launch_.device);
  return std::make_unique<Graph>(*this, body);
}

}  // namespace sluice::cuda
