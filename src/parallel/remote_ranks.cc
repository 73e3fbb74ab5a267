// A notice without bytes is a sign of life. Another one holds the number of the lost rank and the reason.
#include "parallel/remote_ranks.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "sluice/error.h"

namespace sluice {
namespace {

// Silence is counted in periods of this process. If all machines stop for a while, nobody is silent.
constexpr auto kPeriod = std::chrono::milliseconds(100);
constexpr int kSilence = 20;

}  // namespace

RemoteRanks::RemoteRanks(std::shared_ptr<Link> link, std::vector<int> machines)
    : link_(std::move(link)), machines_(std::move(machines)), machine_(machines_[static_cast<size_t>(link_->rank())]) {
  std::vector<int> seen;
  leads_ = false;
  for (int rank = 0; rank < link_->size(); ++rank) {
    const int machine = machines_[static_cast<size_t>(rank)];
    const bool first = std::ranges::find(seen, machine) == seen.end();
    if (first) seen.push_back(machine);
    if (machine != machine_) elsewhere_.push_back(rank);
    if (machine != machine_ && first) leaders_.push_back(rank);
    if (rank == link_->rank()) leads_ = first;
  }
  silent_.resize(leaders_.size());
  buffers_.resize(elsewhere_.size());
}

RemoteRanks::~RemoteRanks() { stop(); }

void RemoteRanks::watch(std::function<void(int, std::string_view)> lost, std::function<void()> look) {
  lost_ = std::move(lost);
  look_ = std::move(look);
  thread_ = std::thread([this] { run(); });
}

void RemoteRanks::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void RemoteRanks::tell(int rank, std::string_view why) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(told_, true)) return;
  }
  why = why.substr(0, kMostText);
  notice_.resize(sizeof rank + why.size());
  std::memcpy(notice_.data(), &rank, sizeof rank);
  if (!why.empty()) std::memcpy(notice_.data() + sizeof rank, why.data(), why.size());
  for (const int other : elsewhere_) link_->send(other, Channel::kNotices, notice_);
}

void RemoteRanks::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPeriod, [this] { return stopped_; })) {
    lock.unlock();
    try {
      hear();
      look_();
    } catch (const Error& e) {
      lost_(link_->rank(), e.what());
      tell(link_->rank(), e.what());
    }
    lock.lock();
  }
}

void RemoteRanks::hear() {
  for (size_t i = 0; i < leaders_.size(); ++i) {
    if (leads_) link_->send(leaders_[i], Channel::kNotices, {});
    ++silent_[i];
  }
  link_->sent(Channel::kNotices);
  for (size_t i = 0; i < elsewhere_.size(); ++i) {
    const int rank = elsewhere_[i];
    const auto& buffer = buffers_[i];
    while (const std::optional<size_t> size = link_->receive(rank, Channel::kNotices, buffers_[i])) {
      const auto leader = std::ranges::find(leaders_, rank);
      if (leader != leaders_.end()) silent_[static_cast<size_t>(leader - leaders_.begin())] = 0;
      int lost = 0;
      if (*size < sizeof lost || *size > buffer.size()) continue;
      std::memcpy(&lost, buffer.data(), sizeof lost);
      const std::string_view why(reinterpret_cast<const char*>(buffer.data()) + sizeof lost, *size - sizeof lost);
      if (lost >= 0 && lost < link_->size()) lost_(lost, why);
    }
  }
  for (size_t i = 0; leads_ && i < leaders_.size(); ++i) {
    if (silent_[i] != kSilence) continue;
    const auto seconds = std::chrono::duration<double>(kSilence * kPeriod).count();
    const std::string why = fmt::format("it was not heard of for {} s", seconds);
    lost_(leaders_[i], why);
    tell(leaders_[i], why);
  }
}

}  // namespace sluice
