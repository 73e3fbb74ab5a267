// The extension module sluice._core: what the package's Python code calls. Its stubs are in python/sluice/_core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "base/log.h"
#include "binding/engine_options.h"
#include "binding/requests.h"
#include "convert.h"
#include "engine.h"
#include "sluice/sampling_parameters.h"
#include "sluice/version.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sluice::python {
namespace {

// Calls that have let go of the interpreter's lock and will take it again.
std::atomic<int> unlocked_calls{0};

struct Counted {
  Counted() { ++unlocked_calls; }
  ~Counted() { --unlocked_calls; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

// Frees the interpreter's lock in its scope.
struct Unlocked {
  Counted counted;  // until the lock is held again
  nb::gil_scoped_release release;
};

std::unique_ptr<EngineHandle> load(const std::string& model, const EngineHandle::Options& options,
                                   std::vector<std::string>& notes) {
  const Unlocked unlocked;
  return std::make_unique<EngineHandle>(model, options, notes);
}

nb::tuple open_engine(const std::string& model, const EngineHandle::Options& options) {
  std::vector<std::string> notes;
  std::unique_ptr<EngineHandle> handle = load(model, options, notes);
  return nb::make_tuple(nb::cast(std::move(handle)), notes);
}

nb::tuple submit(EngineHandle& handle, const Request& request, const Prompt& prompt, bool add_special_tokens,
                 const ChannelHandle& channel, Key key, bool stream) {
  EngineHandle::Submitted submitted{};
  {
    const Unlocked unlocked;
    submitted = handle.submit(request, prompt, add_special_tokens, channel.channel(), key, stream);
  }
  return nb::make_tuple(submitted.id, to_list(submitted.tokens));
}

using Pair = std::pair<Prompt, std::optional<std::string>>;

nb::tuple submit_pooling(EngineHandle& handle, const std::vector<Pair>& pairs, const std::string& options,
                         const ChannelHandle& channel, Key key) {
  std::vector<std::vector<TokenId>> tokens;
  RequestId id = 0;
  {
    const Unlocked unlocked;
    std::vector<binding::PoolingInput> inputs;
    inputs.reserve(pairs.size());
    for (const auto& [text, pair] : pairs) inputs.push_back({.text = text, .pair = pair});
    id = handle.submit_pooling(inputs, options, channel.channel(), key, tokens);
  }
  nb::list lists;
  for (const std::vector<TokenId>& list : tokens) lists.append(to_list(list));
  return nb::make_tuple(id, lists);
}

nb::list take(ChannelHandle& handle, double wait_s) {
  std::vector<Part> parts;
  {
    const Unlocked unlocked;
    parts = handle.take(std::chrono::milliseconds(std::lround(wait_s * 1000)));
  }
  nb::list out;
  for (Part& part : parts) out.append(to_python(std::move(part)));
  return out;
}

Request make_request(EngineHandle& handle, const std::string& body, const std::string& adapter, int priority) {
  const auto engine = handle.use();
  Request request = binding::read_sampling(*engine, body, {});
  request.adapter = adapter;
  request.priority = priority;
  return request;
}

// Waits until no other call is without the interpreter's lock, at most so long. Called when the interpreter ends: a
// call that wanted the lock back later would end its thread in the middle of C++.
void wait_for_calls(double wait_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (unlocked_calls.load() > 0 && std::chrono::steady_clock::now() < end) {
    const nb::gil_scoped_release release;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

nb::list sampling_parameters() {
  nb::list out;
  const SamplingParams defaults;
  for (const SamplingParameter& row : kSamplingParameters) {
    const double value = row.of(defaults);
    nb::object initial = nb::float_(value);
    if (row.is_integer()) initial = nb::int_(static_cast<int64_t>(value));
    out.append(nb::make_tuple(std::string(row.name), initial, std::string(row.help)));
  }
  return out;
}

nb::list engine_options() {
  constexpr const char* kTakes[] = {"flag", "value", "optional", "list"};
  nb::list out;
  for (const binding::OptionName& option : binding::list_engine_options()) {
    out.append(nb::make_tuple(option.words, kTakes[static_cast<int>(option.takes)], option.help));
  }
  return out;
}

void add_engine(nb::module_& m) {
  nb::class_<Request>(m, "Request");
  nb::class_<ChannelHandle>(m, "Channel")
      .def("take", &take, "wait_s"_a)
      .def("drop", &ChannelHandle::drop, "key"_a)
      .def("drop_all", &ChannelHandle::drop_all)
      .def("descriptor", &ChannelHandle::descriptor);
  nb::class_<EngineHandle>(m, "Engine", nb::is_weak_referenceable())
      .def("close", &EngineHandle::close, nb::call_guard<Unlocked>())
      .def("channel", &EngineHandle::channel)
      .def("model", [](EngineHandle& e) { return to_python(e.use()->model()); })
      .def("request", &make_request, "body"_a, "adapter"_a = "", "priority"_a = 0)
      .def("submit", &submit, "request"_a, "prompt"_a, "add_special_tokens"_a, "channel"_a, "key"_a, "stream"_a)
      .def("submit_pooling", &submit_pooling, "texts"_a, "options"_a, "channel"_a, "key"_a)
      .def(
          "cancel", [](EngineHandle& e, RequestId id) { e.cancel(id); }, "id"_a)
      .def("render", &EngineHandle::render, "body"_a, "chat_template"_a = "", nb::call_guard<Unlocked>())
      .def(
          "tokenize",
          [](EngineHandle& e, const std::string& text, bool special) { return e.use()->tokenize(text, special); },
          "text"_a, "add_special_tokens"_a, nb::call_guard<Unlocked>())
      .def(
          "detokenize",
          [](EngineHandle& e, const std::vector<TokenId>& tokens, bool skip) {
            const std::string text = e.use()->detokenize(tokens, skip);
            return nb::bytes(text.data(), text.size());
          },
          "tokens"_a, "skip_special_tokens"_a)
      .def(
          "token_text", [](EngineHandle& e, TokenId id) { return e.use()->token_text(id); }, "id"_a)
      .def(
          "token_bytes",
          [](EngineHandle& e, TokenId id) {
            const std::string bytes = e.use()->token_bytes(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "id"_a)
      .def(
          "load_adapter",
          [](EngineHandle& e, const std::string& name, const std::string& folder) {
            e.use()->load_adapter(name, folder);
          },
          "name"_a, "folder"_a, nb::call_guard<Unlocked>())
      .def("adapters",
           [](EngineHandle& e) {
             std::vector<std::pair<std::string, std::string>> out;
             for (const AdapterInfo& adapter : e.use()->adapters()) out.emplace_back(adapter.name, adapter.folder);
             return out;
           })
      .def("healthy", [](EngineHandle& e) { return e.use()->health().alive; })
      .def("unfinished", [](EngineHandle& e) {
        const Health health = e.use()->health();
        return health.running + health.waiting;
      });
}

}  // namespace
}  // namespace sluice::python

NB_MODULE(_core, m) {
  using namespace sluice::python;  // NOLINT(google-build-using-namespace)
  // Engines that a program forgets are freed when it ends; that is no mistake of this module.
  nb::set_leak_warnings(false);
  sluice::log::set_level(sluice::log::Level::kWarning);
  add_errors(m);
  add_engine(m);
  m.attr("__version__") = sluice::kVersion;
  m.def("open_engine", &open_engine, "model"_a, "options"_a);
  m.def("engine_options", &engine_options);
  m.def("sampling_parameters", &sampling_parameters);
  m.def(
      "check_sampling", [](const std::string& body) { sluice::binding::check_sampling(body); }, "body"_a);
  m.def("wait_for_calls", &wait_for_calls, "wait_s"_a);
  m.def(
      "set_log_level", [](const std::string& name) { sluice::log::set_level(std::string_view(name)); }, "name"_a);
}
