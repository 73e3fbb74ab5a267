// Implements the HTTP client with Boost.Beast. It opens one connection per request, because a download has few requests
// and many bytes.
#include "hub/http_client.h"

#include <fmt/core.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/ascii.h"
#include "sluice/version.h"

namespace sluice::hub {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kTimeout = std::chrono::seconds(60);  // longest time without progress
constexpr auto kCheckEvery = std::chrono::milliseconds(100);
constexpr int kMaxRedirects = 5;
constexpr size_t kPiece = 256 << 10;
constexpr uint32_t kMaxHeader = 64 << 10;

asio::ssl::context make_tls() {
  asio::ssl::context context(asio::ssl::context::tls_client);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  context.set_verify_mode(asio::ssl::verify_peer);
  error_code ignored;
  context.set_default_verify_paths(ignored);  // $SSL_CERT_FILE and $SSL_CERT_DIR, or Debian's locations
  if (std::getenv("SSL_CERT_FILE") == nullptr && std::getenv("SSL_CERT_DIR") == nullptr) {
    // Locations on other distributions.
    for (const char* bundle : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                               "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
      if (!std::filesystem::exists(bundle, ignored)) continue;
      context.load_verify_file(bundle, ignored);
      break;
    }
  }
  return context;
}

// One request and its response over one connection.
class Exchange {
 public:
  Exchange(const Url& url, const Check& check) : url_(url), check_(check) {}

  HttpResponse run(const HttpRequest& request, bool send_token, const std::function<bool(const HttpResponse&)>& on_head,
                   const std::function<void(std::string_view)>& on_body) {
    beast::tcp_stream socket(io_);
    connect(socket);
    if (!url_.tls) return talk(socket, request, send_token, on_head, on_body);
    asio::ssl::context context = make_tls();
    beast::ssl_stream<beast::tcp_stream> stream(std::move(socket), context);
    handshake(stream);
    return talk(stream, request, send_token, on_head, on_body);
  }

 private:
  // Runs one asynchronous operation, start(handler), until it completes.
  template <class Start>
  error_code wait(beast::tcp_stream& socket, Start&& start) {
    error_code result;
    socket.expires_after(kTimeout);
    start([&](error_code error, auto&&...) { result = error; });
    io_.restart();
    if (!check_) io_.run();
    while (!io_.stopped()) {
      try {
        check_();
      } catch (...) {  // the operation ends before what it uses
        socket.cancel();
        io_.run();
        throw;
      }
      io_.run_for(kCheckEvery);
    }
    return result;
  }

  [[noreturn]] void fail(const error_code& error) const {
    throw NetworkError(fmt::format("{}: {}", url_.host, error.message()));
  }

  void connect(beast::tcp_stream& socket) {
    error_code error;
    tcp::resolver resolver(io_);
    const auto endpoints = resolver.resolve(url_.host, url_.port, error);
    if (error) fail(error);
    error = wait(socket, [&](auto handler) { socket.async_connect(endpoints, handler); });
    if (error) fail(error);
  }

  void handshake(beast::ssl_stream<beast::tcp_stream>& stream) {
    SSL* ssl = stream.native_handle();
    error_code not_an_address;
    asio::ip::make_address(url_.host, not_an_address);
    if (not_an_address) SSL_set_tlsext_host_name(ssl, url_.host.c_str());
    stream.set_verify_callback(asio::ssl::host_name_verification(url_.host));
    const error_code error = wait(beast::get_lowest_layer(stream), [&](auto handler) {
      stream.async_handshake(asio::ssl::stream_base::client, handler);
    });
    if (!error) return;
    if (const long verified = SSL_get_verify_result(ssl); verified != X509_V_OK) {
      throw Error(ErrorCode::kInternal, fmt::format("{}: the server's certificate is not valid: {}", url_.host,
                                                    X509_verify_cert_error_string(verified)));
    }
    fail(error);
  }

  template <class Stream>
  HttpResponse talk(Stream& stream, const HttpRequest& request, bool send_token,
                    const std::function<bool(const HttpResponse&)>& on_head,
                    const std::function<void(std::string_view)>& on_body) {
    beast::tcp_stream& socket = beast::get_lowest_layer(stream);
    http::request<http::empty_body> message(http::string_to_verb(request.method), url_.target, 11);
    const bool usual_port = url_.port == (url_.tls ? "443" : "80");
    message.set(http::field::host, usual_port ? url_.host : fmt::format("{}:{}", url_.host, url_.port));
    message.set(http::field::user_agent, fmt::format("sluice/{}", kVersion));
    message.set(http::field::accept_encoding, "identity");
    message.set(http::field::connection, "close");
    if (send_token) message.set(http::field::authorization, "Bearer " + request.token);
    for (const auto& [name, value] : request.headers) message.set(name, value);
    if (const error_code e = wait(socket, [&](auto handler) { http::async_write(stream, message, handler); })) fail(e);

    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMaxHeader);
    parser.body_limit(boost::none);
    parser.skip(request.method == "HEAD");
    error_code error = wait(socket, [&](auto handler) { http::async_read_header(stream, buffer, parser, handler); });
    if (error) fail(error);
    HttpResponse response{.status = static_cast<int>(parser.get().result_int())};
    for (const auto& field : parser.get()) {
      response.headers[ascii_lower(std::string_view(field.name_string()))] = std::string(field.value());
    }
    if (!on_head(response)) return response;
    std::vector<char> piece(kPiece);
    while (!parser.is_done()) {
      parser.get().body().data = piece.data();
      parser.get().body().size = piece.size();
      error = wait(socket, [&](auto handler) { http::async_read(stream, buffer, parser, handler); });
      const size_t size = piece.size() - parser.get().body().size;
      if (size > 0) on_body({piece.data(), size});
      if (error && error != http::error::need_buffer) fail(error);
    }
    return response;
  }

  const Url& url_;
  const Check& check_;
  asio::io_context io_;
};

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

std::string_view HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

Url Url::parse(std::string_view text) {
  const std::string_view whole = text;
  const auto fail = [&]() -> Error {
    return Error(ErrorCode::kInvalidRequest,
                 fmt::format("'{}' is not a valid http or https URL", whole.substr(0, 200)));
  };
  Url url;
  if (text.starts_with("https://")) {
    text.remove_prefix(8);
  } else if (text.starts_with("http://")) {
    url.tls = false;
    text.remove_prefix(7);
  } else {
    throw fail();
  }
  const size_t end = std::min(text.find_first_of("/?#"), text.size());
  std::string_view authority = text.substr(0, end);
  std::string_view rest = text.substr(end);
  rest = rest.substr(0, rest.find('#'));
  url.target = rest.starts_with('/') ? std::string(rest) : "/" + std::string(rest);
  url.port = url.tls ? "443" : "80";
  const auto odd = [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f' || c == '\\' || c == '@'; };
  if (std::ranges::any_of(authority, odd)) throw fail();
  if (std::ranges::any_of(url.target, [](char c) { return static_cast<unsigned char>(c) <= ' ' || c == '\x7f'; })) {
    throw fail();
  }
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == std::string_view::npos) throw fail();
  if (const size_t colon = authority.find(':', bracket); colon != std::string_view::npos) {
    url.port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
    const bool digits = std::ranges::all_of(url.port, [](char c) { return c >= '0' && c <= '9'; });
    if (url.port.empty() || url.port.size() > 5 || !digits) throw fail();
  }
  if (bracket > 0) authority = authority.substr(1, bracket - 1);
  if (authority.empty()) throw fail();
  url.host = ascii_lower(authority);
  return url;
}

Url Url::resolve(std::string_view location) const {
  if (location.starts_with("http://") || location.starts_with("https://")) return parse(location);
  const std::string scheme = tls ? "https:" : "http:";
  if (location.starts_with("//")) return parse(scheme + std::string(location));
  const std::string root = str().substr(0, str().size() - target.size());
  if (location.starts_with('/')) return parse(root + std::string(location));
  const std::string_view path = std::string_view(target).substr(0, target.find('?'));
  return parse(fmt::format("{}{}{}", root, path.substr(0, path.rfind('/') + 1), location));
}

std::string Url::str() const {
  const bool address6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}{}", tls ? "https" : "http", address6 ? "[" : "", host, address6 ? "]" : "", port,
                     target);
}

HttpResponse perform(const HttpRequest& request, const std::function<void(const HttpResponse&)>& on_head,
                     const std::function<void(std::string_view)>& on_body) {
  Url url = request.url;
  for (int redirects = 0;; ++redirects) {
    std::optional<Url> next;
    const bool send_token = !request.token.empty() && url.same_origin(request.url);
    const HttpResponse response = Exchange(url, request.check)
                                      .run(
                                          request, send_token,
                                          [&](const HttpResponse& head) {
                                            if (is_redirect(head.status) && !head.header("location").empty()) {
                                              next = url.resolve(head.header("location"));
                                              if (request.leave_origin || next->same_origin(url)) return false;
                                              next.reset();
                                            }
                                            on_head(head);
                                            return true;
                                          },
                                          on_body);
    if (!next) return response;
    if (redirects == kMaxRedirects) {
      throw Error(ErrorCode::kInternal, fmt::format("{}: more than {} redirects", request.url.host, kMaxRedirects));
    }
    if (url.tls && !next->tls) {
      throw Error(ErrorCode::kInternal, fmt::format("{}: refused a redirect from https to http", url.host));
    }
    url = *std::move(next);
  }
}

}  // namespace sluice::hub
