// A blocking client of the completions API that records when the pieces of an answer arrive. Uses one connection per
// request.
#include <fmt/core.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>

#include "cli/bench/serve.h"
#include "hub/http_client.h"
#include "sluice/error.h"
#include "sluice/version.h"

namespace sluice::cli {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::asio::ip::tcp;

// Sends a request and passes on the body as it arrives. Returns the status. Throws boost::system::system_error.
int exchange(const RemoteModel& model, http::verb verb, const std::string& target, const std::string& body,
             const std::function<void(std::string_view)>& on_body) {
  boost::asio::io_context io;
  tcp::socket socket(io);
  boost::asio::connect(socket, tcp::resolver(io).resolve(model.host, model.port));
  socket.set_option(tcp::no_delay(true));
  http::request<http::string_body> request(verb, model.path + target, 11);
  request.set(http::field::host, model.host + ":" + model.port);
  request.set(http::field::user_agent, fmt::format("sluice/{}", kVersion));
  request.set(http::field::connection, "close");
  if (!model.api_key.empty()) request.set(http::field::authorization, "Bearer " + model.api_key);
  if (!body.empty()) request.set(http::field::content_type, "application/json");
  request.body() = body;
  request.prepare_payload();
  http::write(socket, request);
  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(socket, buffer, parser);
  std::vector<char> piece(64 << 10);
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    boost::system::error_code error;
    http::read_some(socket, buffer, parser, error);
    if (const size_t size = piece.size() - parser.get().body().size; size > 0) on_body({piece.data(), size});
    if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
  }
  return static_cast<int>(parser.get().result_int());
}

// The error's text without the library's source location.
std::string message_of(const std::exception& e) {
  const auto* system = dynamic_cast<const boost::system::system_error*>(&e);
  return system != nullptr ? system->code().message() : e.what();
}

// Splits a stream of server-sent events into the data of each event.
class EventLines {
 public:
  void add(std::string_view bytes, const std::function<void(std::string_view data)>& on_data) {
    pending_ += bytes;
    size_t begin = 0;
    for (size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line(pending_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      on_data(line);
    }
    pending_.erase(0, begin);
  }

 private:
  std::string pending_;
};

// Reads a chunk of a streamed completion.
void read_chunk(std::string_view data, ServedRequest::Clock::time_point now, ServedRequest& request) {
  if (data == "[DONE]") return;
  const Json chunk = parse_json(data);
  if (chunk.contains("error")) {
    request.error = dump_json(chunk.at("error"));
    return;
  }
  if (chunk.contains("usage") && chunk.at("usage").is_object()) {
    request.prompt_tokens = chunk.at("usage").value("prompt_tokens", 0);
    request.output_tokens = chunk.at("usage").value("completion_tokens", 0);
  }
  // Tokens whose text is not complete yet may come in a chunk without text; only the last chunk has no choices at all.
  if (!chunk.contains("choices") || chunk.at("choices").empty()) return;
  const Json& choice = chunk.at("choices").at(0);
  if (choice.value("text", std::string()).empty() && choice.contains("finish_reason") &&
      !choice.at("finish_reason").is_null()) {
    return;
  }
  request.pieces.push_back(now);
}

}  // namespace

RemoteModel find_remote_model(const std::string& base_url, const std::string& api_key) {
  const hub::Url url = hub::Url::parse(base_url);
  if (url.tls) throw Error(ErrorCode::kInvalidRequest, fmt::format("{}: only http is supported", base_url));
  RemoteModel model{.host = url.host, .port = url.port, .path = url.target, .name = {}, .api_key = api_key};
  while (model.path.ends_with('/')) model.path.pop_back();
  if (model.path.ends_with("/v1")) model.path.resize(model.path.size() - 3);
  std::string body;
  int status = 0;
  try {
    status = exchange(model, http::verb::get, "/v1/models", {}, [&](std::string_view piece) { body += piece; });
    if (status == 200) model.name = parse_json(body).at("data").at(0).at("id").get<std::string>();
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kInternal, fmt::format("{}: {}", base_url, message_of(e)));
  }
  if (status != 200) throw Error(ErrorCode::kInternal, fmt::format("{}/v1/models: status {}", base_url, status));
  return model;
}

void stream_completion(const RemoteModel& model, const std::vector<int>& prompt, int max_tokens,
                       ServedRequest& request) {
  const Json body = {{"model", model.name},
                     {"prompt", prompt},
                     {"max_tokens", max_tokens},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  std::string whole;
  EventLines lines;
  request.sent = ServedRequest::Clock::now();
  try {
    const int status = exchange(model, http::verb::post, "/v1/completions", dump_json(body), [&](std::string_view b) {
      const auto now = ServedRequest::Clock::now();
      if (request.pieces.empty()) whole += b;
      lines.add(b, [&](std::string_view data) { read_chunk(data, now, request); });
    });
    if (status != 200) request.error = fmt::format("status {}: {}", status, whole.substr(0, 500));
    if (status == 200 && request.error.empty() && request.output_tokens == 0) request.error = "the answer has no usage";
  } catch (const std::exception& e) {
    request.error = message_of(e);
  }
  request.ended = ServedRequest::Clock::now();
}

}  // namespace sluice::cli
