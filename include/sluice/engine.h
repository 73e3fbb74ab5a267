// The engine: the interface that the server, the command line and other programs use.
//
//   auto engine = sluice::Engine::load({.model = "models/minnow-6m"});
//   sluice::Request request{.prompt = engine->tokenize("Hello"), .sampling = {.max_tokens = 32}};
//   engine->submit(request, [](sluice::Event event) { std::fputs(sluice::event_text(event).c_str(), stdout); });
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sluice/error.h"
#include "sluice/metrics.h"
#include "sluice/options.h"
#include "sluice/pooling.h"
#include "sluice/request.h"

namespace sluice {

struct ModelInfo {
  std::string name{};     // name of the model's folder
  std::string path{};     // the folder or file
  std::string family{};   // "llama"
  std::string dtype{};    // type of the weight matrices
  std::string backend{};  // kernels in use
  int64_t parameters = 0;
  int max_model_len = 0;         // tokens of prompt and completion together
  bool context_shift = false;    // EngineOptions::context_shift
  int64_t kv_cache_tokens = 0;   // tokens that the KV cache holds; 0: the model has none
  std::string kv_cache_dtype{};  // type of cached keys and values
  int vocab_size = 0;            // width of the logits; requests may use the ids below it
  int prompt_vector_width = 0;   // width of Request::prompt_vectors; 0: requests may not have them
  std::vector<TokenId> eos_token_ids{};
  int64_t created = 0;  // seconds since 1970, when it was loaded
  bool has_chat_template = false;
  std::string tool_syntax{};              // how the model writes calls of tools ("hermes"); empty: not known
  std::string reasoning_syntax{};         // how the model marks its thoughts ("deepseek_r1"); empty: not known
  bool template_takes_effort = false;     // the chat template has the variable reasoning_effort
  bool template_takes_no_effort = false;  // and its value "none" turns thoughts off
  std::string thinking_switch{};  // the chat template's variable that turns thoughts on and off; empty: there is none
  Task task = Task::kGenerate;
  std::string embedding_pooling{};    // kGenerate: embed() pools hidden states so: "last", "mean"; empty: it refuses
  int vector_size = 0;                // dimensions of a vector, if it embeds; kScore: labels
  std::vector<std::string> labels{};  // kScore: their names; "LABEL_0" where the checkpoint has none
  // kEmbed: whether the model was trained so that leading dimensions are vectors, too; and the only numbers of them
  // that it was trained for (empty: any).
  bool matryoshka = false;
  std::vector<int> matryoshka_dimensions{};
  // kEmbed: texts to put before the input, by name, and the name of the default one (empty: none).
  std::map<std::string, std::string> prompts{};
  std::string default_prompt{};
  // Where other servers fetch keys and values of prompts, see KvTransfer; an empty host: nowhere.
  std::string kv_transfer_host{};
  int kv_transfer_port = 0;
  // Sampling defaults of the checkpoint's generation_config.json, for fields a request leaves out.
  SamplingParams default_sampling{};

  bool embeds() const { return task == Task::kEmbed || !embedding_pooling.empty(); }
};

struct AdapterInfo {
  std::string name{};
  std::string folder{};
  int rank = 0;
  std::string unscalable{};  // a module that allows no other Request::adapter_scale than 0 and 1; empty: none
};

// A conversation for the model's chat template, as JSON texts of the OpenAI API's fields.
struct ChatPrompt {
  std::string messages{};         // array
  std::string tools{};            // array, or empty
  std::string template_kwargs{};  // object of further template variables (chat_template_kwargs), or empty
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // the answer goes on with the last message; not with add_generation_prompt

  static ChatPrompt user(std::string_view text);  // one message of the user
};

// A turn of a conversation. The engine renders and tokenizes the prompt.
struct ChatRequest {
  Request request{};  // its prompt has the tokens of its modules, if it has any
  ChatPrompt chat{};
  bool add_special_tokens = false;  // templates write the special tokens themselves
};

// Receives events in order, on a thread of the engine. Must not block and must not throw. One sink serves one request.
using EventSink = std::function<void(Event)>;
using RequestId = uint64_t;

// This many requests in a row that end with a fault of the engine, and none that succeeds, make it unhealthy.
inline constexpr int kFailingAfter = 8;

struct Health {
  bool alive = false;             // idle, or a step finished lately; and not every request fails
  bool failed = false;            // a fault ended the engine: every request got an error, none will be taken
  std::string failure{};          // why: a process was lost; without `failed`: the replicas that are down; or empty
  double seconds_since_step = 0;  // since work was last seen to progress, 0 when idle
  int running = 0;                // sequences
  int waiting = 0;                // sequences that never ran
  bool preparing = false;         // captures graphs of large batches while no request waits; requests are served
  int errors_in_a_row = 0;        // requests that ended with a fault of the engine since the last one that succeeded
};

class Engine {
 public:
  // Loads a model: reads the configuration, checks the memory plan, packs the weights. Throws Error. `progress` is
  // called now and then with the share of the weights that are loaded, from 0 to 1; may be null.
  static std::unique_ptr<Engine> load(const EngineOptions& options, const std::function<void(double)>& progress = {});
  // What a load would make of the options, without reading weights. Throws what a load finds before it reads them.
  static ModelInfo describe(const EngineOptions& options);
  virtual ~Engine() = default;  // ends running requests with FinishReason::kAbort

  virtual const ModelInfo& model() const = 0;

  // Text to tokens and back. Thread-safe; they run on the caller's thread. Throw Error(kInvalidRequest).
  virtual std::vector<TokenId> tokenize(std::string_view text, bool add_special_tokens = true) const = 0;
  virtual std::string detokenize(std::span<const TokenId> tokens, bool skip_special_tokens = true) const = 0;
  virtual std::string token_text(TokenId token) const = 0;   // the vocabulary's spelling, with byte-level symbols
  virtual std::string token_bytes(TokenId token) const = 0;  // the bytes the token stands for
  virtual std::string render_chat(const ChatPrompt& chat) const = 0;
  // Vectors for Request::prompt_vectors from what torch.save wrote of a tensor [rows, width] or [1, rows, width] of a
  // floating-point type. No code of the file is run. Errors name `param`. Thread-safe, on the caller's thread.
  virtual std::shared_ptr<const PromptVectors> read_prompt_vectors(std::string_view /*file*/,
                                                                   const std::string& param) const {
    throw Error(ErrorCode::kInvalidRequest, "This model takes no vectors in place of token ids.", param, "");
  }
  // The settings of the tokenizer, with the chat template in use: an object as in Hugging Face's tokenizer_config.json.
  virtual std::string tokenizer_config() const { return "{}"; }

  // Validates and queues a request; events follow. Throws Error(kInvalidRequest) that names the field, or
  // Error(kOverloaded) at once when the queue is full or the engine is draining; then no event comes.
  virtual RequestId submit(Request request, EventSink sink) = 0;
  // The request that a conversation is. Renders and tokenizes on the caller's thread; throws what render_chat and
  // fit_context (sluice/context.h) throw.
  virtual Request chat_request(ChatRequest chat) const = 0;
  RequestId submit_chat(ChatRequest chat, EventSink sink) {
    return submit(chat_request(std::move(chat)), std::move(sink));
  }
  // The same for vectors and scores of texts; one result follows. A model refuses what it was not loaded for with
  // kInvalidRequest.
  virtual RequestId embed(PoolingRequest request, PoolingSink sink) = 0;
  // Tokens of a text, or of a pair of texts, for embed(), with what the model wants around them.
  virtual PooledText encode(std::string_view text, std::optional<std::string_view> pair,
                            const Truncation& truncation) const = 0;
  // Adapters (LoRA) of a model that was loaded with enable_lora; requests name them (Request::adapter). load_adapter
  // reads a folder in the format of Hugging Face's peft. It throws Error(kInvalidRequest) if the name is taken or the
  // engine has no adapters, and what a folder that cannot be used is: kNotFound, kCorruptFile, kUnsupportedModel.
  // Requests that run keep an adapter that is unloaded. Thread-safe.
  virtual void load_adapter(const std::string& /*name*/, const std::string& /*folder*/) {
    throw Error(ErrorCode::kInvalidRequest, "This model cannot have adapters.", "lora_name", "");
  }
  virtual bool unload_adapter(std::string_view /*name*/) { return false; }  // false: the name is unknown
  virtual std::vector<AdapterInfo> adapters() const { return {}; }

  // Forgets all cached prefixes: requests that are submitted afterwards find none of them. Requests that run keep what
  // they hold. Thread-safe.
  virtual void reset_prefix_cache() {}

  // The tenant's session needs its cached tokens no longer (Request::session). Unknown ones are ignored. Thread-safe.
  virtual void end_session(std::string_view /*tenant*/, std::string_view /*session*/) {}
  // The session's next turn comes soon: what it had in the prefix cache is loaded again, as far as it is kept outside
  // of the device and there is room (docs/sessions.md). Unknown ones are ignored. Thread-safe.
  virtual void prefetch_session(std::string_view /*tenant*/, std::string_view /*session*/) {}

  // Ends a request with FinishReason::kAbort; its blocks are free within one step. Unknown ids are ignored.
  virtual void cancel(RequestId id) = 0;

  // True when a further request would be refused with kOverloaded. Ask before any work is put into one.
  virtual bool overloaded() const = 0;
  virtual void stop_accepting() = 0;  // draining: later submits are refused, running requests go on
  virtual Health health() const = 0;  // never blocks on the engine
  virtual std::vector<MetricFamily> metrics() const = 0;
};

}  // namespace sluice
