// Counts, places and moves experts.
#include "nn/moe/balancer.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "nn/moe/expert_weights.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr int kNoteEvery = 16;  // steps between new values of the balance
constexpr int kReadSteps = 2;   // steps from the beginning of a reading to its use; the host is one step ahead
static_assert(kReadSteps < ExpertTables::kReadings);
constexpr double kWorthMoving = 0.95;  // a new placement must lower the largest load to this share of the old one's

[[noreturn]] void refuse_placement(const std::string& message) { throw Error(ErrorCode::kInvalidRequest, message); }

std::string layer_name(const std::string& prefix) {
  return prefix.ends_with('.') ? prefix.substr(0, prefix.size() - 1) : prefix;
}

void check_redundant(const std::string& layer, int64_t experts, int64_t redundant, int ranks) {
  const std::string option = fmt::format("--eplb-config: num_redundant_experts {}", redundant);
  if (redundant > most_redundant(experts, ranks)) {
    refuse_placement(fmt::format("{} of {}: {} ranks have all {} experts with {} (expected at most that)", option,
                                 layer, ranks, experts, most_redundant(experts, ranks)));
  }
  const int64_t rest = (experts + redundant) % ranks;
  if (rest == 0) return;
  refuse_placement(
      fmt::format("{} of {}: {} experts and these cannot be divided evenly between {} ranks (expected for example "
                  "{})",
                  option, layer, experts, ranks, redundant + ranks - rest));
}

double mean_of(const std::vector<double>& loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
}

// The loads of ranks, added up over layers: each layer ends when its slowest rank does.
struct Sums {
  double mean = 0, most = 0;
  void add(const std::vector<double>& loads) {
    mean += mean_of(loads);
    most += std::ranges::max(loads);
  }
  bool any() const { return most > 0; }
  double balance() const { return mean / most; }
};

}  // namespace

std::shared_ptr<PlacedExperts> ExpertBalancer::add(const Weights& w, const MoeSpec& spec, int hidden) {
  LoadContext& context = w.context();
  const std::string name = layer_name(w.prefix());
  names_.insert(name);
  if (context.elsewhere) return nullptr;
  const int ranks = context.ranks.size, physical = spec.experts + options_.redundant;
  check_redundant(name, spec.experts, options_.redundant, ranks);
  const auto given = start_.placements.find(name);
  const auto loads = start_.loads.find(name);
  if (given == start_.placements.end() && loads == start_.loads.end() && !options_.location.empty()) {
    refuse_placement(fmt::format("--init-expert-location {}: layer {} is missing", options_.location, name));
  }
  ExpertPlacement placement{.ranks = ranks};
  const auto check_size = [&](size_t size, int expected, const char* what) {
    if (size == static_cast<size_t>(expected)) return;
    refuse_placement(fmt::format("--init-expert-location {}: layer {} has {} {} (expected {})", options_.location, name,
                                 size, what, expected));
  };
  if (given != start_.placements.end()) {
    check_size(given->second.size(), physical, "physical experts");
    placement.experts = given->second;
    const std::string problem = placement_problem(placement, spec.experts);
    if (!problem.empty()) {
      refuse_placement(fmt::format("--init-expert-location {}: layer {}: {}", options_.location, name, problem));
    }
  } else if (loads != start_.loads.end()) {
    check_size(loads->second.size(), spec.experts, "experts");
    placement = balanced_placement(loads->second, physical, ranks);
  } else {
    placement = balanced_placement(std::vector<int64_t>(static_cast<size_t>(spec.experts), 0), physical, ranks);
  }
  layers_.push_back(std::make_shared<PlacedExperts>(w, spec, hidden, std::move(placement)));
  context.weight_bytes += ExpertTables::bytes(*layers_.back());
  return layers_.back();
}

void ExpertBalancer::check() const {
  if (names_.empty()) {
    throw Error(ErrorCode::kUnsupportedModel, "--enable-eplb: the ranks divide no layer of this model by expert");
  }
  const auto check_names = [&](const auto& of_file) {
    for (const auto& [name, values] : of_file) {
      if (names_.contains(name)) continue;
      refuse_placement(fmt::format("--init-expert-location {}: the model has no layer {} (expected one of: {})",
                                   options_.location, name, fmt::join(names_, ", ")));
    }
  };
  check_names(start_.loads);
  check_names(start_.placements);
}

void ExpertBalancer::start(const LoadContext& context) {
  context_.emplace(context);
  context_->packed = nullptr;
  context_->progress = nullptr;
  context_->lora = nullptr;
  context_->balancer = nullptr;
  tables_.emplace(context_->queue, layers_);
  window_ = counts();
}

ExpertCounts ExpertBalancer::counts() { return tables_->finish(tables_->begin()); }

void ExpertBalancer::note_balance(const ExpertCounts& loads) {
  Sums sums;
  for (size_t i = 0; i < layers_.size(); ++i) sums.add(rank_loads(layers_[i]->placement, loads[i]));
  if (sums.any()) balance_ = sums.balance();
}

ExpertBalancer::Reading ExpertBalancer::wanted_reading() {
  Reading wanted{.step = all_steps_};
  wanted.notes = all_steps_ % kNoteEvery == 0;
  wanted.logs = options_.log_every > 0 && all_steps_ > 0 && all_steps_ % options_.log_every == 0;
  if (options_.interval == 0) {
    wanted.starts_window = steps_ == options_.window;
  } else if (steps_ >= options_.interval && !placing_) {
    wanted.places = wanted.starts_window = placing_ = true;
  } else {
    wanted.starts_window = steps_ == options_.interval - options_.window;
  }
  if (wanted.places || (options_.interval == 0 && wanted.starts_window)) steps_ = 0;
  return wanted;
}

void ExpertBalancer::use(const Reading& reading) {
  ExpertCounts now = tables_->finish(reading.number), loads;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<int64_t>& load = loads.emplace_back(static_cast<size_t>(layers_[i]->spec.experts));
    for (size_t e = 0; e < load.size(); ++e) load[e] = now[i][e] - window_[i][e];
  }
  note_balance(loads);
  if (reading.logs && context_->ranks.rank == 0) {
    log::info("experts: the mean load of the ranks is {:.3f} of the largest one", balance_);
  }
  if (reading.places) {
    moved_before_ = moved_, slowest_ = {}, balance_before_ = balance_;
    for (size_t i = layers_.size(); i > 0; --i) pending_.push_back({i - 1, std::move(loads[i - 1])});
    placing_ = !pending_.empty();
  }
  if (reading.starts_window) window_ = std::move(now);
}

void ExpertBalancer::move_next() {
  const Pending next = std::move(pending_.back());
  pending_.pop_back();
  const auto begin = std::chrono::steady_clock::now();
  rearrange(next);
  slowest_ = std::max(slowest_, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin));
  placing_ = !pending_.empty();
  if (!placing_ && moved_ > moved_before_ && context_->ranks.rank == 0) {
    log::info(
        "experts: {} moved, within {:.1f} ms before a step; before, the mean load of the ranks was {:.3f} of the "
        "largest one",
        moved_ - moved_before_, 1000 * slowest_.count(), balance_before_);
  }
}

void ExpertBalancer::begin_step() {
  while (!readings_.empty() && all_steps_ - readings_.front().step >= kReadSteps) {
    use(readings_.front());
    readings_.pop_front();
  }
  if (!pending_.empty()) move_next();
  Reading wanted = wanted_reading();
  if (wanted.notes || wanted.logs || wanted.starts_window) {
    wanted.number = tables_->begin();
    readings_.push_back(wanted);
  }
  ++steps_, ++all_steps_;
}

void ExpertBalancer::rearrange(const Pending& pending) {
  PlacedExperts& layer = *layers_[pending.layer];
  const ExpertPlacement now = layer.placement;
  const auto largest = [&](const ExpertPlacement& placement) {
    return std::ranges::max(rank_loads(placement, pending.load));
  };
  const ExpertPlacement balanced = balanced_placement(pending.load, layer.physical(), now.ranks);
  if (largest(balanced) >= kWorthMoving * largest(now)) return;
  ExpertPlacement next = with_few_moves(balanced, now);
  if (next == now) return;
  for (size_t p = 0; p < next.experts.size(); ++p) moved_ += next.experts[p] != now.experts[p] ? 1 : 0;
  const int rank = context_->ranks.rank;
  std::vector<int> changed;  // of this rank's matrices
  for (int i = 0; i < now.per_rank(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (next.on(rank)[at] != now.on(rank)[at]) changed.push_back(i);
  }
  layer.placement = std::move(next);
  tables_->place(pending.layer);
  if (changed.empty()) return;
  const std::span<const int32_t> mine = layer.placement.on(rank);
  load_experts_again(Weights(*context_, layer.prefix), layer.spec, layer.hidden, {mine.begin(), mine.end()}, changed,
                     *layer.matrices);
  context_->queue.wait();  // kernels may read weights before those that precede them have ended
}

ExpertBalancer::~ExpertBalancer() {
  if (options_.record.empty() || !tables_ || context_->ranks.rank > 0) return;
  try {
    write_record();
  } catch (const std::exception& e) {
    log::error("--expert-distribution-record {}: {}", options_.record, e.what());
  }
}

void ExpertBalancer::write_record() {
  ExpertCounts all = counts();
  Json by_layer = Json::object();
  for (size_t i = 0; i < layers_.size(); ++i) {
    all[i].resize(static_cast<size_t>(layers_[i]->spec.experts));  // without identities
    by_layer[layer_name(layers_[i]->prefix)] = all[i];
  }
  const std::string text = dump_json({{"logical_count", by_layer}}) + "\n";
  const std::string unfinished = options_.record + ".unfinished";
  std::FILE* file = std::fopen(unfinished.c_str(), "w");
  bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  written = file != nullptr && std::fclose(file) == 0 && written;
  if (!written || std::rename(unfinished.c_str(), options_.record.c_str()) != 0) {
    throw Error(ErrorCode::kInternal, fmt::format("cannot be written: {}", std::strerror(errno)));
  }
}

}  // namespace sluice
