// A connection to another process that carries bytes in order both ways. parallel/tcp.h and parallel/ucx.h implement
// it.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

namespace sluice {

// One thread may read while another one writes.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The first call of both sides, which agree on how bytes travel. Returns why the stream is of no use; empty: it can
  // be used. Throws Error(kInternal) if this side cannot make it.
  virtual std::string open(std::chrono::milliseconds limit) = 0;
  // Fill `bytes`, or send all of them. Return false if the connection ended, or if no byte moved for `silence`; the
  // stream is of no use then.
  virtual bool read(std::span<std::byte> bytes, std::chrono::milliseconds silence) = 0;
  virtual bool write(std::span<const std::byte> bytes, std::chrono::milliseconds silence) = 0;
  // Waits until read() would find something: bytes, or the end. Returns false if it would not after `limit`, or after
  // another thread called wake().
  virtual bool readable(std::chrono::milliseconds limit) = 0;
  virtual void wake() = 0;
  // Ends the connection; calls that wait return. Any thread.
  virtual void shut_down() = 0;
};

}  // namespace sluice
