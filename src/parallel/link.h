// Messages between ranks that share no memory. parallel/mpi.h implements it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace sluice {

// What a message is for. A rank receives the messages of another one on a channel in the order in which they were sent.
enum class Channel {
  kStart,    // how ranks of one machine find their shared memory
  kAll,      // collectives of all ranks
  kGroup,    // collectives of a group
  kPart,     // collectives of a part of a group
  kLetters,  // messages from one rank to another
  kNotices,  // signs of life, and which rank is lost
};
inline constexpr int kChannels = 6;

// One rank's end. Any thread may call it. No call waits for another rank. Throws Error(kInternal) if the transport
// fails.
class Link {
 public:
  virtual ~Link() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Starts to send a message, which must stay as it is until sent() says so.
  virtual void send(int to, Channel channel, std::span<const std::byte> message) = 0;
  // Returns whether all that this rank sent on a channel has left its memory. Messages may move only during calls.
  virtual bool sent(Channel channel) = 0;
  // Returns the size of the next message of a rank once it is in `buffer`; nullopt: it has not come yet. Then the next
  // call for this rank and channel must have the same buffer. A message longer than the buffer is dropped.
  virtual std::optional<size_t> receive(int from, Channel channel, std::span<std::byte> buffer) = 0;
};

}  // namespace sluice
