// Shows where a CUDA program's device time goes: kernels and copies by name, with their times and the idle time before
// each, as recorded by CUPTI. This is an injection library:
//   g++ -O2 -std=c++20 -shared -fPIC -o kernel_trace.so kernel_trace.cc -I$CUDA/include -L$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/kernel_trace.so KERNEL_TRACE_LAST_MS=200 sluice bench latency ...
// Prints to stderr when the program ends:
// - a summary of the last KERNEL_TRACE_LAST_MS milliseconds of device work (default: all);
// - with KERNEL_TRACE_EVENTS=N, also the last N events one by one with their start times.
// KERNEL_TRACE_SKIP_MS first drops that many milliseconds at the end.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Event {
  uint64_t begin, end;
  std::string name;
};
std::mutex mutex;
std::vector<Event> events;

void request(uint8_t** buffer, size_t* size, size_t* records) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}

void complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* k = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
      events.push_back({k->start, k->end, k->name});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* m = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      events.push_back({m->start, m->end, "copy of kind " + std::to_string(m->copyKind)});
    }
  }
  std::free(buffer);
}

void report() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  if (events.empty()) return;
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.begin < b.begin; });
  if (const char* skip_ms = std::getenv("KERNEL_TRACE_SKIP_MS")) {
    const uint64_t end = events.back().end, skip = static_cast<uint64_t>(std::atof(skip_ms) * 1e6);
    std::erase_if(events, [&](const Event& e) { return e.end + skip > end; });
    if (events.empty()) return;
  }
  const char* last_ms = std::getenv("KERNEL_TRACE_LAST_MS");
  const uint64_t span = last_ms != nullptr ? static_cast<uint64_t>(std::atof(last_ms) * 1e6) : UINT64_MAX;
  const uint64_t until = events.back().end, from = until > span ? until - span : 0;
  if (const char* listed = std::getenv("KERNEL_TRACE_EVENTS")) {
    const size_t count = std::min(events.size(), static_cast<size_t>(std::atoll(listed)));
    for (size_t i = events.size() - count; i < events.size(); ++i) {
      const Event& e = events[i];
      std::fprintf(stderr, "%12.2f us %9.2f us  %s\n", (e.begin - events[events.size() - count].begin) / 1e3,
                   (e.end - e.begin) / 1e3, e.name.substr(0, 90).c_str());
    }
  }
  struct Sum {
    uint64_t busy = 0, idle = 0, count = 0;
  };
  std::map<std::string, Sum> sums;
  uint64_t busy = 0, idle = 0, before = 0;
  for (const Event& e : events) {
    if (e.begin < from) {
      before = std::max(before, e.end);
      continue;
    }
    Sum& sum = sums[e.name.substr(0, 110)];
    const uint64_t gap = before != 0 && e.begin > before ? e.begin - before : 0;
    const uint64_t alone = e.end > std::max(before, e.begin) ? e.end - std::max(before, e.begin) : 0;
    sum.busy += alone, sum.idle += gap, ++sum.count;
    busy += alone, idle += gap;
    before = std::max(before, e.end);
  }
  std::vector<std::pair<std::string, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second.busy > b.second.busy; });
  std::fprintf(stderr, "device: busy %.3f ms, idle %.3f ms\n%10s %8s %9s %11s  %s\n", busy / 1e6, idle / 1e6, "busy ms",
               "count", "us each", "idle before", "name");
  for (const auto& [name, sum] : order) {
    std::fprintf(stderr, "%10.3f %8llu %9.2f %11.3f  %s\n", sum.busy / 1e6, static_cast<unsigned long long>(sum.count),
                 sum.busy / 1e3 / sum.count, sum.idle / 1e6, name.c_str());
  }
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(request, complete);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
  std::atexit(report);
  return 1;
}
