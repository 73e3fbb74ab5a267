// The C API's functions of engines, tokens and vectors; c_generation.cc has those of generations.
#include "binding/c_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "binding/c_status.h"
#include "binding/engine_options.h"
#include "binding/pooling.h"
#include "binding/requests.h"
#include "sluice/version.h"

namespace sluice::binding {
namespace {

// Runs work on an engine that this process may use.
template <class Work>
sluice_status with_engine(const sluice_engine* handle, std::initializer_list<Pointer> pointers,
                          const Work& work) noexcept {
  return guard([&] {
    expect_pointers({{handle, "engine"}});
    expect_pointers(pointers);
    if (handle->forked()) return fail(SLUICE_FORKED, "The engine belongs to the parent process.");
    return work(*handle->engine);
  });
}

std::string info_text(const ModelInfo& model) {
  return dump_json({{"name", model.name},
                    {"family", model.family},
                    {"dtype", model.dtype},
                    {"backend", model.backend},
                    {"task", to_string(model.task)},
                    {"parameters", model.parameters},
                    {"max_model_len", model.max_model_len},
                    {"vocab_size", model.vocab_size},
                    {"vector_size", model.vector_size},
                    {"has_chat_template", model.has_chat_template},
                    {"eos_token_ids", model.eos_token_ids}});
}

std::vector<NamedOption> named(const sluice_option* options, size_t count) {
  std::vector<NamedOption> out;
  for (size_t i = 0; i < count; ++i) {
    expect_pointers({{options[i].name, "options[].name"}, {options[i].value, "options[].value"}});
    out.push_back({options[i].name, options[i].value});
  }
  return out;
}

// The vectors of a result, one after the other.
sluice_vectors flat(const PoolingResult& result) {
  sluice_vectors out{.data = nullptr,
                     .rows = result.vectors.size(),
                     .width = result.vectors.front().size(),
                     .prompt_tokens = result.prompt_tokens};
  out.data = allocate<float>(out.rows * out.width);
  float* at = out.data;
  for (const std::vector<float>& vector : result.vectors) at = std::copy(vector.begin(), vector.end(), at);
  return out;
}

}  // namespace
}  // namespace sluice::binding

using namespace sluice::binding;  // NOLINT(google-build-using-namespace): what follows is the C API

uint32_t sluice_abi_version(void) { return SLUICE_ABI_VERSION; }
const char* sluice_version(void) { return sluice::kVersion; }
void sluice_free(void* memory) { std::free(memory); }

sluice_status sluice_engine_open(const char* model, const sluice_option* options, size_t count,
                                 sluice_engine** engine) {
  return guard([&] {
    expect_pointers({{model, "model"}, {engine, "engine"}});
    if (count > 0) expect_pointers({{options, "options"}});
    std::vector<std::string> notes;
    const std::vector<NamedOption> list = named(options, count);
    const sluice::EngineOptions parsed = read_engine_options(model, list, notes);
    for (const std::string& note : notes) sluice::log::info("{}", note);
    auto handle = std::make_unique<sluice_engine>();
    handle->engine = sluice::Engine::load(parsed);
    handle->link = std::make_shared<EngineLink>();
    handle->link->engine = handle->engine.get();
    *engine = handle.release();
    return SLUICE_OK;
  });
}

void sluice_engine_close(sluice_engine* engine) {
  if (engine == nullptr || engine->forked()) return;  // the threads of a parent's engine are not here to be ended
  {
    const std::scoped_lock lock(engine->link->mutex);
    engine->link->engine = nullptr;
  }
  delete engine;
}

sluice_status sluice_engine_info(const sluice_engine* engine, char** json) {
  return with_engine(engine, {{json, "json"}}, [&](sluice::Engine& e) {
    *json = copy_text(info_text(e.model()));
    return SLUICE_OK;
  });
}

sluice_status sluice_adapter_load(sluice_engine* engine, const char* name, const char* folder) {
  return with_engine(engine, {{name, "name"}, {folder, "folder"}}, [&](sluice::Engine& e) {
    e.load_adapter(name, folder);
    return SLUICE_OK;
  });
}

sluice_status sluice_adapter_unload(sluice_engine* engine, const char* name) {
  return with_engine(engine, {{name, "name"}}, [&](sluice::Engine& e) {
    if (e.unload_adapter(name)) return SLUICE_OK;
    return fail(SLUICE_NOT_FOUND, "No adapter has this name.", "name");
  });
}

sluice_status sluice_tokenize(const sluice_engine* engine, const char* text, size_t bytes, int add_special_tokens,
                              int32_t** tokens, size_t* count) {
  return with_engine(engine, {{text, "text"}, {tokens, "tokens"}, {count, "count"}}, [&](sluice::Engine& e) {
    const std::vector<sluice::TokenId> ids = e.tokenize({text, bytes}, add_special_tokens != 0);
    *tokens = allocate<int32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), *tokens);
    *count = ids.size();
    return SLUICE_OK;
  });
}

sluice_status sluice_detokenize(const sluice_engine* engine, const int32_t* tokens, size_t count,
                                int skip_special_tokens, char** text, size_t* bytes) {
  return with_engine(engine, {{text, "text"}}, [&](sluice::Engine& e) {
    if (count > 0) expect_pointers({{tokens, "tokens"}});
    const std::string out = e.detokenize({tokens, count}, skip_special_tokens != 0);
    *text = copy_text(out);
    if (bytes != nullptr) *bytes = out.size();
    return SLUICE_OK;
  });
}

sluice_status sluice_render_chat(const sluice_engine* engine, const char* request_json, char** text) {
  return with_engine(engine, {{request_json, "request_json"}, {text, "text"}}, [&](sluice::Engine& e) {
    *text = copy_text(e.render_chat(read_conversation(e, request_json)));
    return SLUICE_OK;
  });
}

sluice_status sluice_embed(sluice_engine* engine, const char* const* texts, const char* const* pairs, size_t count,
                           const char* options_json, sluice_vectors* vectors) {
  return with_engine(engine, {{texts, "texts"}, {vectors, "vectors"}}, [&](sluice::Engine& e) {
    if (count == 0) return fail(SLUICE_INVALID_ARGUMENT, "count must be at least 1.", "count");
    std::vector<PoolingInput> inputs(count);
    for (size_t i = 0; i < count; ++i) {
      expect_pointers({{texts[i], "texts[]"}});
      inputs[i].text = texts[i];
      if (pairs == nullptr) continue;
      expect_pointers({{pairs[i], "pairs[]"}});
      inputs[i].pair = pairs[i];
    }
    *vectors = flat(embed(e, read_pooling(e, inputs, options_json != nullptr ? options_json : "")));
    return SLUICE_OK;
  });
}
