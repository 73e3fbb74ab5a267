// Every option of the engine and the server, declared once. The visit functions below produce flags, --help,
// environment variables and docs/options.md. Options that mean the same as vLLM's have vLLM's names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sluice {

struct EngineOptions {
  std::string model{};                         // folder, file or hub name (org/name[:revision]) in the local cache
  std::string tokenizer{};                     // folder or tokenizer.json; empty: the model's
  std::string chat_template{};                 // a Jinja file, a template in one line or its name; empty: the model's
  std::string default_chat_template_kwargs{};  // JSON object of template variables; those of a request replace them
  std::string generation_config = "auto";      // whose sampling defaults: auto (the checkpoint's), none
  std::string override_generation_config{};    // JSON object of sampling defaults that replace the checkpoint's
  // How the model writes calls of tools and thoughts: a name, auto (as the chat template tells), or none.
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool enable_auto_tool_choice = true;  // vLLM's flag: the model decides whether it calls a tool
  // Folder for files of packed weights. Later starts map them, or copy them to the device, instead of packing again.
  // Empty: none.
  std::string packed_cache{};
  // When the checksums of such a file are compared: load, background (after the start), off; auto: at load if the file
  // fits in memory and is read anyway, else in the background.
  std::string packed_cache_check = "auto";
  // auto (the task it was made for), generate, embed, score; pooling: as auto, but embed for a model that generates
  std::string task = "auto";
  // A model that generates also gives vectors of texts: none (it does not), last or mean (of its last hidden states).
  std::string embedding_pooling = "none";
  bool enable_prompt_embeds = false;  // requests may give vectors in place of token ids (docs/prompt-vectors.md)
  // Contrastive search: tokens of texts whose hidden states are kept in host memory (docs/beam-search.md). 0: it is
  // refused.
  int contrastive_search_tokens = 0;
  bool matryoshka = false;            // vectors may be cut to fewer dimensions, also if the checkpoint does not say so
  bool allow_bin = false;             // allow weights in torch.save files (.bin, .pt, .pth), which hold pickles
  std::string dtype = "auto";         // auto (the checkpoint's), float32, bfloat16, float16
  std::string quantization = "none";  // none; a block format to quantize matrices to: q8_0, q4_0, ...; the checkpoint's
                                      // own method (awq, gptq, ...), which must be right;
                                      // fp8: fp8_e4m3 weights and 8-bit activations
  bool quantize_head = false;         // also quantize the output head
  // Rounding of inputs of matmuls with fp8_e4m3 weights: auto (as the checkpoint or --quantization fp8 says), none, fp8
  // (8-bit floats, if the backend can multiply them).
  std::string activation_quantization = "auto";
  // auto (the compute type), float32, bfloat16, float16, fp8 = fp8_e4m3 and fp8_e5m2 (no scales), int8 (one scale per
  // vector).
  std::string kv_cache_dtype = "auto";
  int max_model_len = 0;              // tokens per sequence; 0: the model's limit, if the memory plan allows it
  int max_num_seqs = 0;               // sequences in one step; 0: 256 on a CPU, 512 on a GPU
  int max_num_batched_tokens = 0;     // token budget of one step; 0: 512 on a CPU, 8192 on a GPU
  int max_num_queued_reqs = 1024;     // waiting requests; more are refused with 503
  int64_t max_num_queued_tokens = 0;  // waiting prompt tokens; more are refused with 503; 0: no limit
  int block_size = 16;                // tokens per cache block: 8, 16, 32, 64
  // 0: a quarter of a host's free memory, or the rest of a GPU's memory; in both cases at most what max_num_seqs full
  // contexts need.
  int64_t kv_cache_memory_bytes = 0;
  // Rows of the prefix cache that are also kept in host memory, and in a file that the next run finds
  // (docs/kv-tiers.md).
  int64_t kv_host_memory_bytes = 0;  // 0: none; 1 GiB if another option needs it
  std::string kv_disk{};             // folder of the file; empty: none
  int64_t kv_disk_bytes = 0;         // size of the file; 0: 16 GiB
  // Prompts that another server computes (docs/scale-out.md, Prefill and decode apart).
  std::string kv_transfer_listen{};             // HOST:PORT where other servers fetch rows; empty: none
  std::vector<std::string> kv_transfer_peer{};  // HOST:PORT of servers that requests may fetch rows from; *: any
  std::string kv_transfer_backend = "tcp";      // how rows travel: tcp, ucx (libucp); both servers need the same
  int kv_transfer_timeout_ms = 30'000;          // wait for a row until the rest is computed; how long rows are held
  double kv_cache_share = 1;  // part of that default which is taken: models that share a machine have less; no flag
  double gpu_memory_utilization = 0.95;  // fraction of the GPU's memory, including other processes' use
  bool enable_prefix_caching = true;
  std::string prefix_cache_eviction = "lru";  // which cached prefixes give way first: lru, lfu
  int session_ttl = 600;  // seconds that cached tokens of a session stay without a turn, unless the request says so
  double session_cache_share = 0.5;         // part of the KV cache that sessions may keep from others
  bool context_shift = false;               // answers that fill the context go on without their oldest tokens
  int context_keep = 0;                     // tokens at the start of a prompt that stay then; -1: all of it
  bool jump_ahead = true;                   // compute text that a grammar forces without sampling it
  std::string speculative_config{};         // JSON object: how tokens are drafted (docs/speculative.md); empty: not
  std::string scheduling_policy = "fcfs";   // fcfs, priority, or another policy of the build
  bool enable_lora = false;                 // the model may have adapters, see --lora-modules
  int max_loras = 1;                        // adapters that sequences of one step may have together
  std::vector<std::string> lora_modules{};  // adapters to load at the start: name=path; implies enable_lora
  int max_cpu_loras = 0;                    // adapters in host memory; others are read again when needed; 0: all
  int max_lora_rank = 16;                   // largest rank of an adapter
  bool lora_experts = true;                 // adapters may change experts, which takes room for each of them
  std::string lora_dtype = "auto";          // float32, bfloat16, auto (bfloat16 if the model computes in it)
  int threads = 0;                          // compute threads; 0: every CPU the process may use
  std::string numa = "auto";                // off, auto (one part per NUMA node), or a number of parts
  std::string backend{};           // empty (best for this machine), cpu-amx, ..., cpu-avx2, cuda, ..., reference
  int device = 0;                  // which device of the backend, counted from 0
  int tensor_parallel_size = 1;    // processes (ranks) that divide each layer between them; 1: this one alone
  int pipeline_parallel_size = 1;  // stages, of tensor_parallel_size ranks each, that divide the layers between them
  int decode_context_parallel_size = 1;  // ranks of a layer that divide the keys and values of a head; 1: each has all
  int cp_kv_cache_interleave_size = 1;   // tokens in a row that one of them has
  int data_parallel_size = 1;            // replicas of the model, of tensor_ * pipeline_parallel_size ranks each
  int data_parallel_rank = -1;          // the replica that this engine is, on its share of the devices; -1: all of them
  bool enable_expert_parallel = false;  // ranks have whole experts instead of a part of each expert
  bool enable_eplb = false;             // balance these experts between the ranks by their load
  std::string eplb_config{};            // JSON object: how experts are balanced (docs/scale-out.md); empty: defaults
  std::string init_expert_location{};   // JSON file of the experts' loads, or of their placement; empty: none
  std::string expert_distribution_record{};  // file that gets the experts' loads; empty: none
  // Who starts the ranks: local (rank 0, on its machine) or mpi (mpirun or srun, on one machine or several; CPU only).
  std::string distributed_executor_backend = "local";
  bool deterministic = false;  // make a row's bits independent of its batch; costs nothing on a CPU
  int64_t seed = 0;            // for requests without their own seed
};

struct ServerOptions {
  std::string host = "127.0.0.1";  // addresses or names, with commas between them
  int port = 8000;
  std::vector<std::string> served_model_name{};  // the first is reported; empty: the name of the model's folder
  std::vector<std::string> api_key{};            // accepted keys, besides SLUICE_API_KEY and api_key_file
  std::string api_key_file{};                    // one key per line
  std::string ssl_certfile{}, ssl_keyfile{};     // PEM files; give both or neither
  std::vector<std::string> allowed_origins{};    // for CORS; empty: no CORS headers
  int64_t max_body_bytes = 32 << 20;
  int max_header_bytes = 64 << 10;
  int max_connections = 16384;
  int header_timeout_ms = 10'000;  // time limit to receive a request's header
  int body_timeout_ms = 30'000;    // time limit without progress in receiving a body or sending an answer
  int keep_alive_timeout_ms = 75'000;
  int request_timeout_ms = 0;        // time limit of a whole request; 0: none
  int shutdown_timeout_ms = 30'000;  // how long running requests may take to finish after SIGTERM
  int io_threads = 1;                // threads for HTTP and text processing
  bool strict = false;               // unknown request fields are errors; false: they cause a warning header
  std::string log_level = "info";    // debug, info, warning, error, off
  std::string log_format = "text";   // text, json
  bool log_requests = true;          // one line about each request; never its texts
  bool api_docs = true;              // /docs and /openapi.json
  bool web_page = true;              // / and its files
  // Host headers that are accepted besides local names; "*": any. Empty: any name unless the server is bound to
  // loopback
  std::vector<std::string> allowed_hosts{};
  int64_t max_total_body_bytes = 0;     // bodies of all requests together; 0: an eighth of memory, at most 1 GiB
  int body_total_timeout_ms = 300'000;  // to receive a whole body
  int max_connections_per_address = 0;  // 0: half of max_connections, without a limit for loopback addresses
  bool allow_pull = false;              // /api/pull may download models from the hub
  int64_t pull_cache_bytes = 0;         // of the hub's cache after a pull; 0: no limit but the disk's
  std::string lora_root{};              // adapters below this folder may be loaded over HTTP; empty: none
  int worker_threads = 0;               // parse, render and tokenize requests; 0: one per CPU, 2 to 16
  std::string store{};                  // SQLite file of stored answers; empty: in memory
  int store_ttl = 0;                    // seconds; 0: 30 days in a file, an hour in memory
  int64_t store_size = 0;               // bytes; 0: 1 GiB in a file, 64 MiB in memory
  // Of several models (docs/several-models.md):
  bool load_models_on_demand = false;   // a model is loaded by its first request
  int max_loaded_models = 0;            // models in memory at a time; 0: all
  int model_idle_seconds = 0;           // a model without requests for so long is unloaded; 0: never
  int max_model_queue = 1024;           // requests that wait until one model is loaded; more get 503
  int model_load_timeout_ms = 300'000;  // how long they wait
};

// Calls v(name, reference, "what it is", {allowed values, if the set is closed}) for each option.
template <class V>
void visit(V&& v, EngineOptions& o) {
  v("tokenizer", o.tokenizer, "folder, tokenizer.json or org/name to use instead of the model's tokenizer");
  v("chat-template", o.chat_template,
    "what to use instead of the model's: a Jinja file, a template in one line, or a name such as chatml");
  v("default-chat-template-kwargs", o.default_chat_template_kwargs,
    "JSON object of variables for the chat template; a request's own replace them");
  v("generation-config", o.generation_config,
    "sampling defaults to use: the checkpoint's generation_config.json (auto), or the API's (none)", {"auto", "none"});
  v("override-generation-config", o.override_generation_config,
    "JSON object of sampling defaults (temperature, top_p, max_new_tokens, ...) that replace others");
  v("tool-call-parser", o.tool_call_parser,
    "syntax of the model's calls of tools: auto (as the chat template tells), none, or a name (tool-calls.md)");
  v("reasoning-parser", o.reasoning_parser,
    "syntax of the model's thoughts: auto (as the chat template tells), none, or a name (reasoning.md)");
  v("enable-auto-tool-choice", o.enable_auto_tool_choice,
    "let the model decide whether it calls a tool; always on, vLLM's flag is accepted");
  v("allow-bin", o.allow_bin, "allow weights in torch.save files (.bin, .pt, .pth); no code in them is executed");
  v("packed-cache", o.packed_cache,
    "folder for packed weights; later starts map them, and they may exceed memory, or copy them to the device");
  v("packed-cache-check", o.packed_cache_check,
    "when all bytes of packed weights are checked: before serving, while serving, or never (auto: before serving if "
    "they "
    "fit in memory)",
    {"auto", "load", "background", "off"});
  v("task", o.task,
    "task to load the model for (auto: the one it was made for; pooling: the same, but embed for a model that "
    "generates)",
    {"auto", "generate", "embed", "score", "pooling"});
  v("embedding-pooling", o.embedding_pooling,
    "give vectors of texts beside answers: the hidden state of the last token, or the mean of those of all tokens "
    "(none: a model that generates gives no vectors)",
    {"none", "last", "mean"});
  v("enable-prompt-embeds", o.enable_prompt_embeds,
    "let requests of /v1/completions give vectors in place of a prompt's token ids (prompt-vectors.md)");
  v("contrastive-search-tokens", o.contrastive_search_tokens,
    "tokens of texts that contrastive search (penalty_alpha) may work on at a time; host memory holds a hidden state "
    "for each (0: it is refused; beam-search.md)");
  v("matryoshka", o.matryoshka,
    "allow 'dimensions' for an embedding model that was trained for it but does not declare it (is_matryoshka)");
  v("dtype", o.dtype, "type of weights and computation (auto: the checkpoint's)",
    {"auto", "float32", "bfloat16", "float16"});
  v("quantization", o.quantization,
    "block format to quantize matrices to at load: none, q8_0, q4_0, q5_1, ...; fp8: fp8_e4m3 weights and 8-bit "
    "activations; awq, gptq and others: what the checkpoint must be");
  v("quantize-head", o.quantize_head, "also quantize the output head, which otherwise keeps its type");
  v("activation-quantization", o.activation_quantization,
    "rounding of inputs of matmuls with fp8_e4m3 weights (auto: as the checkpoint or --quantization fp8 says)",
    {"auto", "none", "fp8"});
  v("kv-cache-dtype", o.kv_cache_dtype,
    "type of cached keys and values; fp8 (E4M3) and fp8_e5m2 have no scales, int8 has one per vector",
    {"auto", "float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"});
  v("max-model-len", o.max_model_len, "maximum tokens per sequence, prompt and output together (0: the model's limit)");
  v("max-num-seqs", o.max_num_seqs, "maximum sequences in one step (0: 256 on a CPU, 512 on a GPU)");
  v("max-num-batched-tokens", o.max_num_batched_tokens, "token budget of one step (0: 512 on a CPU, 8192 on a GPU)");
  v("max-num-queued-reqs", o.max_num_queued_reqs,
    "maximum waiting sequences (n of each request); further requests get status 503");
  v("max-num-queued-tokens", o.max_num_queued_tokens,
    "maximum waiting prompt tokens; further requests get status 503 (0: no limit)");
  v("block-size", o.block_size, "tokens per block of the KV cache", {"8", "16", "32", "64"});
  v("kv-cache-memory-bytes", o.kv_cache_memory_bytes,
    "size of the KV cache (0: a quarter of the host's free memory, or the rest of the GPU's)");
  v("kv-host-memory-bytes", o.kv_host_memory_bytes,
    "host memory that also keeps the prefix cache's keys and values (0: none, or 1 GiB with --kv-disk, "
    "--kv-transfer-listen or --kv-transfer-peer; kv-tiers.md)");
  v("kv-disk", o.kv_disk,
    "folder of a file that also keeps the prefix cache's keys and values; the next start finds them (kv-tiers.md)");
  v("kv-disk-bytes", o.kv_disk_bytes, "size of that file (0: 16 GiB)");
  v("kv-transfer-listen", o.kv_transfer_listen,
    "HOST:PORT where other servers fetch the keys and values of prompts that this one computes (scale-out.md)");
  v("kv-transfer-peer", o.kv_transfer_peer,
    "HOST:PORT of a server whose keys and values requests may use; repeat it for each server; *: any (scale-out.md)");
  v("kv-transfer-backend", o.kv_transfer_backend,
    "how keys and values travel between servers: by TCP, or by UCX (shared memory, TCP, RDMA); both servers need the "
    "same (scale-out.md)",
    {"tcp", "ucx"});
  v("kv-transfer-timeout-ms", o.kv_transfer_timeout_ms,
    "how long a request waits for the next keys and values of another server until it computes them, and how long "
    "they are held for other servers");
  v("gpu-memory-utilization", o.gpu_memory_utilization,
    "fraction of the GPU's memory that may be used, including other processes' use");
  v("enable-prefix-caching", o.enable_prefix_caching, "reuse KV-cache blocks of equal prompt prefixes");
  v("prefix-cache-eviction", o.prefix_cache_eviction,
    "which cached prefixes give way first: the least recently used (lru), or the least often used (lfu)",
    {"lru", "lfu"});
  v("session-ttl", o.session_ttl, "seconds for which cached tokens of a session wait for its next turn (sessions.md)");
  v("session-cache-share", o.session_cache_share, "part of the KV cache that waiting sessions may keep: 0 to 1");
  v("context-shift", o.context_shift,
    "let an answer that fills the context go on without its oldest tokens, up to max_tokens (context-shift.md)");
  v("context-keep", o.context_keep, "tokens at the start of a prompt that stay then (-1: the whole prompt)");
  v("jump-ahead", o.jump_ahead, "compute text that a grammar forces without sampling its tokens");
  v("speculative-config", o.speculative_config,
    "JSON object: draft tokens that the model checks together, for example {\"model\": \"DRAFT\"} or {\"method\": "
    "\"ngram\", \"num_speculative_tokens\": 4} (speculative.md)");
  v("scheduling-policy", o.scheduling_policy,
    "order of waiting requests: fcfs (in turns among API keys), priority, or another policy of the build");
  v("enable-lora", o.enable_lora, "let requests use adapters (LoRA) of the model");
  v("lora-modules", o.lora_modules, "adapters to load at the start, as name=path; implies enable-lora");
  v("max-cpu-loras", o.max_cpu_loras,
    "adapters that are kept in host memory; others are read from their folders when needed (0: all)");
  v("max-loras", o.max_loras, "maximum adapters that the sequences of one step use together");
  v("max-lora-rank", o.max_lora_rank, "largest rank of an adapter");
  v("lora-experts", o.lora_experts, "leave room for adapters that change experts of mixtures");
  v("lora-dtype", o.lora_dtype, "type of adapters' matrices (auto: bfloat16 if the model computes in it, else float32)",
    {"auto", "float32", "bfloat16"});
  v("threads", o.threads, "compute threads (0: every CPU of the process)");
  v("numa", o.numa,
    "number of parts that threads and memory are divided into: off, auto (one per NUMA node), or a number");
  v("backend", o.backend, "kernel backend (empty: the best for this machine)");
  v("device", o.device, "which device of the backend, counted from 0");
  v("tensor-parallel-size", o.tensor_parallel_size,
    "processes that compute the model together, each with a part of its weights, on a GPU or a part of the threads "
    "(scale-out.md)");
  v("pipeline-parallel-size", o.pipeline_parallel_size,
    "stages that divide the model's layers between them, each of --tensor-parallel-size processes (scale-out.md)");
  v("decode-context-parallel-size", o.decode_context_parallel_size,
    "how many processes of --tensor-parallel-size divide the KV cache of a head that all of them need (scale-out.md)");
  v("cp-kv-cache-interleave-size", o.cp_kv_cache_interleave_size,
    "with --decode-context-parallel-size: tokens in a row that one process has; divides --block-size");
  v("data-parallel-size", o.data_parallel_size,
    "replicas of the model behind one address, each with its own devices, or its own part of the threads "
    "(scale-out.md)");
  v("data-parallel-rank", o.data_parallel_rank,
    "load this replica of --data-parallel-size only, on its own devices (-1: all replicas)");
  v("enable-expert-parallel", o.enable_expert_parallel,
    "give each of --tensor-parallel-size processes whole experts instead of a part of each expert");
  v("enable-eplb", o.enable_eplb,
    "with --enable-expert-parallel: balance the experts between the processes by their load (scale-out.md)");
  v("eplb-config", o.eplb_config,
    "JSON object: how experts are balanced, for example {\"num_redundant_experts\": 2, \"step_interval\": 3000}");
  v("init-expert-location", o.init_expert_location,
    "JSON file that places the experts at the start: their loads, as --expert-distribution-record writes them, or a "
    "placement (scale-out.md)");
  v("expert-distribution-record", o.expert_distribution_record,
    "JSON file that gets the number of tokens of each expert when the model is unloaded");
  v("distributed-executor-backend", o.distributed_executor_backend,
    "who starts these processes: local (the program itself, on its machine), or mpi (mpirun or srun, also on several "
    "machines; CPU only, scale-out.md)",
    {"local", "mpi"});
  v("deterministic", o.deterministic,
    "make a row's bits independent of its batch: always so on a CPU; selects the batch-invariant backend on a GPU");
  v("seed", o.seed, "seed for requests without their own");
}

template <class V>
void visit(V&& v, ServerOptions& o) {
  v("host", o.host, "addresses to listen on, with commas between them");
  v("port", o.port, "TCP port (0: any free one)");
  v("served-model-name", o.served_model_name,
    "model names that clients may use; the first is reported; * at the end: any name");
  v("api-key", o.api_key, "accepted API keys (prefer --api-key-file or SLUICE_API_KEY)");
  v("api-key-file", o.api_key_file, "file with one API key per line");
  v("ssl-certfile", o.ssl_certfile, "TLS certificate chain (PEM)");
  v("ssl-keyfile", o.ssl_keyfile, "TLS private key (PEM)");
  v("allowed-origins", o.allowed_origins, "origins that browsers may send requests from (CORS); none by default");
  v("max-body-bytes", o.max_body_bytes, "maximum size of a request body");
  v("max-header-bytes", o.max_header_bytes, "maximum size of a request header");
  v("max-connections", o.max_connections, "maximum open connections");
  v("header-timeout-ms", o.header_timeout_ms, "time limit to receive a request header");
  v("body-timeout-ms", o.body_timeout_ms,
    "time limit without progress in receiving a body or in the client's reading of the answer");
  v("keep-alive-timeout-ms", o.keep_alive_timeout_ms, "how long an idle connection is kept open");
  v("request-timeout-ms", o.request_timeout_ms, "time limit of a whole request (0: no limit)");
  v("shutdown-timeout-ms", o.shutdown_timeout_ms, "time for running requests to finish after SIGTERM");
  v("io-threads", o.io_threads, "threads for HTTP and text processing");
  v("strict", o.strict, "refuse requests with unknown fields instead of warning");
  v("log-level", o.log_level, "lowest level that is logged", {"debug", "info", "warning", "error", "off"});
  v("log-format", o.log_format, "form of the log: lines of text, or lines of JSON", {"text", "json"});
  v("log-requests", o.log_requests,
    "log a line about each request at the level info: tokens, times, how it ended; never its texts");
  v("web-page", o.web_page, "answer / and /dashboard with pages for a browser, which need no API key");
  v("api-docs", o.api_docs, "answer /docs and /openapi.json, which need no API key");
  v("allowed-hosts", o.allowed_hosts,
    "names accepted in the Host header besides local ones; *: any. Without it, any name unless bound to loopback");
  v("max-total-body-bytes", o.max_total_body_bytes,
    "bodies of all requests together; more get 503 (0: an eighth of memory, at most 1 GiB)");
  v("body-total-timeout-ms", o.body_total_timeout_ms, "time to receive a whole request body");
  v("max-connections-per-address", o.max_connections_per_address,
    "open connections of one IPv4 address or IPv6 /64 network (0: half of max-connections, none for loopback)");
  v("lora-root", o.lora_root, "folder whose adapters may be loaded with /v1/load_lora_adapter; none by default");
  v("allow-pull", o.allow_pull,
    "let Ollama's /api/pull download models from the Hugging Face hub, and serve them under their names "
    "(several-models.md)");
  v("pull-cache-bytes", o.pull_cache_bytes,
    "refuse a pull after which the Hugging Face cache would be larger (0: no limit but the disk's)");
  v("worker-threads", o.worker_threads,
    "threads that parse, render and tokenize requests (0: one per CPU, at least 2 and at most 16)");
  v("store", o.store,
    "SQLite file that keeps responses and chat completions which clients want stored; without it, they are kept in "
    "memory and end with the server");
  v("store-ttl", o.store_ttl, "seconds until a stored answer is forgotten (0: 30 days in a file, an hour in memory)");
  v("store-size", o.store_size,
    "maximum bytes of stored answers; the oldest make room (0: 1 GiB in a file, 64 MiB in memory)");
  v("load-models-on-demand", o.load_models_on_demand,
    "load each model when the first request needs it, not at the start (several-models.md)");
  v("max-loaded-models", o.max_loaded_models,
    "maximum models in memory at a time; the one that was used least recently is unloaded for another (0: all)");
  v("model-idle-seconds", o.model_idle_seconds, "unload a model that got no request for so long (0: never)");
  v("max-model-queue", o.max_model_queue,
    "maximum requests that wait until one model is loaded; further requests get status 503");
  v("model-load-timeout-ms", o.model_load_timeout_ms, "how long a request waits until its model is loaded");
}

// v(name, value, least, most) for each integer option.
template <class V>
void visit_ranges(V&& v, const EngineOptions& o) {
  constexpr int64_t kInt = 2147483647, kBytes = int64_t{1} << 60;
  v("max-model-len", o.max_model_len, 0, kInt);
  v("max-num-seqs", o.max_num_seqs, 0, 65536);
  v("max-num-batched-tokens", o.max_num_batched_tokens, 0, 1 << 24);
  v("max-num-queued-reqs", o.max_num_queued_reqs, 0, kInt);
  v("max-num-queued-tokens", o.max_num_queued_tokens, 0, kBytes);
  v("kv-cache-memory-bytes", o.kv_cache_memory_bytes, 0, kBytes);
  v("kv-host-memory-bytes", o.kv_host_memory_bytes, 0, kBytes);
  v("kv-disk-bytes", o.kv_disk_bytes, 0, kBytes);
  v("context-keep", o.context_keep, -1, kInt);
  v("contrastive-search-tokens", o.contrastive_search_tokens, 0, kInt);
  v("session-ttl", o.session_ttl, 1, 7 * 24 * 3600);
  v("kv-transfer-timeout-ms", o.kv_transfer_timeout_ms, 1, 86'400'000);
  v("max-loras", o.max_loras, 1, 4096);
  v("max-cpu-loras", o.max_cpu_loras, 0, kInt);
  v("max-lora-rank", o.max_lora_rank, 1, 1024);
  v("threads", o.threads, 0, 1024);
  v("tensor-parallel-size", o.tensor_parallel_size, 1, 64);
  v("pipeline-parallel-size", o.pipeline_parallel_size, 1, 64);
  v("decode-context-parallel-size", o.decode_context_parallel_size, 1, 64);
  v("cp-kv-cache-interleave-size", o.cp_kv_cache_interleave_size, 1, 64);
  v("data-parallel-size", o.data_parallel_size, 1, 64);
  v("data-parallel-rank", o.data_parallel_rank, -1, 63);
  v("device", o.device, 0, 1023);
  v("block-size", o.block_size, 8, 64);
  v("seed", o.seed, INT64_MIN, INT64_MAX);
}

template <class V>
void visit_ranges(V&& v, const ServerOptions& o) {
  constexpr int64_t kDayMs = 86'400'000, kInt = 2147483647, kBytes = int64_t{1} << 40;
  v("port", o.port, 0, 65535);
  v("max-body-bytes", o.max_body_bytes, 1, kBytes);
  v("max-total-body-bytes", o.max_total_body_bytes, 0, kBytes);
  v("max-header-bytes", o.max_header_bytes, 1, 1 << 24);
  v("max-connections", o.max_connections, 1, 1'000'000);
  v("max-connections-per-address", o.max_connections_per_address, 0, 1'000'000);
  v("header-timeout-ms", o.header_timeout_ms, 1, kDayMs);
  v("body-timeout-ms", o.body_timeout_ms, 1, kDayMs);
  v("body-total-timeout-ms", o.body_total_timeout_ms, 1, kDayMs);
  v("keep-alive-timeout-ms", o.keep_alive_timeout_ms, 1, kDayMs);
  v("request-timeout-ms", o.request_timeout_ms, 0, kInt);
  v("shutdown-timeout-ms", o.shutdown_timeout_ms, 0, kDayMs);
  v("io-threads", o.io_threads, 1, 256);
  v("worker-threads", o.worker_threads, 0, 256);
  v("store-ttl", o.store_ttl, 0, kInt);
  v("store-size", o.store_size, 0, kBytes);
  v("max-loaded-models", o.max_loaded_models, 0, 4096);
  v("pull-cache-bytes", o.pull_cache_bytes, 0, int64_t{1} << 60);
  v("model-idle-seconds", o.model_idle_seconds, 0, kInt);
  v("max-model-queue", o.max_model_queue, 1, kInt);
  v("model-load-timeout-ms", o.model_load_timeout_ms, 1, kDayMs);
}

}  // namespace sluice
