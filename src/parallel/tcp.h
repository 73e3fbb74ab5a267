// Connections over TCP between servers.
#pragma once

#include <memory>
#include <string>

#include "parallel/byte_stream.h"

namespace sluice {

// HOST:PORT, or [HOST]:PORT for an IPv6 address. Throws Error(kInvalidRequest) that names `option`.
struct TcpAddress {
  std::string host;
  int port = 0;
  static TcpAddress parse(const std::string& text, const std::string& option);
  std::string str() const;
};

class TcpStream : public ByteStream {
 public:
  // poll() finds it readable when bytes came or the connection ended.
  virtual int descriptor() const = 0;
};

// Throws Error(kInternal) if nobody answers within `limit`.
std::unique_ptr<TcpStream> connect_tcp(const TcpAddress& address, std::chrono::milliseconds limit);

class TcpListener {
 public:
  // Port 0: any free one. Throws Error(kInvalidRequest) that names `option` if the address cannot be used.
  TcpListener(const TcpAddress& address, const std::string& option);
  ~TcpListener();
  TcpListener(const TcpListener&) = delete;
  TcpListener& operator=(const TcpListener&) = delete;

  int port() const { return port_; }
  // The next connection; null if none came within `limit`, or after shut_down().
  std::unique_ptr<TcpStream> accept(std::chrono::milliseconds limit);
  // accept() returns at once from then on. Any thread.
  void shut_down();

 private:
  int socket_ = -1;
  int port_ = 0;
};

}  // namespace sluice
