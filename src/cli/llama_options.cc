// The options of llama.cpp's `llama-server` and the variables of Ollama, llama.cpp and vLLM, and what becomes of each.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "cli/foreign_options.h"
#include "cli/usage_error.h"

namespace sluice::cli {
namespace {

using enum ForeignOption::Kind;
using enum ForeignOption::Takes;

constexpr std::string_view kSampling = "send it with requests, or give --override-generation-config";
constexpr std::string_view kNoSplit = "one device computes the model; choose it with --device";
constexpr std::string_view kRope = "the model's configuration tells its positions";
constexpr std::string_view kDraft = "speculative decoding is not built in; leave the option out";
constexpr std::string_view kImages = "models read text only; leave the option out";
constexpr std::string_view kMapped = "files of weights are mapped, and packed into memory";
constexpr std::string_view kBlocks = "cached prefixes are found by their tokens, whatever request they come from";

std::string cache_type(const std::string& value) {
  if (value == "f32") return "float32";
  if (value == "f16") return "float16";
  if (value == "bf16") return "bfloat16";
  throw UsageError(
      fmt::format("--cache-type-k, --cache-type-v: '{}' is not supported (expected one of: f32, f16, bf16; or "
                  "--kv-cache-dtype int8 or fp8)",
                  value));
}

std::string default_is_zero(const std::string& value) { return value == "-1" ? "0" : value; }

// The reader of options takes k as a thousand.
std::string seconds_as_ms(const std::string& value) { return value + "k"; }

constexpr ForeignOption kOptions[] = {
    {"model", kValue, kWorks, "model", "a file, a folder or org/name", "-m"},
    {"hf-repo", kValue, kWorks, "model", "org/name, or org/name:Q4_K_M", "-hf -hfr --hf"},
    {"hf-file", kValue, kRefused, "", "name the type in the model: -hf org/name:Q4_K_M", "-hff"},
    {"hf-token", kValue, kWorks, "hf-token", "the same as the variable HF_TOKEN", "-hft"},
    {"model-url", kValue, kRefused, "", "download the file and give its path", "-mu"},
    {"offline", kFlag, kRefused, "", "set HF_HUB_OFFLINE=1", "", "off"},
    {"alias", kValue, kWorks, "served-model-name", "", "-a"},
    {"models-max", kValue, kWorks, "max-loaded-models", ""},
    {"sleep-idle-seconds", kValue, kWorks, "model-idle-seconds", "-1 is 0: never", "", "", default_is_zero},
    {"ctx-size", kValue, kWorks, "max-model-len", "tokens of one sequence; 0 is the model's limit", "-c"},
    {"parallel", kValue, kWorks, "max-num-seqs", "-1 is 0", "-np", "", default_is_zero},
    {"gpu-layers", kValue, kRefused, "", "all layers run on one device; --backend and --device choose it",
     "-ngl --n-gpu-layers", "all auto -1 99 999 9999"},
    {"batch-size", kValue, kWorks, "max-num-batched-tokens", "", "-b"},
    {"ubatch-size", kValue, kRefused, "", "--max-num-batched-tokens bounds a step", "-ub"},
    {"threads", kValue, kWorks, "threads", "-1 is 0: every CPU", "-t", "", default_is_zero},
    {"threads-batch", kValue, kRefused, "", "--threads is for prompts, too", "-tb", "-1"},
    {"threads-http", kValue, kWorks, "worker-threads", "-1 is 0", "", "", default_is_zero},
    {"predict", kValue, kRefused, "", "send max_tokens with requests", "-n --n-predict", "-1"},
    {"keep", kValue, kRefused, "", "contexts are never shifted", "", "0"},
    {"context-shift", kFlag, kRefused, "", "a request that exceeds the context ends", "", "off"},
    {"flash-attn", kOptional, kNothing, "", "attention is always computed block by block", "-fa"},
    {"cache-type-k", kValue, kWorks, "kv-cache-dtype", "f16, bf16 or f32", "-ctk", "", cache_type},
    {"cache-type-v", kValue, kWorks, "kv-cache-dtype", "f16, bf16 or f32", "-ctv", "", cache_type},
    {"mlock", kFlag, kRefused, "", "run the server with a limit on swap (systemd: MemorySwapMax=0)", "", "off"},
    {"mmap", kFlag, kNothing, "", kMapped},
    {"numa", kValue, kWorks, "numa", "distribute and isolate are auto", "", "",
     [](const std::string& value) { return value == "distribute" || value == "isolate" ? "auto" : value; }},
    {"device", kValue, kWorks, "backend", "", "-dev"},
    {"split-mode", kValue, kRefused, "", kNoSplit, "-sm", "none layer"},
    {"tensor-split", kValue, kRefused, "", kNoSplit, "-ts"},
    {"main-gpu", kValue, kWorks, "device", "", "-mg"},
    {"override-tensor", kValue, kRefused, "", kNoSplit, "-ot"},
    {"cpu-moe", kFlag, kRefused, "", kNoSplit, "-cmoe", "off"},
    {"n-cpu-moe", kValue, kRefused, "", kNoSplit, "-ncmoe", "0"},
    {"fit", kValue, kNothing, "", "memory is planned before the load; a model that does not fit is refused", "-fit"},
    {"lora", kValue, kRefused, "", "give --lora-modules name=folder"},
    {"lora-scaled", kValue, kRefused, "", "give --lora-modules name=folder"},
    {"control-vector", kValue, kRefused, "", "adapters change a model: --lora-modules"},
    {"mmproj", kValue, kRefused, "", kImages, "-mm"},
    {"mmproj-auto", kFlag, kNothing, "", "only the part for text is loaded"},
    {"mmproj-offload", kFlag, kNothing, "", "only the part for text is loaded"},
    {"model-draft", kValue, kRefused, "", kDraft, "-md"},
    {"draft-max", kValue, kRefused, "", kDraft, "--draft --draft-n"},
    {"draft-min", kValue, kRefused, "", kDraft, "--draft-n-min"},
    {"draft-p-min", kValue, kRefused, "", kDraft},
    {"rope-scaling", kValue, kRefused, "", kRope},
    {"rope-scale", kValue, kRefused, "", kRope},
    {"rope-freq-base", kValue, kRefused, "", kRope},
    {"rope-freq-scale", kValue, kRefused, "", kRope},
    {"yarn-orig-ctx", kValue, kRefused, "", kRope},
    {"cont-batching", kFlag, kRefused, "", "requests join and leave at every step", "-cb -nocb", "on"},
    {"cache-prompt", kFlag, kWorks, "enable-prefix-caching", ""},
    {"cache-reuse", kValue, kNothing, "", kBlocks},
    {"cache-ram", kValue, kNothing, "", kBlocks, "-cram"},
    {"slot-prompt-similarity", kValue, kNothing, "", kBlocks, "-sps"},
    {"kv-unified", kFlag, kNothing, "", "all sequences share one pool of blocks", "-kvu"},
    {"swa-full", kFlag, kNothing, "", "windows keep what the prefix cache needs"},
    {"slots", kFlag, kNothing, "", "/metrics and /load tell what runs"},
    {"slot-save-path", kValue, kRefused, "", "the prefix cache keeps prompts while the server runs"},
    {"metrics", kFlag, kNothing, "", "/metrics always answers"},
    {"props", kFlag, kRefused, "", "properties cannot be changed over HTTP", "", "off"},
    {"webui", kFlag, kNothing, "", "the web page is always there"},
    {"path", kValue, kRefused, "", "the program has the files of its page"},
    {"api-prefix", kValue, kRefused, "", "let the proxy remove the prefix from the path"},
    {"timeout", kValue, kWorks, "body-timeout-ms", "in seconds", "-to", "", seconds_as_ms},
    {"ssl-key-file", kValue, kWorks, "ssl-keyfile", ""},
    {"ssl-cert-file", kValue, kWorks, "ssl-certfile", ""},
    {"embedding", kFlag, kWorks, "task=embed", "", "--embeddings"},
    {"reranking", kFlag, kWorks, "task=score", "", "--rerank"},
    {"pooling", kValue, kRefused, "", "the checkpoint tells the pooling (embeddings.md)"},
    {"jinja", kFlag, kNothing, "", "chat templates are always rendered"},
    {"chat-template-file", kValue, kWorks, "chat-template", ""},
    {"chat-template-kwargs", kJson, kWorks, "default-chat-template-kwargs", ""},
    {"reasoning-format", kValue, kRefused, "", "--reasoning-parser finds thoughts; none leaves them", "", "auto"},
    {"reasoning-budget", kValue, kRefused, "", "send reasoning_effort with requests", "", "-1"},
    {"prefill-assistant", kFlag, kRefused, "", "answers never continue a message; leave the option out", "", "off"},
    {"warmup", kFlag, kNothing, "", "the first request needs no warm-up"},
    {"verbose", kFlag, kWorks, "log-level=debug", "", "-v --log-verbose"},
    {"log-disable", kFlag, kWorks, "log-level=off", ""},
    {"log-file", kValue, kRefused, "", "redirect standard error"},
    {"log-colors", kOptional, kNothing, "", "a terminal gets colours, a file does not"},
    {"log-timestamps", kFlag, kNothing, "", "every line has its time"},
    {"log-prefix", kFlag, kNothing, "", "every line has its level"},
    {"temp", kValue, kRefused, "", kSampling, "--temperature"},
    {"top-k", kValue, kRefused, "", kSampling},
    {"top-p", kValue, kRefused, "", kSampling},
    {"min-p", kValue, kRefused, "", kSampling},
    {"repeat-penalty", kValue, kRefused, "", kSampling},
    {"presence-penalty", kValue, kRefused, "", kSampling},
    {"frequency-penalty", kValue, kRefused, "", kSampling},
    {"samplers", kValue, kRefused, "", "requests choose what is applied"},
    {"grammar", kValue, kRefused, "", "send it with requests (structured-output.md)"},
    {"grammar-file", kValue, kRefused, "", "send it with requests (structured-output.md)"},
    {"json-schema", kValue, kRefused, "", "send it with requests (structured-output.md)", "-j"},
};

// "host", "host:port", ":port", "http://host:port", "[::1]:port"
std::vector<std::string> address(const std::string& value) {
  std::string_view rest = value;
  if (rest.starts_with("http://")) rest.remove_prefix(7);
  if (rest.starts_with("https://")) throw UsageError("OLLAMA_HOST: for TLS, give --ssl-certfile and --ssl-keyfile");
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const size_t bracket = rest.find(']');
  const size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = rest.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  std::vector<std::string> words;
  if (!host.empty()) words.push_back(fmt::format("--host={}", host));
  words.push_back(colon == std::string_view::npos ? "--port=11434" : fmt::format("--port={}", rest.substr(colon + 1)));
  return words;
}

std::vector<std::string> origins(const std::string& value) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= value.size();) {
    const size_t comma = std::min(value.find(',', at), value.size());
    if (comma > at) words.push_back("--allowed-origins=" + value.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

constexpr ForeignVariable kVariables[] = {
    {"VLLM_API_KEY", "api-key"},
    {"OLLAMA_HOST", "host, port", "HOST, HOST:PORT or a URL; the port is 11434 unless it is given", address},
    {"OLLAMA_ORIGINS", "allowed-origins", "separated by commas", origins},
    {"OLLAMA_CONTEXT_LENGTH", "max-model-len"},
    {"OLLAMA_NUM_PARALLEL", "max-num-seqs"},
    {"OLLAMA_MAX_QUEUE", "max-num-queued-reqs"},
    {"OLLAMA_MAX_LOADED_MODELS", "max-loaded-models"},
    {"LLAMA_ARG_MODEL", "model"},
    {"LLAMA_ARG_HF_REPO", "model"},
    {"LLAMA_ARG_HOST", "host"},
    {"LLAMA_ARG_PORT", "port"},
    {"LLAMA_ARG_CTX_SIZE", "max-model-len"},
    {"LLAMA_ARG_N_PARALLEL", "max-num-seqs"},
    {"LLAMA_ARG_THREADS", "threads"},
    {"LLAMA_ARG_ALIAS", "served-model-name"},
    {"LLAMA_API_KEY", "api-key"},
};

}  // namespace

std::span<const ForeignOption> llama_options() { return kOptions; }

std::span<const ForeignVariable> foreign_variables() { return kVariables; }

}  // namespace sluice::cli
