// Devices and their queues: where tensors lie, which ops run on them, and in which order.
//
// A Backend is a kind of device that this build has kernels for. Backend::open gives the Device of an ordinal, which is
// opened once and lives to the end of the process. A Queue runs ops and copies of one device in the order of the calls;
// several queues of a device, and queues of several devices, run beside each other.
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

// The largest step that there will be; sizes the workspace of a queue.
struct StepLimits {
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t length = 0;         // tokens of the longest sequence
  int64_t widest_matmul = 0;  // most inputs of a matmul per token, those of all its experts together
  int attention_heads = 0;    // most of any layer
  int64_t attention_value_dim = 0;
};

// Ops that were called once while a queue captured, to be launched again together. Belongs to its queue.
class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;
  virtual void launch() = 0;
};

// Runs ops and copies in the order of the calls. This class runs them at once, on the host's memory; devices that run
// them later derive theirs. Not thread-safe. A queue must not outlive its thread pool.
class Queue {
 public:
  Queue(Device& device, ThreadPool& threads) : device_(device), threads_(threads) {}
  virtual ~Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Device& device() const { return device_; }
  ThreadPool& threads() const { return threads_; }  // compute threads of the host, for ops of CPUs and for packing

  // Copies between the device's memory and itself or the host's. The host must leave its side alone until wait() or
  // wait_for() returns. Only pinned memory (Device::pinned_memory) is copied without waiting.
  virtual void copy_async(void* to, const void* from, size_t bytes);
  // Returns when everything that was called before is done.
  virtual void wait() {}
  // A point in the queue's order. wait_for() returns when everything called before that point is done.
  virtual uint64_t record_event() { return 0; }
  virtual void wait_for(uint64_t /*event*/) { wait(); }
  // What is called on this queue from now on runs after `event` of `other`, a queue of the same device. The host does
  // not wait.
  virtual void run_after(Queue& other, uint64_t event) { other.wait_for(event); }

  // Makes room for the scratch memory of the ops to come; waits if it has to grow. Called at load.
  virtual void reserve_workspace(size_t /*bytes*/) {}
  // Captures the ops that `body` calls on this queue, without running them. They work on the same tensors and read
  // their indices at the same places of the device each time the graph is launched. The host's values of indices count
  // at capture: as sizes, and as upper bounds where a kernel's shape depends on them. Only where Device::captures().
  virtual std::unique_ptr<CapturedGraph> capture(const std::function<void()>& body);

 private:
  Device& device_;
  ThreadPool& threads_;
};

// What a device can do, known before it is opened.
struct Capabilities {
  bool captures = false;  // queues capture graphs
  // A row's bits depend on that row alone. False: matmuls and attention round fp32 inputs to the type of the weights or
  // of the cache and choose kernels by the number of rows, so that bits depend on the size of the batch.
  bool batch_invariant = true;
  bool rounds_attention = false;  // queries and softmax weights are rounded to bf16 where the cache is bf16 or narrower
  // 8-bit types that keys and values may be cached in: kFloat8E4M3 and kFloat8E5M2 without scales, kInt8 with one scale
  // per vector.
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
  virtual Memory& memory() { return host_memory(); }         // tensors and weights
  virtual Memory& shared_memory() { return host_memory(); }  // both ops and the host use it in place
  virtual Memory& pinned_memory() { return host_memory(); }  // the host's side of Queue::copy_async
  virtual std::unique_ptr<Queue> make_queue(ThreadPool& threads);
  // Scratch memory that ops of steps up to `most` need beside their tensors; see Queue::reserve_workspace.
  virtual size_t workspace_bytes(const StepLimits& /*most*/) const { return 0; }

 private:
  const int ordinal_;
};

// A kind of device. "reference" (scalar code of this folder) always exists; CPU backends range from "cpu-avx2" to
// "cpu-amx". The usable one of highest rank is the default.
struct Backend {
  std::string_view name;
  int rank = 0;                // below 0: only by name
  int (*devices)() = nullptr;  // how many there are that this build has code for; 0: not usable on this machine
  Device& (*open)(int ordinal) = nullptr;  // 0 <= ordinal < devices()
  Capabilities can{};
  std::string_view batch_invariant_backend{};  // the one for the same devices that is, where this one is not

  bool usable() const { return devices() > 0; }
  bool caches(DType type) const { return std::ranges::find(can.narrow_caches, type) != can.narrow_caches.end(); }
};

// The usable backend of that name, or the best one for an empty name. `deterministic`: a batch-invariant one.
// Throws Error(kUnsupportedModel) that lists the usable names.
const Backend& select_backend(std::string_view name = {}, bool deterministic = false);
// The best usable one that works on the host's memory.
const Backend& select_host_backend();

// The device of backends that work on the host's memory with `ops`.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const Ops& ops) : Device(0), ops_(ops) {}
  const Ops& ops() const override { return ops_; }

 private:
  const Ops& ops_;
};

}  // namespace sluice::ops
