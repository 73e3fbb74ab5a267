// Devices and their queues: where tensors are stored, which ops run on them, and in which order.
//
// A Backend is a kind of device that this build has kernels for. Backend::open returns the Device with an ordinal; it
// is opened once and lives until the process ends. A Queue runs ops and copies of one device in the order of the calls.
// Several queues of a device, and queues of several devices, run concurrently.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/memory.h"

namespace sluice {
class ThreadPool;
}

namespace sluice::ops {

class Device;
struct Ops;

// The largest step that will run; determines the size of a queue's workspace.
struct StepLimits {
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t length = 0;         // tokens of the longest sequence
  int64_t widest_matmul = 0;  // most inputs of a matmul per token, summed over a token's experts
  int attention_heads = 0;    // most heads of any layer
  int64_t attention_value_dim = 0;
};

// A sequence of ops that a queue captured once and can launch again as a whole. Must not outlive its queue.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  virtual void launch() = 0;
};

// Runs ops and copies in the order of the calls. This class runs them immediately, on host memory; devices that run
// them asynchronously derive their own class. Not thread-safe. A queue must not outlive its thread pool.
class Queue {
 public:
  Queue(Device& device, ThreadPool& threads) : device_(device), threads_(threads) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Device& device() const { return device_; }
  ThreadPool& threads() const { return threads_; }  // the host's compute threads, for CPU ops and for packing

  // Copies within device memory, or between it and pinned host memory (Device::pinned_memory), which a kernel may read
  // and write. The host must not touch its side until wait() or wait_for() returns.
  virtual void copy_async(void* to, const void* from, size_t bytes);
  // Blocks until everything called before is done.
  virtual void wait() {}
  // Records an event: a point in the queue's order. wait_for() blocks until everything called before it is done.
  virtual uint64_t record_event() { return 0; }
  virtual void wait_for(uint64_t /*event*/) { wait(); }
  // Makes later calls on this queue run after `event` of `other`, a queue of the same device. The host does not wait.
  virtual void run_after(Queue& other, uint64_t event) { other.wait_for(event); }

  // Allocates scratch memory for later ops; waits for the queue if it has to grow. Called at load.
  virtual void reserve_workspace(size_t /*bytes*/) {}
  // Captures the ops that `body` calls on this queue, without running them. Every launch of the graph works on the same
  // tensors and reads the indices from the same device addresses. Host values of indices matter only at capture: as
  // sizes, and as upper bounds if a kernel's shape depends on them. Requires Capabilities::captures.
  virtual std::unique_ptr<CapturedGraph> capture(const std::function<void()>& body);

 private:
  Device& device_;
  ThreadPool& threads_;
};

// What a device can do, known before it is opened.
struct Capabilities {
  bool captures = false;     // queues can capture graphs
  bool collectives = false;  // has the ops between ranks
  // True: the bits of a row depend on that row alone. False: matmuls and attention round fp32 inputs to the type of the
  // weights or the cache. They also choose kernels by the number of rows, so results depend on the batch size.
  bool batch_invariant = true;
  bool rounds_attention = false;  // rounds queries and softmax weights to bf16 if the cache is bf16 or narrower
  // The 8-bit types that the KV cache may have: kFloat8E4M3 and kFloat8E5M2 without scales, kInt8 with one scale per
  // vector.
  std::vector<DType> narrow_caches{};
};

// One device, opened. Thread-safe.
class Device {
 public:
  explicit Device(int ordinal) : ordinal_(ordinal) {}
  virtual ~Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  virtual const Ops& ops() const = 0;
  virtual Memory& memory() { return host_memory(); }         // for tensors and weights
  virtual Memory& shared_memory() { return host_memory(); }  // for data that both ops and the host access in place
  virtual Memory& pinned_memory() { return host_memory(); }  // for the host's side of Queue::copy_async
  virtual std::unique_ptr<Queue> make_queue(ThreadPool& threads);
  // A queue for ops::copy_rows and copies alone. It takes less memory.
  virtual std::unique_ptr<Queue> make_copy_queue(ThreadPool& threads) { return make_queue(threads); }
  // Bytes of scratch memory that ops of steps up to `most` need besides their tensors; see Queue::reserve_workspace.
  virtual size_t workspace_bytes(const StepLimits& /*most*/) const { return 0; }

 private:
  const int ordinal_;
};

// A kind of device. The backend "reference" (the scalar code of this folder) always exists; CPU backends range from
// "cpu-avx2" to "cpu-amx". The default is the usable backend with the highest rank.
struct Backend {
  std::string_view name;
  int rank = 0;                // below 0: selected by name only
  int (*devices)() = nullptr;  // number of devices that this build has code for; 0: not usable on this machine
  Device& (*open)(int ordinal) = nullptr;  // 0 <= ordinal < devices()
  Capabilities can{};
  std::string_view batch_invariant_backend{};  // the batch-invariant backend for the same devices, if this one is not

  bool usable() const { return devices() > 0; }
  bool caches(DType type) const { return std::ranges::find(can.narrow_caches, type) != can.narrow_caches.end(); }
};

// Returns the usable backend with that name, or the default backend if the name is empty. With `deterministic` it
// returns a batch-invariant one. Throws Error(kUnsupportedModel), which lists the usable names.
const Backend& select_backend(std::string_view name = {}, bool deterministic = false);
// Returns the usable backend of highest rank that works on host memory.
const Backend& select_host_backend();

// The device of backends whose ops work on host memory.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const Ops& ops) : Device(0), ops_(ops) {}
  const Ops& ops() const override { return ops_; }

 private:
  const Ops& ops_;
};

}  // namespace sluice::ops
