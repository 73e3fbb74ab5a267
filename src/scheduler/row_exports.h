// Rows of the prefix cache that other servers want, because they go on with prompts that this one computes
// (docs/scale-out.md, Prefill and decode apart). Ids only, like the store of rows, which sends them.
//
// A request whose prompt another server goes on with is an export. What that server wants may be known before the
// request is: its rows are sent in order, each as soon as it is computed and saved to host memory. Where a row neither
// is there nor can come any more, the rest is refused, and the other server computes it. When the request has ended,
// its rows are held in host memory until they are released, or for a limited time.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "scheduler/memory.h"

namespace sluice {

// Rows that another server wants.
struct RowWant {
  uint64_t number = 0;
  std::string id{};  // of the export
  std::vector<BlockHash> rows{};
};

class RowExports {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a want waits for an export that is not known yet.
  static constexpr std::chrono::seconds kUnknownFor{3};

  RowExports(MemoryPools& pools, std::chrono::milliseconds held_for) : pools_(pools), held_for_(held_for) {}

  // A request for which these rows are computed begins; one of those with this id has ended.
  void begin(const std::string& id, const std::vector<BlockHash>& rows);
  void end(const std::string& id, Clock::time_point now);
  // The rows need not be held any more.
  void release(const std::string& id);

  void want(RowWant want, Clock::time_point now);
  // It is not wanted any more. Unknown numbers are ignored.
  void forget(uint64_t number);
  // Sends what is there, and refuses what does not come. To be called when rows were computed or moved, and at
  // next_deadline().
  void advance(Clock::time_point now);
  // Refuses everything: the prefix cache is being forgotten.
  void clear();

  std::optional<Clock::time_point> next_deadline() const;
  bool idle() const { return exports_.empty() && wants_.empty(); }

 private:
  struct Export {
    int running = 0;        // requests
    bool released = false;  // the rows need not be held
    std::vector<BlockHash> rows{};
    std::vector<int> held{};  // host slots
    Clock::time_point held_until{};
  };
  struct OpenWant {
    RowWant want;
    size_t sent = 0;  // leading rows
    Clock::time_point unknown_until{};
  };

  bool save(const BlockHash& row);
  bool may_come(const OpenWant& want, Clock::time_point now);
  bool send_rows(OpenWant& want, Clock::time_point now);
  void release(Export& exported);

  MemoryPools& pools_;
  const std::chrono::milliseconds held_for_;
  std::unordered_map<std::string, Export> exports_;
  std::list<OpenWant> wants_;
};

}  // namespace sluice
