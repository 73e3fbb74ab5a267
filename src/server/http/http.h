// HTTP requests and responses as values, and the interface between the transport (http/server.h) and its handler.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace boost::asio {
class any_io_executor;
}

namespace sluice::server {

class BodyCharge;

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent: "POST"
  std::string target;  // as sent
  std::string path;    // the target before '?', neither decoded nor normalized
  int version = 11;    // 10 or 11
  Headers headers;     // in order, names as sent
  std::string body;
  std::string id;                                 // X-Request-Id: the client's if it is well-formed, else a random one
  std::shared_ptr<const BodyCharge> body_charge;  // the body counts as held until the last copy of this is gone

  // The value of the only header of that name (any case); nullopt when there is none or more than one.
  std::optional<std::string_view> header(std::string_view name) const;
  int count(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};  // further headers; the transport adds framing, Date and Connection
  bool close = false;    // end the connection afterwards
};

// Takes the answer to one request: either send() once, or start_stream(), write()..., end_stream().
// Every method may be called from any thread and does nothing once the client is gone. Must not outlive the transport.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(HttpResponse response) = 0;
  // Sends the status line and the headers of `head`, and its body as the first bytes of the stream.
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string data) = 0;
  // Ends the body, and with `close` the connection.
  virtual void end_stream(bool close) = 0;
  // Calls `callback` on the connection's thread as soon as the kernel has all that was written, at once if it has.
  // Never calls it if the client is gone. One callback at a time; for those who write no faster than the client reads.
  virtual void on_written(std::function<void()> callback) = 0;
  // Ends the connection within the answer, so that the client cannot take the answer for complete.
  virtual void abort() = 0;
  // Runs a task on the connection's thread; tasks run in order, never two at a time.
  virtual void run(std::function<void()> task) = 0;
  // Calls `callback` on the connection's thread when the client is gone or too slow; at once if it already is.
  virtual void on_abandoned(std::function<void()> callback) = 0;
  // What runs on the connection's thread, for a handler with sockets of its own. Sockets must end before the transport.
  virtual boost::asio::any_io_executor executor() const = 0;
};

// Answers the requests of a transport. All methods are called on I/O threads and must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called when the header is complete and the body is not read yet. Sets request.id. A response refuses the request.
  virtual std::optional<HttpResponse> on_header(HttpRequest& request) = 0;
  // True for requests that are answered even when the server has too many connections: health and metrics.
  virtual bool is_essential(const HttpRequest& request) = 0;
  virtual void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // Makes the answer to a request that the transport refuses: a malformed message, a limit, a timeout. The path is
  // empty if the header could not be read.
  virtual HttpResponse on_refused(std::string_view path, int status, std::string_view code, std::string message) = 0;
  // Headers of every response to the request (X-Request-Id, CORS). `request` is null if the transport refused a
  // request whose header it could not read.
  virtual Headers common_headers(const HttpRequest* request) = 0;
  // Called when the answer is written or abandoned. Status 499: the client left before there was an answer.
  virtual void on_finished(const HttpRequest& request, int status, double seconds) = 0;
};

std::string percent_decode(std::string_view text);
// The parameters of a target's query in order, decoded. One without '=' has an empty value.
std::vector<std::pair<std::string, std::string>> query_parameters(std::string_view target);
// The decoded value of the first parameter of that name in a target's query; empty when there is none.
std::string query_value(std::string_view target, std::string_view name);
bool equals_ignoring_case(std::string_view a, std::string_view b);
const char* reason_phrase(int status);

}  // namespace sluice::server
