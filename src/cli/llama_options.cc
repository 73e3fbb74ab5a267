// The options of llama.cpp's `llama-server` and the variables of Ollama, llama.cpp and vLLM, and what becomes of each.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/json.h"
#include "cli/foreign_options.h"
#include "cli/usage_error.h"
#include "ops/device.h"

namespace sluice::cli {
namespace {

using enum ForeignOption::Kind;
using enum ForeignOption::Takes;

constexpr std::string_view kSend = "send it with requests (parameters.md)";
constexpr std::string_view kGrammar = "send it with requests (structured-output.md)";
constexpr std::string_view kOneDevice =
    "all weights stay on the devices that compute; --quantization makes them smaller, --tensor-parallel-size divides "
    "them";
constexpr std::string_view kParts = "--tensor-parallel-size and --pipeline-parallel-size make equal parts";
constexpr std::string_view kTaskset = "run the server under taskset";
constexpr std::string_view kRope = "the model's files tell its positions; change rope_scaling in its config.json";
constexpr std::string_view kDraft = "leave the option out; --speculative-config drafts tokens (speculative.md)";
constexpr std::string_view kDraftModel = "leave the option out: a draft model runs as the model does (speculative.md)";
constexpr std::string_view kImages = "leave the option out: models read text only";
constexpr std::string_view kNoImages = "there are no images, audio or video to process";
constexpr std::string_view kNoSpeech = "leave the option out: models write text only";
constexpr std::string_view kMapped = "files of weights are mapped, and packed into memory";
constexpr std::string_view kBackend = "the backend chooses where it computes and keeps weights";
constexpr std::string_view kBlocks = "cached prefixes are found by their tokens, whatever request they come from";
constexpr std::string_view kStates = "windows and states keep what the prefix cache needs";
constexpr std::string_view kTools = "leave the option out: clients run the tools";
constexpr std::string_view kSteering = "adapters change a model: --lora-modules";
constexpr std::string_view kName = "name the model: MODEL, or -hf org/name";

constexpr std::string_view kOrder =
    "it looks at probabilities after the temperature, llama-server's at those before it (sampling.md)";
constexpr std::string_view kPrompt = "it counts tokens of the answer, llama-server's also those of the prompt";
constexpr std::string_view kWindow = "repeat_last_n=64";

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

[[noreturn]] void refuse(const std::string& value, std::string_view expected) {
  throw UsageError(fmt::format("'{}' is not supported (expected {})", value, expected));
}

std::string cache_type(const std::string& value) {
  if (value == "f32") return "float32";
  if (value == "f16") return "float16";
  if (value == "bf16") return "bfloat16";
  refuse(value, "one of: f32, f16, bf16; or --kv-cache-dtype int8 or fp8");
}

std::string default_is_zero(const std::string& value) { return value == "-1" ? "0" : value; }

std::string default_or_positive(const std::string& value) {
  if (whole_number(value) == 0) refuse(value, "-1 or at least 1");
  return default_is_zero(value);
}

std::string positive(const std::string& value) {
  if (whole_number(value) == 0) refuse(value, "at least 1");
  return value;
}

std::string draft_tokens(const std::string& value) {
  const std::optional<int64_t> tokens = whole_number(value);
  if (!tokens || *tokens < 1 || *tokens > 32) refuse(value, "1 to 32; without drafts, leave the draft model out");
  return std::to_string(*tokens);
}

std::string new_tokens(const std::string& value) {
  if (value == "-1") return {};
  const std::optional<int64_t> tokens = whole_number(value);
  if (!tokens || *tokens < 1 || *tokens > INT32_MAX) refuse(value, "-1, or 1 to 2147483647");
  return std::to_string(*tokens);
}

// The reader of options takes k as a thousand.
std::string seconds_as_ms(const std::string& value) {
  const std::optional<int64_t> seconds = whole_number(value);
  if (!seconds || *seconds < 1 || *seconds > 86'400) refuse(value, "1 to 86400 seconds");
  return fmt::format("{}k", *seconds);
}

// Samplers are off below 0.
std::string negative_is_zero(const std::string& value) {
  return value.starts_with('-') && value.find_first_not_of("-.0123456789") == std::string::npos ? "0" : value;
}

std::string negative_is_off(const std::string& value) { return negative_is_zero(value) == value ? value : "-1"; }

// Nor do they do anything above 1.
std::string one_at_most(const std::string& value) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool above = error == std::errc() && end == value.data() + value.size() && number > 1;
  return above ? "1" : value;
}

// Numbers from 99 on are a way to write "all".
std::string layers_backend(const std::string& value) {
  if (value == "all" || value == "auto") return {};
  const std::optional<int64_t> layers = whole_number(value);
  if (layers == 0) return std::string(ops::select_host_backend().name);
  if (layers && (*layers < 0 || *layers >= 99)) return {};
  refuse(value,
         "all, auto or at least 99: all layers on the device, or 0: all on the CPU; a part of them cannot be had");
}

// "none", "CUDA1"
std::vector<std::string> device_words(const std::string& value) {
  if (value == "none") return {fmt::format("--backend={}", ops::select_host_backend().name)};
  const std::optional<int64_t> number = value.starts_with("CUDA") ? whole_number(value.substr(4)) : std::nullopt;
  if (value.find(',') != std::string::npos) refuse(value, "one device; --tensor-parallel-size takes those after it");
  if (!number) refuse(value, "a number, CUDA and a number, none, or vLLM's auto, cuda and cpu");
  return {"--backend=cuda", fmt::format("--device={}", *number)};
}

// A file's name without its ending is the adapter's.
std::vector<std::string> adapter_words(const std::string& value) {
  std::vector<std::string> words;
  std::istringstream in(value);
  for (std::string file; std::getline(in, file, ',');) {
    const std::string name = std::filesystem::path(file).stem().string();
    if (name.empty()) refuse(value, "files, separated by commas");
    words.push_back(fmt::format("--lora-modules={}={}", name, file));
  }
  if (words.empty()) refuse(value, "files, separated by commas");
  return words;
}

std::string nodes(const std::string& value) {
  if (value == "isolate") refuse(value, "distribute or numactl; for one node, run the server under numactl");
  return value == "distribute" || value == "numactl" ? "auto" : value;
}

std::string load_mode(const std::string& value) {
  if (value == "mlock" || value == "mmap+mlock") {
    refuse(value, "auto, none, mmap or dio; a limit on swap keeps weights in memory (systemd: MemorySwapMax=0)");
  }
  if (value != "auto" && value != "none" && value != "mmap" && value != "dio") refuse(value, "auto, none, mmap or dio");
  return value;
}

std::string split_mode(const std::string& value) {
  if (value == "row" || value == "tensor") refuse(value, "none or layer, or --tensor-parallel-size N");
  if (value != "none" && value != "layer") refuse(value, "none or layer");
  return value;
}

std::string log_level(const std::string& value) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < 0) refuse(value, "0 (nothing), 1 (errors), 2 (warnings), 3 or at least 4 (all)");
  constexpr const char* kLevels[] = {"off", "error", "warning", "info"};
  return *number < 4 ? kLevels[*number] : "debug";
}

std::string one_address(const std::string& value) {
  if (value.find(',') != std::string::npos || value.ends_with(".sock")) refuse(value, "one address or name");
  return value;
}

std::string one_key(const std::string& value) {
  if (value.find(',') == std::string::npos) return value;
  throw UsageError("has a comma (expected one key; --api-key-file takes several)");
}

std::string thought_parser(const std::string& value) {
  if (value == "none") return value;
  if (value == "auto" || value == "deepseek") return "auto";
  refuse(value, "one of: none, auto, deepseek");
}

std::string thinking_switch(const std::string& value) {
  if (value == "auto") return {};
  if (value == "on" || value == "off") return value == "on" ? "true" : "false";
  refuse(value, "one of: on, off, auto");
}

std::string effort(const std::string& value) { return value == "default" ? std::string() : dump_json(Json(value)); }

std::vector<std::string> parsers_off(const std::string& value) {
  if (value == "off") return {};
  return {"--reasoning-parser=none", "--tool-call-parser=none"};
}

constexpr ForeignOption kOptions[] = {
    // The command
    {"usage", kFlag, kRefused, "", "give --help"},
    {"version", kFlag, kRefused, "", "run sluice --version"},
    {"license", kFlag, kRefused, "", "read the file LICENSE"},
    {"cache-list", kFlag, kRefused, "", "run sluice list", "-cl"},
    {"completion-bash", kFlag, kRefused, "", "run sluice completion bash"},
    {"list-devices", kFlag, kRefused, "", "run nvidia-smi; --device takes its numbers"},

    // Threads
    {"threads", kValue, kWorks, "threads", "-1 is 0, every CPU", "-t LLAMA_ARG_THREADS", "", default_is_zero},
    {"threads-batch", kValue, kWorks, "threads", "prompts and answers are computed by the same threads", "-tb", "",
     default_is_zero, "", "", "threads=-1"},
    {"cpu-mask", kValue, kRefused, "", kTaskset, "-C"},
    {"cpu-range", kValue, kRefused, "", kTaskset, "-Cr"},
    {"cpu-strict", kValue, kRefused, "", kTaskset, "", "0"},
    {"prio", kValue, kRefused, "", "run the server under nice or chrt", "", "0"},
    {"poll", kValue, kNothing, "", "waiting threads sleep or poll as the backend needs"},
    {"cpu-mask-batch", kValue, kRefused, "", kTaskset, "-Cb"},
    {"cpu-range-batch", kValue, kRefused, "", kTaskset, "-Crb"},
    {"cpu-strict-batch", kValue, kRefused, "", kTaskset, "", "0"},
    {"prio-batch", kValue, kRefused, "", "run the server under nice or chrt", "", "0"},
    {"poll-batch", kValue, kNothing, "", "waiting threads sleep or poll as the backend needs"},
    {"numa", kValue, kWorks, "numa", "distribute and numactl are auto", "LLAMA_ARG_NUMA", "", nodes},

    // Context and steps
    {"ctx-size", kValue, kWorks, "max-model-len", "tokens of one sequence; 0 is the model's limit",
     "-c LLAMA_ARG_CTX_SIZE"},
    {"predict", kValue, kWorks, "override-generation-config.max_new_tokens", "-1 is no limit but the context",
     "-n --n-predict LLAMA_ARG_N_PREDICT", "", new_tokens,
     "a default that requests may exceed; /v1/completions has its own, 16 tokens"},
    {"batch-size", kValue, kWorks, "max-num-batched-tokens", "", "-b LLAMA_ARG_BATCH", "", positive},
    {"ubatch-size", kValue, kNothing, "", "a step is computed in one piece; --batch-size bounds it",
     "-ub LLAMA_ARG_UBATCH"},
    {"keep", kValue, kWorks, "context-keep", "tokens of the prompt that stay, with --context-shift"},
    {"context-shift", kFlag, kWorks, "context-shift", "what is left is computed again; n_predict says how far it goes",
     "LLAMA_ARG_CONTEXT_SHIFT"},
    {"swa-full", kFlag, kNothing, "", kStates, "LLAMA_ARG_SWA_FULL"},
    {"flash-attn", kOptional, kNothing, "", "attention is always computed block by block", "-fa LLAMA_ARG_FLASH_ATTN"},
    {"perf", kFlag, kNothing, "", "times are always measured: see /metrics and the log", "LLAMA_ARG_PERF"},
    {"escape", kFlag, kNothing, "", "no option has a text with escapes", "-e"},
    {"verbose-prompt", kFlag, kRefused, "", "leave the option out: texts of requests are never logged", "", "off"},
    {"parallel", kValue, kWorks, "max-num-seqs", "-1 is 0", "-np LLAMA_ARG_N_PARALLEL", "1 -1", default_or_positive,
     "--ctx-size is the limit of each sequence, and is not divided among them"},
    {"cont-batching", kFlag, kRefused, "", "requests join and leave at every step; --parallel 1 computes one at a time",
     "-cb !-nocb LLAMA_ARG_CONT_BATCHING", "on"},
    {"warmup", kFlag, kNothing, "", "the first request needs no warm-up"},

    // Positions
    {"rope-scaling", kValue, kRefused, "", kRope, "LLAMA_ARG_ROPE_SCALING_TYPE"},
    {"rope-scale", kValue, kRefused, "", kRope, "LLAMA_ARG_ROPE_SCALE"},
    {"rope-freq-base", kValue, kRefused, "", kRope, "LLAMA_ARG_ROPE_FREQ_BASE", "0"},
    {"rope-freq-scale", kValue, kRefused, "", kRope, "LLAMA_ARG_ROPE_FREQ_SCALE", "0"},
    {"yarn-orig-ctx", kValue, kRefused, "", kRope, "LLAMA_ARG_YARN_ORIG_CTX", "0"},
    {"yarn-ext-factor", kValue, kRefused, "", kRope, "LLAMA_ARG_YARN_EXT_FACTOR", "-1"},
    {"yarn-attn-factor", kValue, kRefused, "", kRope, "LLAMA_ARG_YARN_ATTN_FACTOR", "-1"},
    {"yarn-beta-slow", kValue, kRefused, "", kRope, "LLAMA_ARG_YARN_BETA_SLOW", "-1"},
    {"yarn-beta-fast", kValue, kRefused, "", kRope, "LLAMA_ARG_YARN_BETA_FAST", "-1"},

    // Cache
    {"kv-offload", kFlag, kRefused, "",
     "the cache is where the model is computed; --kv-cache-dtype fp8 makes it smaller",
     "-kvo !-nkvo LLAMA_ARG_KV_OFFLOAD", "on"},
    {"cache-type-k", kValue, kWorks, "kv-cache-dtype", "keys and values have one type: f16, bf16 or f32",
     "-ctk LLAMA_ARG_CACHE_TYPE_K", "", cache_type, "", "", "cache-type-v=f16"},
    {"cache-type-v", kValue, kWorks, "kv-cache-dtype", "keys and values have one type: f16, bf16 or f32",
     "-ctv LLAMA_ARG_CACHE_TYPE_V", "", cache_type, "", "", "cache-type-k=f16"},
    {"defrag-thold", kValue, kNothing, "", "the cache has blocks, which leave no gaps", "-dt LLAMA_ARG_DEFRAG_THOLD"},
    {"cache-prompt", kFlag, kWorks, "enable-prefix-caching", "", "LLAMA_ARG_CACHE_PROMPT"},
    {"cache-reuse", kValue, kNothing, "", kBlocks, "LLAMA_ARG_CACHE_REUSE"},
    {"cache-ram", kValue, kNothing, "", kBlocks, "-cram LLAMA_ARG_CACHE_RAM"},
    {"cache-idle-slots", kFlag, kNothing, "", kBlocks, "--clear-idle LLAMA_ARG_CACHE_IDLE_SLOTS"},
    {"slot-prompt-similarity", kValue, kNothing, "", kBlocks, "-sps"},
    {"slot-save-path", kValue, kRefused, "",
     "leave the option out: the prefix cache keeps prompts while the server runs", "LLAMA_ARG_SLOT_SAVE_PATH"},
    {"kv-unified", kFlag, kNothing, "", "all sequences share one pool of blocks", "-kvu !-no-kvu LLAMA_ARG_KV_UNIFIED"},
    {"kv-unified-per-slot", kValue, kRefused, "", "--ctx-size is the limit of each sequence",
     "LLAMA_ARG_KV_UNIFIED_PER_SLOT"},
    {"ctx-checkpoints", kValue, kNothing, "", kStates, "-ctxcp --swa-checkpoints LLAMA_ARG_CTX_CHECKPOINTS"},
    {"checkpoint-min-step", kValue, kNothing, "", kStates,
     "-cms -cpent --checkpoint-every-n-tokens LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT"},

    // Devices and memory
    {"gpu-layers", kValue, kWorks, "backend", "0 is the CPU; all, auto and at least 99 need nothing",
     "-ngl --n-gpu-layers LLAMA_ARG_N_GPU_LAYERS", "", layers_backend},
    {"device", kValue, kWorks, "backend", "CUDA1 is also --device 1; none is the CPU", "-dev LLAMA_ARG_DEVICE", "",
     nullptr, "", "", "", device_words},
    {"main-gpu", kValue, kWorks, "device", "", "-mg LLAMA_ARG_MAIN_GPU"},
    {"split-mode", kValue, kNothing, "", "one device computes the model, several with --pipeline-parallel-size",
     "-sm LLAMA_ARG_SPLIT_MODE", "", split_mode},
    {"tensor-split", kValue, kRefused, "", kParts, "-ts LLAMA_ARG_TENSOR_SPLIT"},
    {"rpc", kValue, kRefused, "", "sluice route joins several machines", "LLAMA_ARG_RPC"},
    {"override-tensor", kValue, kRefused, "", kOneDevice, "-ot LLAMA_ARG_OVERRIDE_TENSOR"},
    {"cpu-moe", kFlag, kRefused, "", kOneDevice, "-cmoe LLAMA_ARG_CPU_MOE", "off"},
    {"n-cpu-moe", kValue, kRefused, "", kOneDevice, "-ncmoe LLAMA_ARG_N_CPU_MOE", "0"},
    {"moe-cache-mib", kValue, kRefused, "", kOneDevice, "LLAMA_ARG_MOE_CACHE_MIB", "0"},
    {"n-cpu-ffn", kValue, kRefused, "", kOneDevice, "-ncffn LLAMA_ARG_N_CPU_FFN", "0"},
    {"fit", kValue, kNothing, "", "memory is planned before the load; a model that does not fit is refused",
     "-fit LLAMA_ARG_FIT"},
    {"fit-target", kValue, kRefused, "", "--gpu-memory-utilization leaves memory free", "-fitt LLAMA_ARG_FIT_TARGET"},
    {"fit-ctx", kValue, kRefused, "", "--ctx-size sets the context", "-fitc LLAMA_ARG_FIT_CTX"},
    {"repack", kFlag, kNothing, "", kBackend, "!-nr LLAMA_ARG_REPACK"},
    {"no-host", kFlag, kNothing, "", kBackend, "LLAMA_ARG_NO_HOST"},
    {"op-offload", kFlag, kNothing, "", kBackend},
    {"load-mode", kValue, kNothing, "", kMapped, "-lm LLAMA_ARG_LOAD_MODE", "", load_mode},
    {"lazy-mode", kValue, kRefused, "", "on CPUs, --packed-cache maps weights from a file", "-lzm LLAMA_ARG_LAZY_MODE",
     "auto off"},
    {"mmap", kFlag, kNothing, "", kMapped, "LLAMA_ARG_MMAP"},
    {"direct-io", kFlag, kNothing, "", kMapped, "-dio !-ndio LLAMA_ARG_DIO"},
    {"mlock", kFlag, kRefused, "", "run the server with a limit on swap (systemd: MemorySwapMax=0)", "LLAMA_ARG_MLOCK",
     "off"},
    {"check-tensors", kFlag, kRefused, "", "sluice pull --verify checks files of the hub", "", "off"},
    {"override-kv", kValue, kRefused, "", "change the metadata in the file, or config.json"},

    // Models
    {"model", kValue, kWorks, "model", "a file, a folder or org/name", "-m LLAMA_ARG_MODEL"},
    {"model-url", kValue, kRefused, "", "download the file and give its path", "-mu LLAMA_ARG_MODEL_URL"},
    {"docker-repo", kValue, kRefused, "", kName, "-dr LLAMA_ARG_DOCKER_REPO"},
    {"hf-repo", kValue, kWorks, "model", "org/name, or org/name:Q4_K_M", "-hf -hfr --hf LLAMA_ARG_HF_REPO"},
    {"hf-file", kValue, kRefused, "", "name the type in the model: -hf org/name:Q4_K_M", "-hff LLAMA_ARG_HF_FILE"},
    {"hf-token", kValue, kWorks, "hf-token", "the same as the variable HF_TOKEN", "-hft"},
    {"offline", kFlag, kWorks, "offline", "the same as the variable HF_HUB_OFFLINE", "LLAMA_ARG_OFFLINE"},
    {"alias", kValue, kWorks, "served-model-name", "several are separated by commas", "-a LLAMA_ARG_ALIAS"},
    {"tags", kValue, kNothing, "", "tags are for display only, and models have none", "LLAMA_ARG_TAGS"},
    {"models-dir", kValue, kRefused, "", "name the models: sluice serve NAME=PATH NAME=PATH (several-models.md)",
     "LLAMA_ARG_MODELS_DIR"},
    {"models-preset", kValue, kRefused, "", "list the models in a file of --config (several-models.md)",
     "LLAMA_ARG_MODELS_PRESET"},
    {"models-max", kValue, kWorks, "max-loaded-models", "0 is no limit", "LLAMA_ARG_MODELS_MAX"},
    {"models-autoload", kFlag, kRefused, "", "leave the option out: a request loads the model that it names",
     "LLAMA_ARG_MODELS_AUTOLOAD", "on"},
    {"sleep-idle-seconds", kValue, kWorks, "model-idle-seconds", "-1 is 0, never", "", "", default_or_positive},
    {"lora", kValue, kWorks, "lora-modules", "files are separated by commas; each has its file's name", "", "", nullptr,
     "it applies to requests for the model of its name, llama-server's to all", "", "", adapter_words},
    {"lora-scaled", kValue, kRefused, "",
     "give --lora-modules name=path; requests choose scales, or POST /lora-adapters sets them"},
    {"lora-init-without-apply", kFlag, kNothing, "", "an adapter applies to requests that name it"},
    {"control-vector", kValue, kRefused, "", kSteering},
    {"control-vector-scaled", kValue, kRefused, "", kSteering},
    {"control-vector-layer-range", kList, kRefused, "", kSteering},
    {"embd-gemma-default", kFlag, kRefused, "", kName},
    {"fim-qwen-1.5b-default", kFlag, kRefused, "", kName},
    {"fim-qwen-3b-default", kFlag, kRefused, "", kName},
    {"fim-qwen-7b-default", kFlag, kRefused, "", kName},
    {"fim-qwen-7b-spec", kFlag, kRefused, "", kName},
    {"fim-qwen-14b-spec", kFlag, kRefused, "", kName},
    {"fim-qwen-30b-default", kFlag, kRefused, "", kName},
    {"gpt-oss-20b-default", kFlag, kRefused, "", kName},
    {"gpt-oss-120b-default", kFlag, kRefused, "", kName},
    {"vision-gemma-4b-default", kFlag, kRefused, "", kName},
    {"vision-gemma-12b-default", kFlag, kRefused, "", kName},

    // Images, audio and video
    {"mmproj", kValue, kRefused, "", kImages, "-mm LLAMA_ARG_MMPROJ"},
    {"mmproj-url", kValue, kRefused, "", kImages, "-mmu LLAMA_ARG_MMPROJ_URL"},
    {"mmproj-auto", kFlag, kNothing, "", "only the part for text is loaded", "!--no-mmproj LLAMA_ARG_MMPROJ_AUTO"},
    {"mmproj-offload", kFlag, kNothing, "", "only the part for text is loaded", "LLAMA_ARG_MMPROJ_OFFLOAD"},
    {"mmproj-device", kValue, kNothing, "", kNoImages, "-mmdev"},
    {"image-min-tokens", kValue, kNothing, "", kNoImages, "LLAMA_ARG_IMAGE_MIN_TOKENS"},
    {"image-max-tokens", kValue, kNothing, "", kNoImages, "LLAMA_ARG_IMAGE_MAX_TOKENS"},
    {"mtmd-batch-max-tokens", kValue, kNothing, "", kNoImages, "LLAMA_ARG_MTMD_BATCH_MAX_TOKENS"},
    {"video-fps", kValue, kNothing, "", kNoImages, "LLAMA_ARG_VIDEO_FPS"},
    {"video-timestamp-interval", kValue, kNothing, "", kNoImages, "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL"},
    {"video-ffmpeg-dir", kValue, kNothing, "", kNoImages, "LLAMA_ARG_VIDEO_FFMPEG_DIR"},
    {"media-path", kValue, kRefused, "", kImages},
    {"model-vocoder", kValue, kRefused, "", kNoSpeech, "-mv"},
    {"hf-repo-v", kValue, kRefused, "", kNoSpeech, "-hfv -hfrv LLAMA_ARG_HF_REPO_V"},
    {"hf-file-v", kValue, kRefused, "", kNoSpeech, "-hffv LLAMA_ARG_HF_FILE_V"},
    {"tts-use-guide-tokens", kFlag, kRefused, "", kNoSpeech},

    // The log
    {"log-disable", kFlag, kWorks, "log-level=off", ""},
    {"log-file", kValue, kRefused, "", "redirect standard error", "LLAMA_ARG_LOG_FILE"},
    {"log-jsonl", kFlag, kWorks, "log-format=json", "", "LLAMA_ARG_LOG_JSONL", "off", nullptr,
     "the log goes to standard error, llama-server's to standard output"},
    {"log-colors", kOptional, kNothing, "", "a terminal gets colours, a file does not", "LLAMA_ARG_LOG_COLORS"},
    {"verbose", kFlag, kWorks, "log-level=debug", "", "-v --log-verbose"},
    {"log-verbosity", kValue, kWorks, "log-level", "0 is off, 1 error, 2 warning, 3 info, 4 and above debug",
     "-lv --verbosity LLAMA_ARG_LOG_VERBOSITY", "", log_level},
    {"log-prefix", kFlag, kNothing, "", "every line has its level", "LLAMA_ARG_LOG_PREFIX"},
    {"log-timestamps", kFlag, kNothing, "", "every line has its time", "LLAMA_ARG_LOG_TIMESTAMPS"},
    {"log-prompts-dir", kValue, kRefused, "", "leave the option out: texts of requests are never logged"},

    // Sampling
    {"seed", kValue, kWorks, "seed", "", "-s", "", nullptr,
     "requests without a seed get different ones that follow from it; in llama-server, all of them get it"},
    {"samplers", kValue, kRefused, "", kSend},
    {"sampler-seq", kValue, kRefused, "", "send samplers with requests (parameters.md)", "--sampling-seq"},
    {"ignore-eos", kFlag, kRefused, "", kSend, "", "off"},
    {"temp", kValue, kWorks, "override-generation-config.temperature", "below 0 is 0",
     "--temperature LLAMA_ARG_TEMPERATURE", "", negative_is_zero},
    {"top-k", kValue, kWorks, "override-generation-config.top_k", "0 and less is off", "LLAMA_ARG_TOP_K", "",
     negative_is_zero},
    {"top-p", kValue, kWorks, "override-generation-config.top_p", "1 and more is off", "LLAMA_ARG_TOP_P", "1",
     one_at_most, kOrder},
    {"min-p", kValue, kWorks, "override-generation-config.min_p", "0 and less is off", "LLAMA_ARG_MIN_P", "0",
     negative_is_zero, kOrder},
    {"top-n-sigma", kValue, kWorks, "override-generation-config.top_n_sigma", "0 and less is off", "--top-nsigma", "",
     negative_is_zero},
    {"xtc-probability", kValue, kWorks, "override-generation-config.xtc_probability", "0 and less is off", "", "0",
     negative_is_zero, kOrder},
    {"xtc-threshold", kValue, kWorks, "override-generation-config.xtc_threshold", "", "", "", one_at_most},
    {"typical-p", kValue, kWorks, "override-generation-config.typical_p", "1 and more is off", "--typical", "1",
     one_at_most, kOrder},
    {"repeat-last-n", kValue, kWorks, "override-generation-config.repeat_last_n", "-1 is the whole text"},
    {"repeat-penalty", kValue, kWorks, "override-generation-config.repetition_penalty",
     "over --repeat-last-n tokens, by default 64", "LLAMA_ARG_REPEAT_PENALTY", "", nullptr, "", kWindow},
    {"presence-penalty", kValue, kWorks, "override-generation-config.presence_penalty",
     "over --repeat-last-n tokens, by default 64", "LLAMA_ARG_PRESENCE_PENALTY", "0", nullptr, kPrompt, kWindow},
    {"frequency-penalty", kValue, kWorks, "override-generation-config.frequency_penalty",
     "over --repeat-last-n tokens, by default 64", "LLAMA_ARG_FREQUENCY_PENALTY", "0", nullptr, kPrompt, kWindow},
    {"dry-multiplier", kValue, kWorks, "override-generation-config.dry_multiplier",
     "over --dry-penalty-last-n tokens, by default 64", "", "", nullptr, "", "dry_penalty_last_n=64"},
    {"dry-base", kValue, kWorks, "override-generation-config.dry_base", ""},
    {"dry-allowed-length", kValue, kWorks, "override-generation-config.dry_allowed_length", ""},
    {"dry-penalty-last-n", kValue, kWorks, "override-generation-config.dry_penalty_last_n", "-1 is the whole text"},
    {"dry-sequence-breaker", kValue, kRefused, "", "send dry_sequence_breakers with requests (parameters.md)"},
    {"adaptive-target", kValue, kWorks, "override-generation-config.adaptive_target", "below 0 is off", "", "",
     negative_is_off},
    {"adaptive-decay", kValue, kWorks, "override-generation-config.adaptive_decay", ""},
    {"dynatemp-range", kValue, kWorks, "override-generation-config.dynatemp_range", "0 and less is off", "", "0",
     negative_is_zero, "it looks at all tokens, llama-server's at those that the filters left (sampling.md)"},
    {"dynatemp-exp", kValue, kWorks, "override-generation-config.dynatemp_exponent", ""},
    {"mirostat", kValue, kWorks, "override-generation-config.mirostat", "0 is off"},
    {"mirostat-lr", kValue, kWorks, "override-generation-config.mirostat_eta", ""},
    {"mirostat-ent", kValue, kWorks, "override-generation-config.mirostat_tau", ""},
    {"logit-bias", kValue, kRefused, "", kSend, "-l"},
    {"grammar", kValue, kRefused, "", kGrammar},
    {"grammar-file", kValue, kRefused, "", kGrammar},
    {"json-schema", kValue, kRefused, "", kGrammar, "-j"},
    {"json-schema-file", kValue, kRefused, "", kGrammar, "-jf"},
    {"backend-sampling", kFlag, kNothing, "", "samplers run where the logits are", "-bs LLAMA_ARG_BACKEND_SAMPLING"},
    {"reverse-prompt", kValue, kRefused, "", "send stop with requests"},
    {"special", kFlag, kRefused, "", "send skip_special_tokens: false with requests", "-sp", "off"},
    {"spm-infill", kFlag, kRefused, "", "leave the option out: /infill puts the prefix before the suffix", "", "off"},

    // The server
    {"host", kValue, kWorks, "host", "one address or name", "LLAMA_ARG_HOST", "", one_address},
    {"port", kValue, kWorks, "port", "the default is 8000", "LLAMA_ARG_PORT"},
    {"reuse-port", kFlag, kRefused, "", "give each server a port, behind sluice route", "LLAMA_ARG_REUSE_PORT", "off"},
    {"path", kValue, kRefused, "", "let a proxy serve other files: the program has those of its page",
     "LLAMA_ARG_STATIC_PATH"},
    {"api-prefix", kValue, kRefused, "", "let the proxy remove the prefix from the path", "LLAMA_ARG_API_PREFIX"},
    {"api-key", kValue, kWorks, "api-key", "a comma is a part of the key; repeat the option for several keys",
     "LLAMA_API_KEY", "", one_key},
    {"api-key-file", kValue, kWorks, "api-key-file", "a key per line; lines that begin with # are comments",
     "LLAMA_ARG_API_KEY_FILE"},
    {"ssl-key-file", kValue, kWorks, "ssl-keyfile", "", "LLAMA_ARG_SSL_KEY_FILE"},
    {"ssl-cert-file", kValue, kWorks, "ssl-certfile", "", "LLAMA_ARG_SSL_CERT_FILE"},
    {"cors-origins", kValue, kWorks, "allowed-origins", "'*', 'localhost' or origins; none is the default",
     "LLAMA_ARG_CORS_ORIGINS"},
    {"cors-methods", kValue, kNothing, "", "each route allows the methods that it has", "LLAMA_ARG_CORS_METHODS"},
    {"cors-headers", kValue, kNothing, "", "the headers that clients' libraries send are allowed",
     "LLAMA_ARG_CORS_HEADERS"},
    {"cors-credentials", kFlag, kRefused, "", "leave the option out: keys travel in headers, not in cookies",
     "LLAMA_ARG_CORS_CREDENTIALS", "off"},
    {"timeout", kValue, kWorks, "body-timeout-ms", "in seconds", "-to LLAMA_ARG_TIMEOUT", "", seconds_as_ms,
     "the header of a request has --header-timeout-ms"},
    {"threads-http", kValue, kWorks, "worker-threads", "-1 is 0; connections need no threads", "LLAMA_ARG_THREADS_HTTP",
     "", default_is_zero},
    {"sse-ping-interval", kValue, kRefused, "", "leave the option out: streams have no pings",
     "LLAMA_ARG_SSE_PING_INTERVAL", "-1"},
    {"metrics", kFlag, kNothing, "", "/metrics always answers", "LLAMA_ARG_ENDPOINT_METRICS"},
    {"slots", kFlag, kNothing, "", "/slots always answers, and has no texts", "LLAMA_ARG_ENDPOINT_SLOTS"},
    {"props", kFlag, kRefused, "", "leave the option out: options are set at the start", "LLAMA_ARG_ENDPOINT_PROPS",
     "off"},
    {"ui", kFlag, kWorks, "web-page", "", "--webui LLAMA_ARG_UI"},
    {"ui-config", kValue, kRefused, "", "set it in the page, which keeps it in the browser",
     "--webui-config LLAMA_ARG_UI_CONFIG"},
    {"ui-config-file", kValue, kRefused, "", "set it in the page, which keeps it in the browser",
     "--webui-config-file LLAMA_ARG_UI_CONFIG_FILE"},
    {"ui-mcp-proxy", kFlag, kRefused, "", kTools, "--webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY", "off"},
    {"tools", kValue, kRefused, "", kTools, "LLAMA_ARG_TOOLS"},
    {"tools-runtime", kValue, kRefused, "", kTools, "LLAMA_ARG_TOOLS_RUNTIME"},
    {"mcp-servers-config", kValue, kRefused, "", kTools, "LLAMA_ARG_MCP_SERVERS_CONFIG"},
    {"mcp-servers-json", kValue, kRefused, "", kTools, "LLAMA_ARG_MCP_SERVERS_JSON"},
    {"agent", kFlag, kRefused, "", kTools, "-ag !-no-ag LLAMA_ARG_AGENT", "off"},

    // Vectors and scores
    {"embedding", kFlag, kWorks, "task=embed", "", "--embeddings LLAMA_ARG_EMBEDDINGS"},
    {"reranking", kFlag, kWorks, "task=score", "", "--rerank LLAMA_ARG_RERANKING"},
    {"pooling", kValue, kRefused, "", "leave the option out: the checkpoint tells the pooling (embeddings.md)",
     "LLAMA_ARG_POOLING"},
    {"embd-normalize", kValue, kRefused, "", "vectors have the length 1; for those of the model, send normalize: false",
     "", "2"},

    // Chats
    {"jinja", kFlag, kNothing, "", "chat templates are always rendered", "LLAMA_ARG_JINJA"},
    {"chat-template", kValue, kWorks, "chat-template", "a template, its file, or one of llama-server's names",
     "LLAMA_ARG_CHAT_TEMPLATE", "", template_source},
    {"chat-template-file", kValue, kWorks, "chat-template", "", "LLAMA_ARG_CHAT_TEMPLATE_FILE", "", template_source},
    {"chat-template-kwargs", kJson, kWorks, "default-chat-template-kwargs", "", "LLAMA_ARG_CHAT_TEMPLATE_KWARGS"},
    {"skip-chat-parsing", kFlag, kWorks, "reasoning-parser", "none, and --tool-call-parser none",
     "LLAMA_ARG_SKIP_CHAT_PARSING", "", nullptr, "", "", "", parsers_off},
    {"prefill-assistant", kFlag, kRefused, "", "send continue_final_message: true with requests",
     "LLAMA_ARG_PREFILL_ASSISTANT", "off"},
    {"reasoning-format", kValue, kWorks, "reasoning-parser", "deepseek is auto", "LLAMA_ARG_THINK", "", thought_parser},
    {"reasoning", kValue, kWorks, "default-chat-template-kwargs.enable_thinking", "on is true, off is false",
     "-rea LLAMA_ARG_REASONING", "", thinking_switch},
    {"reasoning-effort", kValue, kWorks, "default-chat-template-kwargs.reasoning_effort", "default is the template's",
     "LLAMA_ARG_REASONING_EFFORT", "", effort},
    {"reasoning-budget", kValue, kRefused, "", "send thinking_token_budget, or turn thoughts off: --reasoning off",
     "LLAMA_ARG_THINK_BUDGET", "-1"},
    {"reasoning-budget-message", kValue, kRefused, "", "leave the option out: thoughts are ended without a message",
     "LLAMA_ARG_THINK_BUDGET_MESSAGE"},
    {"reasoning-preserve", kFlag, kRefused, "",
     "the template decides it; set its variable with --default-chat-template-kwargs", "LLAMA_ARG_REASONING_PRESERVE"},

    // Speculation
    {"spec-type", kValue, kRefused, "", kDraft, "LLAMA_ARG_SPEC_TYPE", "none"},
    {"spec-default", kFlag, kRefused, "", kDraft, "", "off"},
    {"model-draft", kValue, kWorks, "speculative-config.model", "",
     "-md --spec-draft-model LLAMA_ARG_SPEC_DRAFT_MODEL"},
    {"hf-repo-draft", kValue, kWorks, "speculative-config.model", "org/name, or org/name:Q4_K_M",
     "-hfd -hfrd --spec-draft-hf LLAMA_ARG_SPEC_DRAFT_HF_REPO"},
    {"draft-max", kValue, kWorks, "speculative-config.num_speculative_tokens", "1 to 32; the default is 4",
     "--draft --draft-n LLAMA_ARG_DRAFT_MAX", "", draft_tokens},
    {"draft-min", kValue, kWorks, "speculative-config.draft_n_min", "", "--draft-n-min LLAMA_ARG_DRAFT_MIN"},
    {"draft-p-min", kValue, kWorks, "speculative-config.draft_p_min", "the default is 0",
     "--spec-draft-p-min LLAMA_ARG_SPEC_DRAFT_P_MIN"},
    {"draft-p-split", kValue, kRefused, "", "leave the option out: drafts do not branch",
     "--spec-draft-p-split LLAMA_ARG_SPEC_DRAFT_P_SPLIT"},
    {"ctx-size-draft", kValue, kRefused, "", kDraftModel, "-cd"},
    {"threads-draft", kValue, kRefused, "", kDraftModel, "-td --spec-draft-threads"},
    {"threads-batch-draft", kValue, kRefused, "", kDraftModel, "-tbd --spec-draft-threads-batch"},
    {"cpu-mask-draft", kValue, kRefused, "", kDraftModel, "-Cd --spec-draft-cpu-mask"},
    {"cpu-range-draft", kValue, kRefused, "", kDraftModel, "-Crd --spec-draft-cpu-range"},
    {"cpu-strict-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-cpu-strict"},
    {"prio-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-prio"},
    {"poll-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-poll"},
    {"cpu-mask-batch-draft", kValue, kRefused, "", kDraftModel, "-Cbd --spec-draft-cpu-mask-batch"},
    {"cpu-strict-batch-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-cpu-strict-batch"},
    {"prio-batch-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-prio-batch"},
    {"poll-batch-draft", kValue, kRefused, "", kDraftModel, "--spec-draft-poll-batch"},
    {"override-tensor-draft", kValue, kRefused, "", kDraftModel, "-otd --spec-draft-override-tensor"},
    {"cpu-moe-draft", kFlag, kRefused, "", kDraftModel, "-cmoed --spec-draft-cpu-moe LLAMA_ARG_SPEC_DRAFT_CPU_MOE",
     "off"},
    {"n-cpu-moe-draft", kValue, kRefused, "", kDraftModel,
     "-ncmoed --spec-draft-n-cpu-moe --spec-draft-ncmoe LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE"},
    {"cache-type-k-draft", kValue, kRefused, "", kDraftModel,
     "-ctkd --spec-draft-type-k LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K"},
    {"cache-type-v-draft", kValue, kRefused, "", kDraftModel,
     "-ctvd --spec-draft-type-v LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V"},
    {"device-draft", kValue, kRefused, "", kDraftModel, "-devd --spec-draft-device"},
    {"gpu-layers-draft", kValue, kRefused, "", kDraftModel,
     "-ngld --n-gpu-layers-draft --spec-draft-ngl LLAMA_ARG_N_GPU_LAYERS_DRAFT"},
    {"spec-draft-n-max", kValue, kWorks, "speculative-config.num_speculative_tokens", "1 to 32; the default is 4",
     "LLAMA_ARG_SPEC_DRAFT_N_MAX", "", draft_tokens},
    {"spec-draft-n-min", kValue, kWorks, "speculative-config.draft_n_min", "", "LLAMA_ARG_SPEC_DRAFT_N_MIN"},
    {"spec-draft-backend-sampling", kFlag, kRefused, "", kDraftModel, "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", "off"},
    {"spec-draft-sampling", kValue, kRefused, "", kDraftModel, "LLAMA_ARG_SPEC_DRAFT_SAMPLING"},
    {"spec-synth-len", kValue, kRefused, "", kDraft, "LLAMA_ARG_SPEC_SYNTH_LEN"},
    {"spec-synth-rates", kValue, kRefused, "", kDraft, "LLAMA_ARG_SPEC_SYNTH_RATES"},
    {"spec-ngram-mod-n-min", kValue, kRefused, "", kDraft},
    {"spec-ngram-mod-n-max", kValue, kRefused, "", kDraft},
    {"spec-ngram-mod-n-match", kValue, kRefused, "", kDraft},
    {"spec-ngram-simple-size-n", kValue, kRefused, "", kDraft},
    {"spec-ngram-simple-size-m", kValue, kRefused, "", kDraft},
    {"spec-ngram-simple-min-hits", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k-size-n", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k-size-m", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k-min-hits", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k4v-size-n", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k4v-size-m", kValue, kRefused, "", kDraft},
    {"spec-ngram-map-k4v-min-hits", kValue, kRefused, "", kDraft},
    {"spec-ngram-size-n", kValue, kRefused, "", kDraft},
    {"spec-ngram-size-m", kValue, kRefused, "", kDraft},
    {"spec-ngram-min-hits", kValue, kRefused, "", kDraft},
    {"lookup-cache-static", kValue, kRefused, "", kDraft, "-lcs"},
    {"lookup-cache-dynamic", kValue, kRefused, "", kDraft, "-lcd"},
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
};

}  // namespace

std::span<const ForeignOption> llama_options() { return kOptions; }

std::span<const ForeignVariable> foreign_variables() { return kVariables; }

}  // namespace sluice::cli
