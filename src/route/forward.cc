// Attempts, and the answer's way back. See docs/route.md for the rules.
#include "route/forward.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <utility>

#include "base/ascii.h"
#include "base/json.h"
#include "base/log.h"
#include "route/split_prompt.h"
#include "server/dialect.h"
#include "server/gate.h"

namespace sluice::route {

using server::ApiError;
using server::equals_ignoring_case;
using server::HttpReply;
using server::HttpRequest;
using server::HttpResponse;
using Failure = ReplicaCall::Failure;

namespace {

constexpr size_t kMaxHeldLine = 64 << 10;  // a longer line of events is passed on in pieces

// Headers that are about the client's connection, or that the router writes itself.
bool is_hop_header(std::string_view name) {
  constexpr std::string_view kHop[] = {"host",    "connection", "keep-alive",        "proxy-connection",
                                       "te",      "trailer",    "transfer-encoding", "content-length",
                                       "upgrade", "expect",     "x-request-id"};
  return std::ranges::any_of(kHop, [&](std::string_view hop) { return equals_ignoring_case(name, hop); });
}

// The headers that Connection names end with the connection, too.
std::vector<std::string> named_by_connection(const HttpRequest& request) {
  std::vector<std::string> names;
  for (const auto& [name, value] : request.headers) {
    if (!equals_ignoring_case(name, "connection")) continue;
    std::string_view rest = value;
    while (!rest.empty()) {
      std::string_view word = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
      while (word.starts_with(' ') || word.starts_with('\t')) word.remove_prefix(1);
      while (word.ends_with(' ') || word.ends_with('\t')) word.remove_suffix(1);
      names.push_back(ascii_lower(word));
    }
  }
  return names;
}

// Path and query of a target in any form.
std::string origin_form(const HttpRequest& request) {
  const size_t query = request.target.find('?');
  return request.path + (query == std::string::npos ? "" : request.target.substr(query));
}

ApiError gateway_error(int status, std::string message) {
  return {.status = status, .message = std::move(message), .type = "server_error"};
}

ApiError no_replica() { return server::overloaded("No replica can take the request. Please try again later."); }

ApiError error_of(Failure failure) {
  switch (failure) {
    case Failure::kTimeout:
      return gateway_error(504, "The replica did not answer in time.");
    case Failure::kInvalid:
      return gateway_error(502, "The answer of the replica is not valid HTTP.");
    case Failure::kFault:
      return server::server_fault();
    default:
      return gateway_error(502, "The replica was lost before the end of its answer.");
  }
}

// Whether the request may be about answers that one replica has stored. Responses are stored unless they say otherwise.
bool is_about_stored_answers(const HttpRequest& request) {
  if (request.path.starts_with("/v1/responses")) return true;
  for (const std::string_view chats : {"/v1/chat/completions", "/chat/completions"}) {
    if (request.path.starts_with(chats)) return request.method != "POST" || request.path.size() > chats.size() + 1;
  }
  return false;
}

// The session that a path names, as JSON text: /v1/sessions/ID or /v1/sessions/ID/prefetch. Empty for other paths.
std::string session_of(std::string_view path) {
  constexpr std::string_view kSessions = "/v1/sessions/", kPrefetch = "/prefetch";
  if (!path.starts_with(kSessions)) return "";
  path.remove_prefix(kSessions.size());
  if (path.ends_with(kPrefetch)) path.remove_suffix(kPrefetch.size());
  return dump_json(server::percent_decode(path));
}

// Whether the prompt of a request may be computed by another server than the one that answers.
bool may_be_split(const HttpRequest& request) {
  return request.method == "POST" && (request.path == "/v1/completions" || request.path == "/v1/chat/completions" ||
                                      request.path == "/chat/completions");
}

// An error as the last event of a stream.
std::string error_event(std::string_view path, const ApiError& error) {
  if (path.starts_with("/v1/responses")) {
    const Json event = {{"type", "error"}, {"code", "server_error"}, {"message", error.message}, {"param", nullptr}};
    return fmt::format("event: error\ndata: {}\n\n", dump_json(event));
  }
  const std::string body = server::dialect_of(path).error_body(error);
  return fmt::format("{}data: {}\n\n", path.starts_with("/v1/messages") ? "event: error\n" : "", body);
}

}  // namespace

Forward::Forward(RouteContext& context, HttpRequest request, std::shared_ptr<HttpReply> reply)
    : context_(context), request_(std::move(request)), reply_(std::move(reply)) {
  // The body counts as held until the last attempt lets go of it.
  struct Held {
    std::string text;
    std::shared_ptr<const server::BodyCharge> charge;
  };
  auto held = std::make_shared<Held>(Held{std::move(request_.body), std::move(request_.body_charge)});
  body_ = std::shared_ptr<const std::string>(held, &held->text);
  prompt_ = read_prompt(*body_);
  const auto header = request_.header("X-Session-Id");
  const std::string named = session_of(request_.path);
  session_ = header && !header->empty() ? std::string(*header) : named.empty() ? prompt_.session : named;
  sticky_ = prompt_.sticky || !named.empty() || is_about_stored_answers(request_);
  weight_ = weight_of(body_->size());
}

Forward::~Forward() {
  end_call();
  const std::lock_guard lock(context_.mutex);
  context_.open.erase(this);
}

void Forward::start() {
  {
    const std::lock_guard lock(context_.mutex);
    context_.open.insert(this);
  }
  reply_->on_abandoned([self = shared_from_this()] {
    self->finished_ = true;
    self->end_call();
    if (const auto prefill = self->prefill_.lock()) prefill->cancel();
  });
  if (finished_) return;
  begin_prefill();
  attempt();
}

void Forward::shut_down() {
  reply_->run([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || self->finished_) return;
    const ApiError error = server::overloaded("The server is shutting down.");
    if (self->answering_) return self->break_off(error);
    self->refuse(error);
  });
}

// Prefill

// Has a server compute the prompt while the replica that answers fetches what it gives. Without such a server, or with
// a short prompt, the replica computes it.
void Forward::begin_prefill() {
  if (!may_be_split(request_) || body_->size() < static_cast<size_t>(context_.options.prefill_min_bytes)) return;
  const ReplicaMask healthy = healthy_of(context_.replicas), able = prefilling(context_.replicas, healthy);
  if ((healthy & ~able) == 0) return;  // nobody would go on with it
  const auto chosen = context_.policy.choose({.prompt = prompt_, .session = session_, .weight = weight_}, able);
  if (!chosen) return;
  const auto address = context_.replicas[*chosen]->transfer();
  if (!address) return;
  std::optional<SplitBody> bodies = split_body(*body_, *address, server::request_id(nullptr));
  if (!bodies) return;
  split_body_ = std::make_shared<const std::string>(std::move(bodies->decode));
  const auto prompt = std::make_shared<const std::string>(std::move(bodies->prefill));
  const auto call = std::make_shared<PrefillCall>(context_.replicas, *chosen, weight_, context_.health,
                                                  [weak = weak_from_this()](const std::string& reason) {
                                                    if (const auto self = weak.lock()) self->on_prefill_failure(reason);
                                                  });
  prefill_ = call;
  context_.metrics.count_split();
  call->start(context_.pool, reply_->executor(),
              CallRequest{.head = head_for(*context_.replicas[*chosen], *prompt), .body = prompt}, limits());
}

// The replica would wait for keys and values in vain: it gets the request anew, unless its answer has begun.
void Forward::on_prefill_failure(const std::string& reason) {
  log::info("{}: the prompt is not computed apart: {}", request_.id, reason);
  context_.metrics.count_split_failure();
  split_body_ = nullptr;
  if (finished_ || answering_ || !call_) return;
  tried_ &= ~(ReplicaMask{1} << replica_);
  end_call();
  attempt();
}

// Attempts

CallLimits Forward::limits() const {
  const RouteOptions& o = context_.options;
  return {.connect = std::chrono::milliseconds(o.connect_timeout_ms),
          .silence = std::chrono::milliseconds(o.replica_timeout_ms),
          .header_bytes = o.max_header_bytes};
}

void Forward::attempt() {
  const auto chosen =
      context_.policy.choose({.prompt = prompt_, .session = session_, .sticky = sticky_, .weight = weight_},
                             answering(context_.replicas, healthy_of(context_.replicas) & ~tried_));
  if (!chosen) {
    context_.metrics.count_unavailable();
    return refuse(no_replica());
  }
  replica_ = *chosen;
  tried_ |= ReplicaMask{1} << replica_;
  const std::shared_ptr<Replica>& replica = context_.replicas[replica_];
  ++replica->requests;
  in_flight_.emplace(replica, weight_);
  const bool fetches = split_body_ != nullptr && replica->role == Role::kDecode;
  const std::shared_ptr<const std::string>& body = fetches ? split_body_ : body_;
  call_ = std::make_shared<ReplicaCall>(
      replica, &context_.pool, reply_->executor(),
      CallRequest{.head = head_for(*replica, *body), .body = body, .head_only = request_.method == "HEAD"}, limits(),
      listener());
  call_->start();
}

// The listener does not keep the request: its client's connection does.
ReplicaCall::Listener Forward::listener() {
  return {.on_answer =
              [weak = weak_from_this()](AnswerReader& answer) {
                if (const auto self = weak.lock()) self->on_answer(answer);
              },
          .on_failure =
              [weak = weak_from_this()](Failure failure, const std::string& reason) {
                if (const auto self = weak.lock()) self->on_failure(failure, reason);
              }};
}

std::string Forward::head_for(const Replica& replica, const std::string& body) const {
  const std::vector<std::string> dropped = named_by_connection(request_);
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nX-Request-Id: {}\r\n", request_.method,
                                 origin_form(request_), replica.authority, request_.id);
  for (const auto& [name, value] : request_.headers) {
    if (is_hop_header(name) || std::ranges::count(dropped, ascii_lower(name)) > 0) continue;
    text += fmt::format("{}: {}\r\n", name, value);
  }
  const bool has_body = !body.empty() || request_.method == "POST" || request_.method == "PUT";
  if (has_body) text += fmt::format("Content-Length: {}\r\n", body.size());
  return text + "\r\n";
}

bool Forward::may_retry() const {
  return !answering_ && retries_ < context_.options.max_retries && (healthy_of(context_.replicas) & ~tried_) != 0;
}

void Forward::retry() {
  ++retries_;
  context_.metrics.count_retry();
  end_call();
  attempt();
}

void Forward::end_call() noexcept {
  in_flight_.reset();
  if (const auto call = std::exchange(call_, nullptr)) call->cancel();
}

// The answer

void Forward::on_answer(AnswerReader& answer) {
  if (finished_) return;
  if (!answer.has_head()) return call_->read();
  if (!answering_) {
    if (answer.head().status == 503) {  // refused before any work, because of overload or shutdown
      ++context_.replicas[replica_]->refused;
      context_.health.suspected(replica_);
      if (may_retry()) return retry();
    }
    return begin_answer(answer);
  }
  pass_on(answer);
}

void Forward::begin_answer(AnswerReader& answer) {
  context_.metrics.observe_latency(call_->sent_at() - arrived_);
  AnswerHead& head = answer.head();
  HttpResponse response{
      .status = head.status, .content_type = std::move(head.content_type), .headers = std::move(head.headers)};
  const bool coded = std::ranges::any_of(
      response.headers, [](const auto& header) { return equals_ignoring_case(header.first, "Content-Encoding"); });
  events_ = response.content_type.starts_with("text/event-stream") && !coded;
  if (answer.done() && request_.method != "HEAD") {
    finished_ = true;
    end_call();
    response.body = answer.take_body();
    return reply_->send(std::move(response));
  }
  answering_ = true;
  response.body = whole_lines(answer.take_body(), answer.done());
  reply_->start_stream(std::move(response));
  pass_on(answer);
}

void Forward::pass_on(AnswerReader& answer) {
  std::string piece = whole_lines(answer.take_body(), answer.done());
  if (!piece.empty()) reply_->write(std::move(piece));
  if (answer.done()) {
    finished_ = true;
    end_call();
    return reply_->end_stream(false);
  }
  // The replica is read no faster than the client reads.
  reply_->on_written([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self && self->call_) self->call_->read();
  });
}

// What may be passed on: all, or of events the lines that are complete. A client never gets a part of a line whose rest
// is lost with its replica.
std::string Forward::whole_lines(std::string piece, bool done) {
  if (!events_) return piece;
  if (!line_.empty()) piece = std::exchange(line_, {}) + piece;
  if (!done) {
    const size_t end = piece.rfind('\n') + 1;  // 0 if there is none
    if (piece.size() - end <= kMaxHeldLine) {
      line_ = piece.substr(end);
      piece.resize(end);
    }
  }
  if (!piece.empty()) between_events_ = piece.ends_with("\n\n") || piece.ends_with("\r\n\r\n") || piece == "\n";
  return piece;
}

// Ends

void Forward::on_failure(Failure failure, const std::string& reason) {
  if (finished_) return;
  Replica& replica = *context_.replicas[replica_];
  const bool unused = call_ == nullptr || !call_->answer().begun();
  log::info("{}: replica {}: {}", request_.id, replica.url, reason);
  const bool no_connection = failure == Failure::kRefused || failure == Failure::kUnreachable;
  if (no_connection) context_.health.refused(replica_);
  if (failure == Failure::kClosed) context_.health.suspected(replica_);
  const bool refused = no_connection || (unused && (failure == Failure::kClosed || failure == Failure::kLost));
  ++(refused ? replica.refused : replica.broken);
  if (answering_) return break_off(error_of(failure));
  if (!refused) return refuse(error_of(failure));
  if (may_retry()) return retry();
  context_.metrics.count_unavailable();
  refuse(no_replica());
}

void Forward::refuse(const ApiError& error) {
  finished_ = true;
  end_call();
  reply_->send(server::to_response(error, server::dialect_of(request_.path)));
}

// The answer has begun. A stream of events ends with the error; another answer ends before its end, which shows.
void Forward::break_off(const ApiError& error) {
  finished_ = true;
  end_call();
  if (!events_) return reply_->abort();
  reply_->write((between_events_ ? "" : "\n") + error_event(request_.path, error));
  reply_->end_stream(true);
}

}  // namespace sluice::route
