// HTTP requests and responses as values, and the seam between the transport (http_server.h) and what answers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent: "POST"
  std::string target;  // as sent
  std::string path;    // the target before '?', neither decoded nor normalized
  int version = 11;    // 10 or 11
  Headers headers;     // in order, names as sent
  std::string body;
  std::string id;  // X-Request-Id: the client's if well-formed, else made here

  // The value of the only header of that name (any case); nullopt when there is none or more than one.
  std::optional<std::string_view> header(std::string_view name) const;
  int count(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};  // further ones; framing, Date and Connection are the transport's
  bool close = false;    // end the connection afterwards
};

// Where one request's answer goes: either send() once, or start_stream(), write()..., end_stream().
// Every method may be called from any thread and does nothing once the client is gone.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(HttpResponse response) = 0;
  // Status line and headers; body and content length of `head` are not used.
  virtual void start_stream(HttpResponse head) = 0;
  virtual void write(std::string data) = 0;
  // Ends the body. With `close`, the connection ends, too.
  virtual void end_stream(bool close) = 0;
  // Runs a task on the connection's thread; tasks run in order, never two at a time.
  virtual void run(std::function<void()> task) = 0;
  // Called (on the connection's thread) when the client is gone or too slow; at once if it already is.
  virtual void on_abandoned(std::function<void()> callback) = 0;
};

// What the transport serves. All methods are called on I/O threads and must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The header is complete, the body is not read yet. Sets request.id. A response refuses the request unread.
  virtual std::optional<HttpResponse> on_header(HttpRequest& request) = 0;
  virtual void on_request(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // The answer to what the transport itself refuses (a malformed message, limits, timeouts).
  virtual HttpResponse on_refused(int status, std::string_view code, std::string message) = 0;
  // Headers every response to the request gets (X-Request-Id, CORS). `request` is null for on_refused answers
  // before a header was understood.
  virtual Headers common_headers(const HttpRequest* request) = 0;
  // The answer was handed to the socket or abandoned. status 499: the client left before there was one.
  virtual void on_finished(const HttpRequest& request, int status, double seconds) = 0;
};

bool equals_ignoring_case(std::string_view a, std::string_view b);
const char* reason_phrase(int status);

}  // namespace sluice::server
