// The ranks on other machines, as one rank sees them: which they are, and whether they are alive. No memory tells that
// a process of another machine has ended, so one rank of each machine sends signs of life.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "parallel/link.h"

namespace sluice {

class RemoteRanks {
 public:
  static constexpr size_t kMostText = 1000;  // bytes of a reason

  // machines[r] is the machine of rank r.
  RemoteRanks(std::shared_ptr<Link> link, std::vector<int> machines);
  ~RemoteRanks();
  RemoteRanks(const RemoteRanks&) = delete;
  RemoteRanks& operator=(const RemoteRanks&) = delete;

  Link& link() const { return *link_; }
  const std::shared_ptr<Link>& shared_link() const { return link_; }
  const std::vector<int>& machines() const { return machines_; }
  bool here(int rank) const { return machines_[static_cast<size_t>(rank)] == machine_; }

  // Starts a thread that sends signs of life and waits for those of others, ten times a second. It calls lost(rank,
  // why) when a rank of another machine says so, or when a machine has been silent for two seconds. It also calls
  // look().
  void watch(std::function<void(int rank, std::string_view why)> lost, std::function<void()> look);
  void stop();
  // Tells all ranks of other machines that a rank is lost; only the first call does. Any thread may call it.
  void tell(int rank, std::string_view why);

 private:
  void run();
  void hear();

  std::shared_ptr<Link> link_;
  std::vector<int> machines_;
  int machine_;
  std::vector<int> elsewhere_;  // ranks
  std::vector<int> leaders_;    // of them, those that send signs of life
  std::vector<int> silent_;     // periods since the last one of each of leaders_
  bool leads_;
  std::function<void(int, std::string_view)> lost_;
  std::function<void()> look_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  bool told_ = false;
  std::vector<std::byte> notice_;                                        // stays as it is once it is being sent
  std::vector<std::array<std::byte, kMostText + sizeof(int)>> buffers_;  // one for each of elsewhere_
  std::thread thread_;
};

}  // namespace sluice
