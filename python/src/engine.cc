// Loads, submits and renders; see engine.h.
#include "engine.h"

#include <unistd.h>

#include <utility>

#include "base/log.h"
#include "binding/engine_options.h"
#include "binding/requests.h"
#include "sluice/context.h"

namespace sluice::python {
namespace {

EngineOptions read_options(const std::string& model, const EngineHandle::Options& options,
                           std::vector<std::string>& notes) {
  std::vector<binding::NamedOption> named;
  named.reserve(options.size());
  for (const auto& [name, value] : options) named.push_back({name, value});
  return binding::read_engine_options(model, named, notes);
}

}  // namespace

EngineHandle::EngineHandle(const std::string& model, const Options& options, std::vector<std::string>& notes)
    : options_(read_options(model, options, notes)),
      owner_(::getpid()),
      engine_(Engine::load(options_)),
      templates_(options_) {}

std::shared_ptr<Engine> EngineHandle::use() const {
  if (owner_ != ::getpid()) throw Forked{owner_};  // before the mutex, which another thread may have held
  const std::scoped_lock lock(mutex_);
  if (engine_ == nullptr) throw Closed{};
  return engine_;
}

void EngineHandle::close() {
  if (owner_ != ::getpid()) {
    // The engine's threads are in the parent, so that nothing can be ended here.
    [[maybe_unused]] const auto* forgotten = new std::shared_ptr<Engine>(std::move(engine_));
    return;
  }
  std::shared_ptr<Engine> engine;
  {
    const std::scoped_lock lock(mutex_);
    engine = std::move(engine_);
  }
}

void EngineHandle::cancel(RequestId id) const {
  try {
    use()->cancel(id);
  } catch (const Closed&) {
    return;
  }
}

EngineHandle::Submitted EngineHandle::submit(const Request& request, const Prompt& prompt, bool add_special_tokens,
                                             const std::shared_ptr<Channel>& channel, Key key, bool stream) {
  const std::shared_ptr<Engine> engine = use();
  const int context = engine->model().max_model_len;
  Request copy = request;
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    check_text_length(text->size(), context, copy.prompt_param);
    copy.prompt = engine->tokenize(*text, add_special_tokens);
  } else {
    copy.prompt = std::get<std::vector<TokenId>>(prompt);
  }
  copy.max_tokens_is_default = true;
  fit_context(copy, context, "prompt");
  Submitted out{.id = 0, .tokens = copy.prompt};
  const auto answer = channel->open(key, stream);
  try {
    out.id =
        engine->submit(std::move(copy), [channel, answer](Event event) { channel->push(answer, std::move(event)); });
  } catch (...) {
    channel->drop(key);
    throw;
  }
  channel->started(*answer, out.id);
  return out;
}

RequestId EngineHandle::submit_pooling(const std::vector<binding::PoolingInput>& inputs, const std::string& options,
                                       const std::shared_ptr<Channel>& channel, Key key,
                                       std::vector<std::vector<TokenId>>& tokens) {
  const std::shared_ptr<Engine> engine = use();
  PoolingRequest request = binding::read_pooling(*engine, inputs, options);
  for (const PooledText& text : request.texts) tokens.push_back(text.tokens);
  const auto answer = channel->open(key, false);
  RequestId id = 0;
  try {
    id = engine->embed(std::move(request),
                       [channel, answer](PoolingResult result) { channel->push(answer, std::move(result)); });
  } catch (...) {
    channel->drop(key);
    throw;
  }
  channel->started(*answer, id);
  return id;
}

ChannelHandle::~ChannelHandle() {
  if (owner_ == ::getpid()) drop_all();
}

std::vector<Part> ChannelHandle::take(std::chrono::milliseconds wait) {
  // A thread of the parent may have held the channel's mutex.
  if (owner_ != ::getpid()) throw Forked{owner_};
  return channel_->take(wait);
}

void ChannelHandle::drop(Key key) {
  if (owner_ == ::getpid()) cancel(channel_->drop(key));
}

void ChannelHandle::drop_all() {
  if (owner_ == ::getpid()) cancel(channel_->drop_all());
}

int ChannelHandle::descriptor() {
  if (owner_ != ::getpid()) throw Forked{owner_};
  return channel_->descriptor();
}

void ChannelHandle::cancel(const std::vector<RequestId>& running) const {
  const std::shared_ptr<Engine> engine = engine_.lock();
  if (engine == nullptr) return;  // closed, which ends all requests
  for (const RequestId id : running) engine->cancel(id);
}

std::string EngineHandle::render(const std::string& body, const std::string& chat_template) {
  const std::shared_ptr<Engine> engine = use();
  const ChatPrompt prompt = binding::read_conversation(*engine, body);
  return chat_template.empty() ? engine->render_chat(prompt) : templates_.render(prompt, chat_template);
}

}  // namespace sluice::python
