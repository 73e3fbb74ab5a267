// Connections over UCX (libucp) between servers: shared memory, TCP or RDMA, whatever reaches the other side fastest.
// UCX's library is opened when it is first needed, so that the program starts where it is not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "parallel/tcp.h"

namespace sluice {

// Throws Error(kInvalidRequest), which names the option that asks for UCX.
[[noreturn]] void refuse_ucx(const std::string& why);

// Must outlive its streams. Any thread may call it.
class Ucx {
 public:
  // `memory`: where large writes lie. Some drivers' memory cannot be copied by other processes; UCX then does not try.
  // Throws Error(kInvalidRequest) that names --kv-transfer-backend if the library is missing or cannot be used by
  // several threads, or if the program was built without its headers.
  static std::unique_ptr<Ucx> load(std::span<const std::byte> memory);
  virtual ~Ucx() = default;

  // A stream between the two processes that `connection` joins. Both sides make one. Its open() exchanges UCX's
  // addresses over the connection. The connection then carries nothing more, but its end is the stream's end: so a
  // process that is killed is noticed at once.
  virtual std::unique_ptr<ByteStream> make_stream(std::unique_ptr<TcpStream> connection) = 0;
};

}  // namespace sluice
