// A message has a line for each rank of the sender's machine, and then what they show.
#include "parallel/bridge.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "sluice/error.h"

namespace sluice {
namespace {

struct Line {
  uint64_t tag = 0, bytes = 0;
};

}  // namespace

Bridge::Bridge(std::shared_ptr<Link> link, Channel channel, int first, const std::vector<int>& machines)
    : link_(std::move(link)), channel_(channel), first_(first) {
  const auto me = static_cast<size_t>(link_->rank() - first);
  CHECK(me < machines.size(), "rank {} outside of ranks {} to {}", link_->rank(), first,
        first + static_cast<int>(machines.size()) - 1);
  mine_.id = machines[me];
  for (size_t i = 0; i < machines.size(); ++i) {
    const int id = machines[i];
    auto machine = std::ranges::find(others_, id, &Machine::id);
    if (id != mine_.id && machine == others_.end()) machine = others_.insert(others_.end(), Machine{id, {}});
    (id == mine_.id ? mine_ : *machine).ranks.push_back(static_cast<int>(i));
  }
  leads_ = mine_.ranks.front() == static_cast<int>(me);
}

bool Bridge::here(int rank) const { return std::ranges::find(mine_.ranks, rank) != mine_.ranks.end(); }

void Bridge::begin(const std::function<Shown(int)>& shown) {
  CHECK(leads_, "a rank exchanges data with other machines in place of its leader");
  std::vector<Shown> all;
  for (const int rank : mine_.ranks) all.push_back(shown(rank));
  size_t size = all.size() * sizeof(Line);
  for (const Shown& one : all) size += one.bytes.size();
  message_.resize(size);
  std::byte* to = message_.data();
  for (const Shown& one : all) {
    const Line line{.tag = one.tag, .bytes = one.bytes.size()};
    std::memcpy(to, &line, sizeof line);
    to += sizeof line;
  }
  for (const Shown& one : all) {
    if (!one.bytes.empty()) std::memcpy(to, one.bytes.data(), one.bytes.size());
    to += one.bytes.size();
  }
  for (Machine& machine : others_) {
    machine.received = false;
    link_->send(first_ + machine.ranks.front(), channel_, message_);
  }
}

bool Bridge::end(const std::function<void(int, const Shown&)>& take) {
  bool all = true;
  for (Machine& machine : others_) {
    if (machine.received) continue;
    machine.buffer.resize(machine.ranks.size() * (sizeof(Line) + kMostBytes));
    const std::optional<size_t> size = link_->receive(first_ + machine.ranks.front(), channel_, machine.buffer);
    if (size) unpack(machine, *size, take);
    machine.received = size.has_value();
    all &= machine.received;
  }
  return link_->sent(channel_) && all;
}

void Bridge::unpack(const Machine& machine, size_t size, const std::function<void(int, const Shown&)>& take) const {
  std::vector<Line> lines(machine.ranks.size());
  const size_t head = lines.size() * sizeof(Line);
  size_t expected = head;
  if (size >= head) {
    std::memcpy(lines.data(), machine.buffer.data(), head);
    for (const Line& line : lines) expected += std::min<uint64_t>(line.bytes, kMostBytes + 1);
  }
  const bool fits = std::ranges::all_of(lines, [](const Line& line) { return line.bytes <= kMostBytes; });
  if (size != expected || !fits) {
    throw Error(ErrorCode::kInternal, fmt::format("rank {} sent {} bytes that are not what {} ranks show",
                                                  first_ + machine.ranks.front(), size, lines.size()));
  }
  const std::byte* from = machine.buffer.data() + head;
  for (size_t i = 0; i < lines.size(); ++i) {
    take(machine.ranks[i], {.tag = lines[i].tag, .bytes = {from, lines[i].bytes}});
    from += lines[i].bytes;
  }
}

}  // namespace sluice
