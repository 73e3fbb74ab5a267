// Balances the load of experts between the ranks that have whole experts. Counts the tokens of each expert, places
// experts by these counts, and moves them between steps. All ranks of a stage run the same router on the same rows, so
// they count the same, place the same and need no messages.
//
// A device may run behind the thread that calls begin_step(). Counts are therefore read for a step and used some steps
// later, when the copy is there. The number of steps is fixed, so all ranks use the same counts at the same step.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nn/moe/expert_tables.h"
#include "nn/moe/moe.h"
#include "nn/moe/placement.h"
#include "parallel/share.h"

namespace sluice {

struct BalanceOptions {
  int redundant = 0;       // redundant experts of each layer
  int window = 1000;       // steps whose tokens count
  int interval = 3000;     // steps between new placements; 0: none after the start
  int log_every = 0;       // steps between log lines about the balance; 0: none
  std::string record{};    // file for the counts when the model ends; empty: none
  std::string location{};  // file of the start's placement, for messages
};

// What a file says about the start, by the name of a layer. One of both is given.
struct ExpertLocations {
  std::map<std::string, std::vector<int64_t>, std::less<>> loads{};
  std::map<std::string, std::vector<int32_t>, std::less<>> placements{};
};

// The experts of a layer and where they are. Moe and the balancer share it.
struct PlacedExperts {
  PlacedExperts(const Weights& w, const MoeSpec& s, int h, ExpertPlacement first_placement)
      : prefix(w.prefix()), spec(s), hidden(h), placement(std::move(first_placement)) {}

  int physical() const { return static_cast<int>(placement.experts.size()); }

  std::string prefix;  // of the layer's tensors
  MoeSpec spec;
  int hidden;
  ExpertPlacement placement;
  std::shared_ptr<ExpertMatrices> matrices{};
  // In the device's memory, see ops::PhysicalExpertsArgs; identities are the last ones. ExpertTables sets them.
  const int32_t *first = nullptr, *list = nullptr;
  int64_t* counts = nullptr;
};

class ExpertBalancer {
 public:
  ExpertBalancer(BalanceOptions options, ExpertLocations start)
      : options_(std::move(options)), start_(std::move(start)) {}
  ~ExpertBalancer();
  ExpertBalancer(const ExpertBalancer&) = delete;
  ExpertBalancer& operator=(const ExpertBalancer&) = delete;

  // Called by the constructor of a layer whose experts are divided between the ranks. Null if another stage has the
  // layer. Throws Error(kInvalidRequest) if its experts cannot be placed.
  std::shared_ptr<PlacedExperts> add(const Weights& w, const MoeSpec& spec, int hidden);
  // Called when all layers are there. Throws Error if there are none, or if the file names others.
  void check() const;
  // Called when the weights are loaded. What the context refers to must live as long as this.
  void start(const LoadContext& context);

  // Called before each step, by the thread that runs it. Starts a new placement every `interval` steps, and moves the
  // experts of at most one layer.
  void begin_step();
  // The mean load of the ranks divided by the largest one, over the layers and steps of the window; 1: the best.
  double balance() const { return balance_; }
  uint64_t moved() const { return moved_; }  // physical experts that were replaced since the start
  std::span<const std::shared_ptr<PlacedExperts>> layers() const { return layers_; }
  ExpertCounts counts();  // waits for the device

 private:
  // Counts that are on their way to the host, and what they are for.
  struct Reading {
    int64_t step = 0;
    bool notes = false, logs = false, places = false, starts_window = false;
    uint64_t number = 0;  // of ExpertTables
  };
  struct Pending {
    size_t layer = 0;
    std::vector<int64_t> load;
  };
  Reading wanted_reading();
  void use(const Reading& reading);
  void note_balance(const ExpertCounts& loads);
  void move_next();
  void rearrange(const Pending& pending);
  void write_record();

  const BalanceOptions options_;
  ExpertLocations start_;
  std::vector<std::shared_ptr<PlacedExperts>> layers_;
  std::set<std::string, std::less<>> names_;  // of the layers of all stages
  std::optional<LoadContext> context_;        // of the loading of moved experts
  std::optional<ExpertTables> tables_;
  std::deque<Reading> readings_;
  ExpertCounts window_;           // the counts when it began
  std::vector<Pending> pending_;  // the last one comes next
  bool placing_ = false;          // a new placement has begun and not ended
  int64_t steps_ = 0;             // since the last placement began
  int64_t all_steps_ = 0;
  double balance_ = 1, balance_before_ = 1;  // now, and before the last placement
  uint64_t moved_ = 0, moved_before_ = 0;
  std::chrono::duration<double> slowest_{};  // the longest move of a layer's experts since then
};

}  // namespace sluice
