// Recordings are CUDA graphs: captured from the stream, launched on it. Runs of ops in them are programs of one kernel
// (decode_kernel/builder.h).
#include <optional>

#include "kernels/cuda/decode_kernel/builder.h"
#include "kernels/cuda/device_context.h"

namespace sluice::cuda {
namespace {

class Graph final : public ops::CapturedGraph {
 public:
  explicit Graph(const std::function<void()>& body) {
    DeviceContext& context = DeviceContext::get();
    cudaStream_t stream = context.launch().stream;
    if (DecodeKernelBuilder::usable(context.launch())) builder_.emplace(context.launch());
    context.begin_capture(builder_ ? &*builder_ : nullptr);
    // Relaxed: what libraries do beside their launches is theirs to do.
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "graph capture");
    body();
    if (builder_) builder_->flush();
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream, &graph), "graph capture");
    context.end_capture();
    if (builder_) builder_->finish();
    check_cuda(cudaGraphInstantiate(&executable_, graph, 0), "graph capture");
    check_cuda(cudaGraphDestroy(graph), "graph capture");
  }
  ~Graph() override { cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch() override { check_cuda(cudaGraphLaunch(executable_, DeviceContext::get().launch().stream), "graph"); }

 private:
  std::optional<DecodeKernelBuilder> builder_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<ops::CapturedGraph> capture(const std::function<void()>& body) { return std::make_unique<Graph>(body); }

}  // namespace sluice::cuda
