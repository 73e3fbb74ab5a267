// The options of `vllm serve`, in the order of vLLM's own help, and what becomes of each.
#include <fmt/core.h>

#include <charconv>
#include <sstream>

#include "base/json.h"
#include "cli/foreign_options.h"
#include "cli/usage_error.h"
#include "ops/device.h"
#include "sluice/error.h"

namespace sluice::cli {
namespace {

using enum ForeignOption::Kind;
using enum ForeignOption::Takes;

constexpr std::string_view kOneProcess =
    "one server starts the replicas and ranks of its machine; on several, mpirun or srun start ranks (scale-out.md), "
    "and sluice route joins servers";
constexpr std::string_view kOneDevice =
    "one device computes the model; choose it with --device, or make the model smaller with --quantization";
constexpr std::string_view kBalance = "a key of --eplb-config has its place";
constexpr std::string_view kExperts =
    "leave the option out; --enable-expert-parallel divides experts between ranks (scale-out.md)";
constexpr std::string_view kText = "models read text only; leave the option out";
constexpr std::string_view kNoImages = "there are no images, audio or video to process";
constexpr std::string_view kNoPython = "there is no Python to load; leave the option out";
constexpr std::string_view kKernels = "the backend chooses its kernels; --backend chooses the backend";
constexpr std::string_view kNoCompiler = "kernels are compiled with the program, and graphs are captured as needed";
constexpr std::string_view kOverlap = "the backend overlaps work by itself; leave the option out";
constexpr std::string_view kGrammar = "one engine makes all grammars (structured-output.md)";
constexpr std::string_view kSpeculation =
    "leave the option out; the keys of --speculative-config say how tokens are drafted (speculative.md)";
constexpr std::string_view kTransfer = "caches and weights stay in one process; leave the option out";
constexpr std::string_view kOffload =
    "weights stay on the device; --packed-cache maps them from a file on a CPU, --quantization makes them smaller";
constexpr std::string_view kStates = "states of recurrent layers have the type and the blocks that their kernels need";
constexpr std::string_view kAdapters = "leave the option out; adapters.md says what adapters may change";
constexpr std::string_view kNoPool = "tokenizing runs on --worker-threads threads; leave the option out";

std::string float_type(const std::string& value) {
  return value == "half" ? "float16" : value == "float" ? "float32" : value;
}

std::string model_length(const std::string& value) { return value == "auto" || value == "-1" ? "0" : value; }

std::string task_name(const std::string& value) {
  if (value == "embedding") return "embed";
  if (value == "classify" || value == "reward" || value == "rerank") return "score";
  return value;
}

std::string converted_task(const std::string& value) {
  return value == "none" || value == "auto" ? "" : value == "classify" || value == "reward" ? "score" : value;
}

std::string runner_task(const std::string& value) { return value == "auto" ? "" : value; }

// "2" or "2,3": devices are used in order, from the first one.
std::string first_device(const std::string& value) {
  std::istringstream in(value);
  int first = -1, last = -1;
  for (std::string word; std::getline(in, word, ',');) {
    int id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    const bool follows = first < 0 || id == last + 1;
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || !follows) {
      throw UsageError(
          fmt::format("'{}' is not one number after the other, as in 2,3 (set CUDA_VISIBLE_DEVICES)", value));
    }
    if (first < 0) first = id;
    last = id;
  }
  if (first < 0 || value.ends_with(',')) throw UsageError(fmt::format("'{}' names no device at its end", value));
  return std::to_string(first);
}

std::string opposite(const std::string& value) { return value == "on" ? "off" : "on"; }

std::string log_level(const std::string& value) {
  return value == "trace" ? "debug" : value == "critical" ? "error" : value;
}

// `most` and the value are in the same unit, which has `scale` of ours.
std::string scaled(const std::string& value, double most, double scale, std::string_view unit) {
  size_t end = 0;
  double number = -1;
  try {
    number = std::stod(value, &end);
  } catch (const std::exception&) {
  }
  if (end != value.size() || !(number >= 0 && number <= most)) {
    throw UsageError(fmt::format("{} is out of range (expected 0 to {} {})", value, most, unit));
  }
  return std::to_string(static_cast<int64_t>(number * scale));
}

std::string milliseconds(const std::string& value) { return scaled(value, 86'400, 1000, "seconds"); }
std::string gibibytes(const std::string& value) { return scaled(value, 1 << 20, 1 << 30, "GiB"); }

// Older versions of vLLM name the method in place of a draft model.
std::vector<std::string> drafting_words(const std::string& value) {
  return {value == "[ngram]" ? "--speculative-config.method=ngram" : "--speculative-config.model=" + value};
}

// vLLM writes an adapter as name=path or as {"name": ..., "path": ...}.
std::string adapter(const std::string& value) {
  if (!value.starts_with('{')) return value;
  try {
    const Json json = parse_json(value);
    return json.at("name").get<std::string>() + "=" + json.at("path").get<std::string>();
  } catch (const std::exception&) {
    throw UsageError(
        fmt::format(R"('{}' is not an adapter (expected name=path or {{"name": NAME, "path": PATH}}))", value));
  }
}

// The backend's name, for vLLM's kinds of devices.
std::string device_backend(const std::string& value) {
  if (value == "auto") return "";
  if (value == "cpu") return std::string(ops::select_host_backend().name);
  return value;
}

std::string torch_files(const std::string& value) {
  if (value == "pt") return "true";
  if (value == "auto" || value == "safetensors" || value == "hf" || value == "gguf") return "";
  throw UsageError(fmt::format("'{}' is not supported (expected one of: auto, hf, safetensors, gguf, pt)", value));
}

std::string sampling_source(const std::string& value) {
  if (value == "auto" || value == "vllm" || value == "none") return value == "vllm" ? "none" : value;
  throw UsageError("a folder is not supported; give the values with --override-generation-config");
}

// vLLM starts ranks by multiprocessing (mp), runs one in its own process (uni), or leaves them to Ray or torchrun.
std::string executor(const std::string& value) {
  if (value == "local" || value == "mpi") return value;
  if (value == "mp" || value == "uni") return "local";
  throw UsageError(fmt::format(
      "'{}' is not supported (expected one of: local, mpi, mp, uni); mpi starts ranks on several machines", value));
}

constexpr ForeignOption kOptions[] = {
    // The command
    {"model", kValue, kWorks, "model", "the same as the argument MODEL"},
    {"config", kValue, kWorks, "config", ""},
    {"headless", kFlag, kRefused, "", kOneProcess, "", "off"},
    {"api-server-count", kValue, kNothing, "", "--io-threads and --worker-threads divide the work", "-asc"},
    {"grpc", kFlag, kRefused, "", "use HTTP, which all clients speak", "", "off"},
    {"tokens-only", kFlag, kRefused, "", "prompts of /v1/completions may be token ids", "", "off"},

    // The server
    {"host", kValue, kWorks, "host", "the default is 127.0.0.1, where vLLM listens on all addresses"},
    {"port", kValue, kWorks, "port", ""},
    {"uds", kValue, kRefused, "", "listen on 127.0.0.1 (--host), which only this machine reaches"},
    {"data-parallel-supervisor-port", kValue, kRefused, "", kOneProcess},
    {"dp-supervisor-probe-interval-s", kValue, kRefused, "", kOneProcess},
    {"dp-supervisor-probe-timeout-s", kValue, kRefused, "", kOneProcess},
    {"dp-supervisor-probe-failure-threshold", kValue, kRefused, "", kOneProcess},
    {"uvicorn-log-level", kValue, kWorks, "log-level", "trace is debug, critical is error", "", "", log_level},
    {"disable-uvicorn-access-log", kFlag, kNothing, "", "HTTP requests are logged at the level debug only"},
    {"disable-access-log-for-endpoints", kValue, kNothing, "", "HTTP requests are logged at the level debug only"},
    {"allow-credentials", kFlag, kRefused, "", "keys travel in headers; the server uses no cookies", "", "off"},
    {"allowed-origins", kList, kWorks, "allowed-origins", "no origin is allowed by default, in vLLM all are"},
    {"allowed-methods", kList, kNothing, "", "each route allows the methods that it has"},
    {"allowed-headers", kList, kNothing, "", "the headers that clients' libraries send are allowed"},
    {"api-key", kList, kWorks, "api-key", "every route but /health, /ping and the web page then needs a key"},
    {"ssl-keyfile", kValue, kWorks, "ssl-keyfile", ""},
    {"ssl-certfile", kValue, kWorks, "ssl-certfile", ""},
    {"ssl-ca-certs", kValue, kRefused, "", "put a proxy that checks clients' certificates in front"},
    {"ssl-cert-reqs", kValue, kRefused, "", "put a proxy that checks clients' certificates in front", "", "0"},
    {"ssl-ciphers", kValue, kRefused, "", "TLS 1.2 or newer with forward secrecy is used; leave the option out"},
    {"enable-ssl-refresh", kFlag, kRefused, "", "restart the server after a certificate changed", "", "off"},
    {"root-path", kValue, kRefused, "", "let the proxy remove the prefix from the path"},
    {"middleware", kList, kRefused, "", kNoPython},
    {"enable-request-id-headers", kFlag, kNothing, "", "every answer has the header X-Request-Id"},
    {"disable-frontend-multiprocessing", kFlag, kNothing, "", "the server is one process"},
    {"h11-max-incomplete-event-size", kValue, kWorks, "max-header-bytes", ""},
    {"h11-max-header-count", kValue, kRefused, "", "--max-header-bytes limits a header", "", "256"},
    {"shutdown-timeout", kValue, kWorks, "shutdown-timeout-ms", "in seconds", "", "", milliseconds},

    // Requests and answers
    {"lora-modules", kList, kWorks, "lora-modules", "", "", "", adapter},
    {"chat-template", kValue, kWorks, "chat-template", "a file, the template itself in one line, or its name", "", "",
     template_source},
    {"chat-template-content-format", kValue, kRefused, "", "the template tells the format", "", "auto"},
    {"trust-request-chat-template", kFlag, kRefused, "", "give the template with --chat-template", "", "off"},
    {"default-chat-template-kwargs", kJson, kWorks, "default-chat-template-kwargs", ""},
    {"response-role", kValue, kRefused, "", "answers have the role assistant", "", "assistant"},
    {"return-tokens-as-token-ids", kFlag, kRefused, "", "logprobs have the bytes of each token", "", "off"},
    {"enable-auto-tool-choice", kFlag, kWorks, "enable-auto-tool-choice", ""},
    {"exclude-tools-when-tool-choice-none", kFlag, kRefused, "", "leave 'tools' out of such requests", "", "off"},
    {"tool-call-parser", kValue, kWorks, "tool-call-parser", "by default, the chat template tells the syntax"},
    {"tool-parser-plugin", kValue, kRefused, "", kNoPython},
    {"tool-server", kValue, kRefused, "", "clients run the tools"},
    {"log-config-file", kValue, kRefused, "", "use --log-level and --log-format"},
    {"max-log-len", kValue, kNothing, "", "texts of requests are never logged"},
    {"enable-prompt-tokens-details", kFlag, kNothing, "", "usage always has prompt_tokens_details"},
    {"enable-per-request-metrics", kFlag, kRefused, "", "read the histograms of /metrics", "", "off"},
    {"enable-server-load-tracking", kFlag, kNothing, "", "/load always answers"},
    {"enable-force-include-usage", kFlag, kRefused, "", "send stream_options.include_usage", "", "off"},
    {"enable-tokenizer-info-endpoint", kFlag, kNothing, "", "/tokenizer_info always answers"},
    {"enable-log-outputs", kFlag, kRefused, "", "texts of answers are never logged", "", "off"},
    {"enable-log-deltas", kFlag, kNothing, "", "texts of answers are never logged"},
    {"log-error-stack", kFlag, kNothing, "", "errors of the server are always logged"},
    {"cohere-is-reasoning-model", kFlag, kRefused, "", "Cohere's chat API is not served", "", "on"},
    {"cohere-format", kValue, kRefused, "", "the chat template of the model is used"},
    {"fingerprint-mode", kValue, kRefused, "", "answers have no configurable fingerprint", "", "full none"},
    {"fingerprint-value", kValue, kRefused, "", "answers have no configurable fingerprint"},
    {"enable-flash-late-interaction", kFlag, kNothing, "", "scores are computed by the engine"},

    // Model
    {"runner", kValue, kWorks, "task", "--convert and --task go before it", "", "", runner_task},
    {"convert", kValue, kWorks, "task", "classify is score", "", "", converted_task},
    {"task", kValue, kWorks, "task", "classify and reward are score", "", "", task_name},
    {"tokenizer", kValue, kWorks, "tokenizer", "a folder, a file or org/name"},
    {"tokenizer-mode", kValue, kRefused, "", "the files of the model tell the tokenizer", "", "auto hf slow"},
    {"trust-remote-code", kFlag, kNothing, "", "no code of a model is ever run"},
    {"dtype", kValue, kWorks, "dtype", "half is float16, float is float32", "", "", float_type},
    {"seed", kValue, kWorks, "seed", ""},
    {"hf-config-path", kValue, kRefused, "", "put config.json into the model's folder"},
    {"allowed-local-media-path", kValue, kRefused, "", kText},
    {"allowed-media-domains", kList, kRefused, "", kText},
    {"revision", kValue, kWorks, "model", "MODEL is then org/name:REVISION"},
    {"code-revision", kValue, kNothing, "", "no code of a model is ever run"},
    {"tokenizer-revision", kValue, kRefused, "", "give --tokenizer org/name:REVISION"},
    {"rope-scaling", kJson, kRefused, "", "set rope_scaling in the model's config.json", "", "{}"},
    {"rope-theta", kValue, kRefused, "", "set rope_theta in the model's config.json"},
    {"max-model-len", kValue, kWorks, "max-model-len", "auto and -1 are 0", "", "", model_length},
    {"quantization", kValue, kWorks, "quantization", "the checkpoint's method, or a format to convert to", "-q"},
    {"quantization-config", kJson, kRefused, "", "the checkpoint tells its quantization", "", "{}"},
    {"quantization-param-path", kValue, kRefused, "", "scales are read from the checkpoint"},
    {"allow-deprecated-quantization", kFlag, kNothing, "", "checkpoints.md lists the methods that are read"},
    {"enforce-eager", kFlag, kNothing, "", "nothing is compiled; answers are the same with and without graphs"},
    {"enable-return-routed-experts", kFlag, kRefused, "", "chosen experts are not reported", "", "off"},
    {"max-logprobs", kValue, kRefused, "", "requests may ask for up to 20; clients can ask for fewer", "", "20"},
    {"logprobs-mode", kValue, kRefused, "", "logprobs are those before penalties", "", "raw_logprobs"},
    {"disable-sliding-window", kFlag, kRefused, "", "--max-model-len limits the context to the window", "", "off"},
    {"disable-cascade-attn", kFlag, kNothing, "", "attention never depends on other requests"},
    {"skip-tokenizer-init", kFlag, kRefused, "", "the server needs the tokenizer; prompts may be ids", "", "off"},
    {"enable-prompt-embeds", kFlag, kWorks, "enable-prompt-embeds", "not for models whose layers read token ids"},
    {"served-model-name", kList, kWorks, "served-model-name", ""},
    {"config-format", kValue, kRefused, "", "config.json or GGUF is read", "", "auto hf"},
    {"hf-token", kOptional, kWorks, "hf-token", "the same as the variable HF_TOKEN"},
    {"hf-overrides", kJson, kRefused, "", "change the model's config.json", "", "{}"},
    {"pooler-config", kJson, kRefused, "", "the checkpoint tells the pooling (embeddings.md)", "", "{}"},
    {"override-pooler-config", kJson, kRefused, "", "the checkpoint tells the pooling (embeddings.md)", "", "{}"},
    {"logits-processor-pattern", kValue, kRefused, "", kNoPython},
    {"logits-processors", kList, kRefused, "", kNoPython},
    {"io-processor-plugin", kValue, kRefused, "", kNoPython},
    {"generation-config", kValue, kWorks, "generation-config", "vllm is none", "", "", sampling_source},
    {"override-generation-config", kJson, kWorks, "override-generation-config", ""},
    {"enable-sleep-mode", kFlag, kRefused, "",
     "with --load-models-on-demand or --model-idle-seconds, /sleep unloads the model", "", "off"},
    {"model-impl", kValue, kRefused, "", "models.md lists the models that are built in", "", "auto vllm"},
    {"override-attention-dtype", kValue, kRefused, "", "--dtype sets the type of all computation"},
    {"renderer-num-workers", kValue, kWorks, "worker-threads", ""},
    {"disable-async-output-proc", kFlag, kNothing, "", "the front end is a thread beside the engine's"},
    {"tokenizer-pool-size", kValue, kRefused, "", kNoPool, "", "0"},
    {"tokenizer-pool-type", kValue, kRefused, "", kNoPool},
    {"tokenizer-pool-extra-config", kJson, kRefused, "", kNoPool},
    {"intial-incremental-detokenization-offset", kValue, kNothing, "", "text is decoded byte by byte"},

    // Loading
    {"load-format", kValue, kWorks, "allow-bin", "pt allows torch files", "", "", torch_files},
    {"download-dir", kValue, kWorks, "download-dir", "the same as the variable HF_HUB_CACHE"},
    {"safetensors-load-strategy", kValue, kNothing, "", "files are mapped, and read ahead where that helps"},
    {"safetensors-prefetch-num-threads", kValue, kNothing, "", "files are mapped, and read ahead where that helps"},
    {"safetensors-prefetch-block-size", kValue, kNothing, "", "files are mapped, and read ahead where that helps"},
    {"model-loader-extra-config", kJson, kRefused, "", "loading needs no settings", "", "{}"},
    {"ignore-patterns", kList, kNothing, "", "only files that a model needs are downloaded"},
    {"use-tqdm-on-load", kFlag, kNothing, "", "a terminal shows the progress, a log shows it now and then"},
    {"pt-load-map-location", kValue, kNothing, "", "tensors are read to the device that computes"},

    // Structured output and reasoning
    {"reasoning-parser", kValue, kWorks, "reasoning-parser", "by default, the chat template tells the syntax"},
    {"reasoning-parser-plugin", kValue, kRefused, "", kNoPython},
    {"reasoning-config", kJson, kRefused, "", "the reasoning parser knows the marks of thoughts", "", "{}"},
    {"enable-reasoning", kFlag, kNothing, "", "thoughts are found if the model's template tells their syntax"},
    {"structured-outputs-config", kJson, kNothing, "", kGrammar},
    {"guided-decoding-backend", kValue, kNothing, "", kGrammar},
    {"guided-decoding-disable-fallback", kFlag, kNothing, "", kGrammar},
    {"guided-decoding-disable-any-whitespace", kFlag, kRefused, "", "use a regex or a grammar", "", "off"},
    {"guided-decoding-disable-additional-properties", kFlag, kRefused, "",
     "write \"additionalProperties\": false in the schema", "", "off"},

    // Parallelism
    {"distributed-executor-backend", kValue, kWorks, "distributed-executor-backend",
     "mp and uni are local; mpi is for several machines; ray and external_launcher are refused", "", "", executor},
    {"pipeline-parallel-size", kValue, kWorks, "pipeline-parallel-size", "stages on several machines with mpi, on CPUs",
     "-pp"},
    {"master-addr", kValue, kRefused, "", kOneProcess},
    {"master-port", kValue, kRefused, "", kOneProcess},
    {"nnodes", kValue, kRefused, "", kOneProcess, "", "1"},
    {"node-rank", kValue, kRefused, "", kOneProcess, "-r", "0"},
    {"distributed-timeout-seconds", kValue, kRefused, "", kOneProcess},
    {"cpu-distributed-timeout-seconds", kValue, kRefused, "", kOneProcess},
    {"tensor-parallel-size", kValue, kWorks, "tensor-parallel-size",
     "processes of one machine, on CPUs of several with --distributed-executor-backend mpi", "-tp"},
    {"decode-context-parallel-size", kValue, kWorks, "decode-context-parallel-size", "", "-dcp"},
    {"prefill-context-parallel-size", kValue, kRefused, "", kOneDevice, "-pcp", "1"},
    {"dcp-kv-cache-interleave-size", kValue, kWorks, "cp-kv-cache-interleave-size", ""},
    {"cp-kv-cache-interleave-size", kValue, kWorks, "cp-kv-cache-interleave-size", ""},
    {"data-parallel-size", kValue, kWorks, "data-parallel-size", "replicas in one process", "-dp"},
    {"data-parallel-rank", kValue, kWorks, "data-parallel-rank", "", "-dpn"},
    {"data-parallel-start-rank", kValue, kRefused, "", kOneProcess, "-dpr", "0"},
    {"data-parallel-size-local", kValue, kRefused, "", kOneProcess, "-dpl", "1"},
    {"data-parallel-address", kValue, kRefused, "", kOneProcess, "-dpa"},
    {"data-parallel-rpc-port", kValue, kRefused, "", kOneProcess, "-dpp"},
    {"data-parallel-backend", kValue, kRefused, "", kOneProcess, "-dpb", "mp"},
    {"data-parallel-hybrid-lb", kFlag, kRefused, "", kOneProcess, "-dph", "off"},
    {"data-parallel-external-lb", kFlag, kRefused, "", kOneProcess, "-dpe", "off"},
    {"data-parallel-multi-port-external-lb", kFlag, kRefused, "", kOneProcess, "", "off"},
    {"enable-expert-parallel", kFlag, kWorks, "enable-expert-parallel", "with ranks (scale-out.md)", "-ep"},
    {"enable-ep-weight-filter", kFlag, kRefused, "", kExperts, "", "off"},
    {"enable-eplb", kFlag, kWorks, "enable-eplb", "with --enable-expert-parallel (scale-out.md)"},
    {"eplb-config", kJson, kWorks, "eplb-config", "use_async, policy and communicator have one value (scale-out.md)"},
    {"num-redundant-experts", kValue, kRefused, "", kBalance, "", "0"},
    {"eplb-window-size", kValue, kRefused, "", kBalance},
    {"eplb-step-interval", kValue, kRefused, "", kBalance},
    {"eplb-log-balancedness", kFlag, kRefused, "", kBalance, "", "off"},
    {"expert-placement-strategy", kValue, kRefused, "", kExperts, "", "linear"},
    {"enable-elastic-ep", kFlag, kRefused, "", kExperts, "", "off"},
    {"all2all-backend", kValue, kRefused, "", kExperts},
    {"enable-dbo", kFlag, kRefused, "", kOverlap, "", "off"},
    {"ubatch-size", kValue, kNothing, "",
     "it changes only the speed of vLLM; llama-server's: --batch-size bounds a step"},
    {"dbo-decode-token-threshold", kValue, kRefused, "", kOverlap},
    {"dbo-prefill-token-threshold", kValue, kRefused, "", kOverlap},
    {"disable-nccl-for-dp-synchronization", kFlag, kNothing, "", "one process has nobody to wait for"},
    {"max-parallel-loading-workers", kValue, kNothing, "", "one process loads the model"},
    {"ray-workers-use-nsight", kFlag, kRefused, "", "run nsys or ncu on sluice itself", "", "off"},
    {"worker-use-ray", kFlag, kRefused, "", kOneProcess, "", "off"},
    {"engine-use-ray", kFlag, kRefused, "", kOneProcess, "", "off"},
    {"disable-custom-all-reduce", kFlag, kNothing, "", "there is one kind of all-reduce"},
    {"worker-cls", kValue, kRefused, "", kNoPython, "", "auto"},
    {"worker-extension-cls", kValue, kRefused, "", kNoPython},
    {"enable-multimodal-encoder-data-parallel", kFlag, kRefused, "", kText, "", "off"},
    {"numa-bind", kFlag, kNothing, "", "threads and memory are bound to nodes; --numa sets how"},
    {"numa-bind-nodes", kList, kRefused, "", "run the server under numactl --cpunodebind"},
    {"numa-bind-cpus", kList, kRefused, "", "run the server under taskset"},
    {"device", kValue, kWorks, "backend", "auto, cuda or cpu; a number is the device's (--device)", "", "",
     device_backend},

    // Cache
    {"block-size", kValue, kWorks, "block-size", ""},
    {"gpu-memory-utilization", kValue, kWorks, "gpu-memory-utilization", "", "-gmu --device-memory-utilization"},
    {"kv-cache-memory-bytes", kValue, kWorks, "kv-cache-memory-bytes", "", "--kv-cache-memory"},
    {"swap-space", kValue, kNothing, "", "preempted requests are computed again from the prefix cache"},
    {"preemption-mode", kValue, kRefused, "", "preempted requests are computed again", "", "recompute"},
    {"kv-cache-dtype", kValue, kWorks, "kv-cache-dtype", ""},
    {"kv-cache-dtype-skip-layers", kList, kRefused, "", "all layers have the type of --kv-cache-dtype"},
    {"num-gpu-blocks-override", kValue, kRefused, "", "give the size with --kv-cache-memory-bytes"},
    {"enable-prefix-caching", kFlag, kWorks, "enable-prefix-caching", ""},
    {"prefix-caching-hash-algo", kValue, kNothing, "", "SHA-256 is used, and hits are compared token by token"},
    {"prefix-match-unit", kValue, kRefused, "", "--block-size is the unit"},
    {"cpu-offload-gb", kValue, kRefused, "", kOffload, "", "0"},
    {"cpu-offload-params", kList, kRefused, "", kOffload},
    {"offload-backend", kValue, kRefused, "", kOffload, "", "auto"},
    {"offload-group-size", kValue, kRefused, "", kOffload, "", "0"},
    {"offload-num-in-group", kValue, kRefused, "", kOffload, "", "1"},
    {"offload-prefetch-step", kValue, kRefused, "", kOffload, "", "1"},
    {"offload-params", kList, kRefused, "", kOffload},
    {"calculate-kv-scales", kFlag, kRefused, "", "--kv-cache-dtype int8 has a scale per vector", "", "off"},
    {"kv-sharing-fast-prefill", kFlag, kNothing, "", "it changes only the speed of vLLM"},
    {"mamba-cache-dtype", kValue, kRefused, "", kStates, "", "auto"},
    {"mamba-ssm-cache-dtype", kValue, kRefused, "", kStates, "", "auto"},
    {"mamba-block-size", kValue, kRefused, "", kStates},
    {"mamba-cache-mode", kValue, kRefused, "", kStates, "", "none"},
    {"mamba-backend", kValue, kNothing, "", kKernels},
    {"enable-mamba-cache-stochastic-rounding", kFlag, kRefused, "", kStates, "", "off"},
    {"mamba-cache-philox-rounds", kValue, kRefused, "", kStates, "", "0"},
    {"kv-offloading-size", kValue, kWorks, "kv-host-memory-bytes", "in GiB", "", "", gibibytes},
    {"kv-offloading-backend", kValue, kRefused, "", "there is one way to keep keys and values in host memory", "",
     "native"},
    {"use-v2-block-manager", kFlag, kNothing, "", "there is one manager of blocks"},

    // Images, audio and video
    {"limit-mm-per-prompt", kJson, kNothing, "", kNoImages},
    {"enable-mm-embeds", kFlag, kRefused, "", kText, "", "off"},
    {"interleave-mm-strings", kFlag, kRefused, "", kText, "", "off"},
    {"language-model-only", kFlag, kNothing, "", "only the part for text is loaded"},
    {"media-io-kwargs", kJson, kRefused, "", kText, "", "{}"},
    {"mm-processor-kwargs", kJson, kRefused, "", kText, "", "{}"},
    {"mm-processor-cache-gb", kValue, kNothing, "", kNoImages},
    {"disable-mm-preprocessor-cache", kFlag, kNothing, "", kNoImages},
    {"mm-processor-cache-type", kValue, kNothing, "", kNoImages},
    {"mm-shm-cache-max-object-size-mb", kValue, kNothing, "", kNoImages},
    {"mm-encoder-only", kFlag, kRefused, "", kText, "", "off"},
    {"mm-encoder-tp-mode", kValue, kNothing, "", kNoImages},
    {"mm-encoder-attn-backend", kValue, kNothing, "", kNoImages},
    {"mm-encoder-attn-dtype", kValue, kNothing, "", kNoImages},
    {"mm-encoder-fp8-scale-path", kValue, kRefused, "", kText},
    {"mm-encoder-fp8-scale-save-path", kValue, kRefused, "", kText},
    {"mm-encoder-fp8-scale-save-margin", kValue, kRefused, "", kText},
    {"mm-tensor-ipc", kValue, kNothing, "", kNoImages},
    {"mm-ipc-gpu-memory-gb", kValue, kNothing, "", kNoImages},
    {"skip-mm-profiling", kFlag, kNothing, "", kNoImages},
    {"video-pruning-rate", kValue, kRefused, "", kText, "", "0"},
    {"disable-chunked-mm-input", kFlag, kNothing, "", kNoImages},
    {"image-input-type", kValue, kRefused, "", kText},
    {"image-token-id", kValue, kRefused, "", kText},
    {"image-input-shape", kValue, kRefused, "", kText},
    {"image-feature-size", kValue, kRefused, "", kText},
    {"image-processor", kValue, kRefused, "", kText},
    {"image-processor-revision", kValue, kRefused, "", kText},
    {"disable-image-processor", kFlag, kNothing, "", kNoImages},
    {"diffusion-config", kJson, kRefused, "", kText},

    // Adapters
    {"enable-lora", kFlag, kWorks, "enable-lora", ""},
    {"max-loras", kValue, kWorks, "max-loras", ""},
    {"max-lora-rank", kValue, kWorks, "max-lora-rank", ""},
    {"max-cpu-loras", kValue, kWorks, "max-cpu-loras", ""},
    {"lora-dtype", kValue, kWorks, "lora-dtype", ""},
    {"lora-extra-vocab-size", kValue, kRefused, "", kAdapters, "", "0 256"},
    {"lora-target-modules", kList, kRefused, "", kAdapters},
    {"long-lora-scaling-factors", kValue, kRefused, "", kAdapters},
    {"enable-lora-bias", kFlag, kNothing, "", "biases of adapters are read"},
    {"fully-sharded-loras", kFlag, kNothing, "", "a rank has the part of an adapter that its part of a layer needs"},
    {"default-mm-loras", kJson, kRefused, "", kText, "", "{}"},
    {"specialize-active-lora", kFlag, kNothing, "", kNoCompiler},
    {"enable-tower-connector-lora", kFlag, kRefused, "", kText, "", "off"},
    {"enable-mixed-moe-lora-format", kFlag, kRefused, "", kAdapters, "", "off"},
    {"enable-moe-shared-loras", kFlag, kRefused, "", kAdapters, "", "off"},
    {"qlora-adapter-name-or-path", kValue, kRefused, "", "give --lora-modules name=path"},
    {"enable-prompt-adapter", kFlag, kRefused, "", kAdapters, "", "off"},
    {"prompt-adapters", kList, kRefused, "", kAdapters},
    {"max-prompt-adapters", kValue, kRefused, "", kAdapters},
    {"max-prompt-adapter-token", kValue, kRefused, "", kAdapters},

    // Observability
    {"show-hidden-metrics-for-version", kValue, kNothing, "", "no metric is hidden"},
    {"otlp-traces-endpoint", kValue, kRefused, "", "read the histograms of /metrics"},
    {"collect-detailed-traces", kList, kRefused, "", "sluice bench ops times a step op by op"},
    {"kv-cache-metrics", kFlag, kRefused, "", "/metrics has the use of the cache", "", "off"},
    {"kv-cache-metrics-sample", kValue, kRefused, "", "/metrics has the use of the cache"},
    {"cudagraph-metrics", kFlag, kRefused, "", "sluice bench ops times a step op by op", "", "off"},
    {"enable-layerwise-nvtx-tracing", kFlag, kRefused, "", "sluice bench ops times a step op by op", "", "off"},
    {"enable-mfu-metrics", kFlag, kRefused, "", "sluice bench ops shows the share of the machine", "", "off"},
    {"enable-logging-iteration-details", kFlag, kRefused, "", "read /metrics", "", "off"},
    {"jit-monitor-mode", kValue, kNothing, "", kNoCompiler},
    {"jit-monitor-verbose", kFlag, kNothing, "", kNoCompiler},
    {"disable-log-stats", kFlag, kNothing, "", "statistics are in /metrics, not in the log"},
    {"aggregate-engine-logging", kFlag, kNothing, "", "there is one engine"},
    {"profiler-config", kJson, kRefused, "", "sluice bench ops times a step op by op", "", "{}"},
    {"fail-on-environ-validation", kFlag, kNothing, "", "variables are checked like options"},

    // Scheduler
    {"max-num-batched-tokens", kValue, kWorks, "max-num-batched-tokens", "", "-mnbt"},
    {"max-num-scheduled-tokens", kValue, kWorks, "max-num-batched-tokens", ""},
    {"max-num-seqs", kValue, kWorks, "max-num-seqs", ""},
    {"max-num-queued-reqs", kValue, kWorks, "max-num-queued-reqs", ""},
    {"max-num-queued-tokens", kValue, kWorks, "max-num-queued-tokens", ""},
    {"max-num-partial-prefills", kValue, kRefused, "", "--max-num-batched-tokens bounds a step", "", "1"},
    {"max-long-partial-prefills", kValue, kRefused, "", "--max-num-batched-tokens bounds a step", "", "1"},
    {"long-prefill-token-threshold", kValue, kRefused, "", "--max-num-batched-tokens bounds a step", "", "0"},
    {"scheduler-reserve-full-isl", kFlag, kNothing, "", "it changes only the order in which vLLM admits prompts"},
    {"scheduler-delay-factor", kValue, kRefused, "", "waiting requests join every step", "", "0 0.0"},
    {"prefill-schedule-interval", kValue, kRefused, "", "waiting requests join every step", "", "1"},
    // Options that vLLM 0.33 has and earlier versions had not.
    {"aux-output-config", kJson, kRefused, "", "an answer has text, tokens and log-probabilities", "", "{}"},
    {"custom-histogram-buckets", kJson, kRefused, "", "histograms have the bounds that vLLM has by default", "", "{}"},
    {"dcp-comm-backend", kValue, kNothing, "", "results always travel from all ranks to all (a2a)"},
    {"dcp-q-replicate", kFlag, kNothing, "", "ranks always gather the queries"},
    {"device-ids", kValue, kWorks, "device", "the first one; the others must follow it", "", "", first_device},
    {"dp-sync-interval", kValue, kNothing, "", "replicas do not wait for each other"},
    {"ec-manager-config", kJson, kNothing, "", kNoImages},
    {"elastic-ep-max-dp-size", kValue, kRefused, "", kExperts},
    {"enable-batch-sharded-sampling", kFlag, kNothing, "", "one rank samples, on its device"},
    {"enable-cumem-allocator", kFlag, kNothing, "", "memory is allocated once, when the model loads"},
    {"enable-hc-sp", kFlag, kNothing, "", "the backend divides the work between ranks"},
    {"enable-mamba-shared-prefix-checkpoint", kFlag, kNothing, "", "states are kept at the ends of cached blocks"},
    {"enable-nccl-comm-suspend", kFlag, kNothing, "", "ranks end when a model is unloaded"},
    {"enable-shm-tensor-arena", kFlag, kNothing, "", "ranks get a batch through shared memory"},
    {"enable-trace-replay", kFlag, kRefused, "", "prompt_logprobs gives log-probabilities of given tokens", "", "off"},
    {"engram-config", kJson, kRefused, "", kOneDevice},
    {"kda-decode-backend", kValue, kNothing, "", kKernels},
    {"logging-config", kJson, kRefused, "", "use --log-level and --log-format", "", "{}"},
    {"long-prefill-token-threshold-adaptive", kFlag, kNothing, "", "prompts share a step's tokens"},
    {"mamba-ssu-algorithm", kValue, kNothing, "", kKernels},
    {"max-lora-cls-labels", kValue, kRefused, "", kAdapters},
    {"max-num-active-seqs", kValue, kRefused, "", "--max-num-seqs bounds the sequences that run"},
    {"mm-device-do-normalize", kFlag, kNothing, "", kNoImages},
    {"mm-hasher-algorithm", kValue, kNothing, "", kNoImages},
    {"mm-processor-device", kValue, kNothing, "", kNoImages},
    {"model-class-overrides", kJson, kRefused, "", kNoPython, "", "{}"},
    {"monokernel", kFlag, kNothing, "", "the backend has a persistent decode kernel and chooses when to use it"},
    {"per-request-spec-decode-metrics", kValue, kRefused, "", kSpeculation, "", "none"},
    {"prefix-cache-retention-interval", kValue, kNothing, "", "states are kept at the ends of cached blocks"},
    {"replayssm-buffer-len", kValue, kNothing, "", kKernels},
    {"return-sampling-mask", kFlag, kRefused, "", "an answer has text, tokens and log-probabilities", "", "off"},
    {"sleep-mode-backend", kValue, kNothing, "", "/sleep unloads the model"},
    {"sleep-mode-offload-cudagraph", kFlag, kNothing, "", "/sleep unloads the model"},
    {"sleep-preserve-parameter-names", kList, kNothing, "", "/sleep unloads the model, and its files are read again"},
    {"sparse-indexer-topk-backend", kValue, kNothing, "", kKernels},
    {"swa-bounded-replay", kFlag, kNothing, "", "blocks of sliding windows are in the prefix cache"},
    {"use-fp64-gumbel", kFlag, kRefused, "", "random noise has 32 bits; leave the option out", "", "off"},
    {"use-replayssm", kFlag, kNothing, "", kKernels},
    {"video-pruning-method", kValue, kNothing, "", kNoImages},
    {"watchdog-config", kJson, kNothing, "", "/health tells when steps do not finish"},
    {"watermark-config", kJson, kRefused, "", "answers have no watermarks; leave the option out", "", "{}"},
    {"watermark", kValue, kRefused, "", "--kv-cache-memory-bytes sets the size of the cache", "", "0 0.0"},
    {"num-lookahead-slots", kValue, kRefused, "", kSpeculation, "", "0"},
    {"num-scheduler-steps", kValue, kRefused, "", "the host prepares the next step while one runs", "", "1"},
    {"multi-step-stream-outputs", kFlag, kNothing, "", "every token is streamed"},
    {"scheduling-policy", kValue, kWorks, "scheduling-policy", ""},
    {"enable-chunked-prefill", kFlag, kRefused, "", "prompts are computed in chunks", "", "on"},
    {"scheduler-cls", kValue, kRefused, "", kNoPython},
    {"external-parameters", kJson, kRefused, "", kNoPython},
    {"disable-hybrid-kv-cache-manager", kFlag, kNothing, "", "layers with windows have blocks of their own"},
    {"async-scheduling", kFlag, kNothing, "", "the host prepares the next step while a device runs one"},
    {"stream-interval", kValue, kRefused, "", "every token is streamed", "", "1"},

    // Kernels and compilation
    {"attention-backend", kValue, kNothing, "", kKernels},
    {"attention-config", kJson, kNothing, "", kKernels, "-ac"},
    {"moe-backend", kValue, kNothing, "", kKernels},
    {"linear-backend", kValue, kNothing, "", kKernels},
    {"kernel-config", kJson, kNothing, "", kKernels},
    {"gdn-prefill-backend", kValue, kNothing, "", kKernels},
    {"kda-prefill-backend", kValue, kNothing, "", kKernels},
    {"ir-op-priority", kJson, kNothing, "", kKernels},
    {"enable-flashinfer-autotune", kFlag, kNothing, "", kKernels},
    {"enable-cutedsl-warmup", kFlag, kNothing, "", kKernels},
    {"enable-bf16x3-router-gemm", kFlag, kNothing, "", kKernels},
    {"cudagraph-capture-sizes", kList, kNothing, "", kNoCompiler},
    {"cuda-graph-sizes", kList, kNothing, "", kNoCompiler},
    {"max-cudagraph-capture-size", kValue, kNothing, "", kNoCompiler},
    {"max-context-len-to-capture", kValue, kNothing, "", kNoCompiler},
    {"max-seq-len-to-capture", kValue, kNothing, "", kNoCompiler},
    {"compilation-config", kJson, kNothing, "", kNoCompiler, "-cc -O"},
    {"optimization-level", kValue, kNothing, "", kNoCompiler},
    {"performance-mode", kValue, kRefused, "", "--max-num-seqs and --max-num-batched-tokens balance speed", "",
     "balanced"},

    // Speculation, transfer and others
    {"speculative-config", kJson, kWorks, "speculative-config", "the methods are ngram, draft_model and mtp", "-sc"},
    {"spec-method", kValue, kWorks, "speculative-config.method", "ngram, draft_model or mtp"},
    {"spec-model", kValue, kWorks, "speculative-config.model", ""},
    {"spec-tokens", kValue, kWorks, "speculative-config.num_speculative_tokens", ""},
    {"speculative-model", kValue, kWorks, "speculative-config.model", "[ngram] is the method ngram", "", "", nullptr,
     "", "", "", drafting_words},
    {"speculative-model-quantization", kValue, kRefused, "", kSpeculation},
    {"num-speculative-tokens", kValue, kWorks, "speculative-config.num_speculative_tokens", ""},
    {"speculative-draft-tensor-parallel-size", kValue, kWorks, "speculative-config.draft_tensor_parallel_size",
     "as -tp; 1 with -pp"},
    {"speculative-disable-mqa-scorer", kFlag, kRefused, "", kSpeculation, "", "off"},
    {"speculative-max-model-len", kValue, kRefused, "", kSpeculation},
    {"speculative-disable-by-batch-size", kValue, kRefused, "", kSpeculation},
    {"ngram-prompt-lookup-max", kValue, kWorks, "speculative-config.prompt_lookup_max", ""},
    {"ngram-prompt-lookup-min", kValue, kWorks, "speculative-config.prompt_lookup_min", ""},
    {"spec-decoding-acceptance-method", kValue, kRefused, "", kSpeculation},
    {"typical-acceptance-sampler-posterior-threshold", kValue, kRefused, "", kSpeculation},
    {"typical-acceptance-sampler-posterior-alpha", kValue, kRefused, "", kSpeculation},
    {"disable-logprobs-during-spec-decoding", kFlag, kRefused, "", kSpeculation, "", "off"},
    {"kv-transfer-config", kJson, kRefused, "",
     "use --kv-transfer-listen and --kv-transfer-peer, which say the same (scale-out.md)"},
    {"kv-events-config", kJson, kRefused, "", kTransfer},
    {"ec-transfer-config", kJson, kRefused, "", kTransfer},
    {"weight-transfer-config", kJson, kRefused, "", kTransfer},
    {"afd-config", kJson, kRefused, "", kTransfer},
    {"additional-config", kJson, kRefused, "", "it configures plugins of vLLM", "", "{}"},
    {"override-neuron-config", kJson, kRefused, "", "CPUs and NVIDIA GPUs are supported", "", "{}"},
    {"enable-fault-tolerance", kFlag, kRefused, "", "let systemd restart the server", "", "off"},
    {"fault-tolerance-config", kJson, kRefused, "", "let systemd restart the server", "", "{}"},
    {"disable-fastapi-docs", kFlag, kWorks, "api-docs", "as --no-api-docs", "", "", opposite},
    {"enable-offline-docs", kFlag, kNothing, "", "/docs needs nothing from elsewhere"},
    {"enable-log-requests", kFlag, kWorks, "log-requests", "on by default; texts are never logged"},
    {"disable-log-requests", kFlag, kWorks, "log-requests", "as --no-log-requests", "", "", opposite},
};

}  // namespace

std::span<const ForeignOption> vllm_options() { return kOptions; }

}  // namespace sluice::cli
