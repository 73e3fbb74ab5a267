// Loading. The model constructors run twice: a dry run for the plan, then a run that reads the weights.
#include "engine/load.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "base/log.h"
#include "base/registry.h"
#include "engine/expert_balance.h"
#include "engine/hidden_pooler.h"
#include "engine/hidden_similarity.h"
#include "engine/key_parts.h"
#include "engine/load_draft.h"
#include "engine/load_parts.h"
#include "engine/option_checks.h"
#include "engine/packed_cache.h"
#include "engine/ranks.h"
#include "engine/replicas.h"
#include "engine/row_mover.h"
#include "nn/loading/size_limits.h"
#include "quant/groups.h"
#include "scheduler/scheduler.h"
#include "sluice/error.h"

namespace sluice {
namespace {

constexpr size_t kBookkeeping = 512;      // bytes per block besides keys and values
constexpr int64_t kMostNames = 1 << 17;   // most blocks of a model without keys and values
constexpr size_t kHeadroom = 256u << 20;  // bytes left for text, connections and thread stacks, or a device's driver

// Adapters are computed in bf16 or fp32.
DType parse_lora_dtype(const std::string& name, DType compute) {
  const DType type = parse_dtype("lora-dtype", name, compute == &kBFloat16 ? &kBFloat16 : &kFloat32);
  if (type != &kFloat16) return type;
  throw Error(ErrorCode::kInvalidRequest, "--lora-dtype float16: expected one of: auto, float32, bfloat16");
}

// With "auto", keys and values are cached in the compute type. CPUs that multiply pairs of bfloat16 numbers use
// bfloat16 instead of float16: attention then reads a long context twice as fast.
DType parse_cache_dtype(const std::string& name, DType compute, const LoadPlan& plan) {
  const ops::Backend& backend = *plan.backend;
  const bool pairs = plan.device->memory().host_accessible() && backend.can.rounds_attention;
  const DType automatic = compute == &kFloat16 && pairs ? &kBFloat16 : compute;
  const DType narrow = name == "fp8" || name == "fp8_e4m3" ? &kFloat8E4M3
                       : name == "fp8_e5m2"                ? &kFloat8E5M2
                       : name == "int8"                    ? &kInt8
                                                           : nullptr;
  if (narrow == nullptr) return parse_dtype("kv-cache-dtype", name, automatic, ", fp8, fp8_e5m2, int8");
  if (backend.caches(narrow)) return narrow;
  throw Error(ErrorCode::kUnsupportedModel,
              fmt::format("--kv-cache-dtype {}: backend {} does not support this cache type", name, backend.name));
}

// Whether a name is a method that checkpoints are quantized with. Throws Error if this checkpoint has another one.
bool names_method_of(const Config& config, const std::string& name) {
  std::string wanted = name;
  for (const std::string_view kernel : {"_marlin", "_triton", "_bitblas"}) {  // vLLM's names of kernels for a method
    if (wanted.ends_with(kernel)) wanted.resize(wanted.size() - kernel.size());
  }
  constexpr std::string_view kMethods[] = {
      "awq", "auto-round", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "gptq", "modelopt", "mxfp4", "quark"};
  if (std::ranges::find(kMethods, wanted) == std::end(kMethods)) return false;
  const Json* section = config.find("quantization_config");
  const bool any = section != nullptr && section->is_object();
  std::string found = any ? "bitsandbytes" : "none";  // older files of that library have no name
  if (any && section->contains("quant_method") && (*section)["quant_method"].is_string()) {
    found = (*section)["quant_method"].get<std::string>();
  }
  if (found == wanted) return true;
  throw Error(ErrorCode::kInvalidRequest, fmt::format("--quantization {}: the checkpoint's method is {}", name, found),
              "quantization", "");
}

DType parse_quantization(const std::string& name, const Config& config) {
  if (name == "none" || names_method_of(config, name)) return nullptr;
  if (name == "fp8") return &quant::Fp8::kType;
  const DType type = find_dtype(name);
  if (type != nullptr && type->block_size > 1 && type->encode != nullptr) return type;
  std::string known;
  for (DType other : Registry<TypeInfo>::all()) {
    if (other->block_size > 1 && other->encode != nullptr) known += fmt::format(", {}", other->name);
  }
  throw Error(ErrorCode::kInvalidRequest,
              fmt::format("--quantization: unknown value '{}' (expected one of: none, fp8{})", name, known));
}

// Returns the task of --task. With "auto" it is the task that the model was made for: embed if the checkpoint has
// sentence-transformers pooling files. With "pooling", a model that was made to generate embeds.
Task choose_task(const std::string& asked, const Checkpoint& checkpoint) {
  for (const Task task : {Task::kGenerate, Task::kEmbed, Task::kScore}) {
    if (asked == to_string(task)) return task;
  }
  if (asked != "auto" && asked != "pooling") {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("--task: unknown value '{}' (expected one of: auto, generate, embed, score, pooling)", asked));
  }
  const Task task = native_task(find_family(checkpoint.config), checkpoint.config);
  if (task != Task::kGenerate) return task;
  if (asked == "pooling") return Task::kEmbed;
  return read_embedding_files(checkpoint).pooling ? Task::kEmbed : Task::kGenerate;
}

std::unique_ptr<LoraSites> make_sites(const LoadPlan& plan, bool dry) {
  if (plan.adapters.slots == 0) return nullptr;
  return std::make_unique<LoraSites>(plan.adapters, dry, plan.device->memory());
}

// Where a rank computes: the first on the device that the options name, the others on the devices after it, in turn.
struct DeviceOfRank {
  int ordinal = 0;
  int sharers = 1;  // ranks of all replicas on this device
};

DeviceOfRank device_of_rank(const ops::Backend& backend, int first, const RankPlace& place) {
  const int devices = backend.devices();
  if (first < 0 || first >= devices) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--device: {} is out of range (backend {} has devices 0 to {})",
                                                        first, backend.name, devices - 1));
  }
  DeviceOfRank out{.ordinal = (first + place.index) % devices, .sharers = 0};
  for (int other = 0; other < place.count; ++other) out.sharers += (first + other) % devices == out.ordinal ? 1 : 0;
  return out;
}

// Returns how many bytes of a memory the engine may use. On a device, this is the share `utilization` of its memory
// minus the bytes that are already in use.
size_t usable_memory(const Memory& memory, double utilization) {
  if (memory.host_accessible()) return memory.available();
  const auto most = static_cast<size_t>(utilization * static_cast<double>(memory.total()));
  const size_t used = memory.total() - memory.available();
  return most > used ? most - used : 0;
}

// Plans the slots for recurrent states: one for every sequence that may run, and as many again for snapshots at the
// ends of cached blocks. If memory is short, there are fewer snapshots, and then fewer sequences. Subtracts its bytes
// from `free_bytes`.
void plan_states(const EngineOptions& options, LoadPlan& plan, size_t& free_bytes) {
  if (plan.shape.state.empty()) return;
  const size_t slot_bytes = StateCache::bytes_per_slot(plan.shape.state);
  const size_t share = plan.shape.kv.empty() ? free_bytes / 2 : free_bytes / 4;
  const int64_t wanted = int64_t{options.max_num_seqs} * (options.enable_prefix_caching ? 2 : 1);
  const auto fit = static_cast<int64_t>(slot_bytes > 0 ? share / slot_bytes : wanted);  // 0: all in other stages
  const auto slots = std::min<int64_t>(wanted, fit);
  if (slots < 1) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("the state of one sequence needs {}, but only {} are available",
                                                     format_bytes(slot_bytes), format_bytes(free_bytes)));
  }
  if (slots < options.max_num_seqs) {
    plan.warnings.push_back(fmt::format(
        "memory holds the states of {} concurrent sequences, fewer than --max-num-seqs {}; other sequences wait", slots,
        options.max_num_seqs));
  }
  plan.state_slots = static_cast<int>(slots);
  plan.max_num_seqs = std::min(options.max_num_seqs, plan.state_slots);
  free_bytes -= slot_bytes * slots;
  plan.memory.rows.push_back(
      {"states", slot_bytes * slots, fmt::format("{} slots of {}", slots, format_bytes(slot_bytes))});
}

// Returns the bytes for the KV cache if no option sets its size: all free memory of a device, but only a part of the
// host's, which other programs use too.
size_t default_cache(const LoadPlan& plan, size_t free_bytes) {
  if (!plan.device->memory().host_accessible()) return free_bytes;
  size_t pageable = 0;  // mapped file pages, which should also stay in memory
  for (const MemoryPlan::Row& row : plan.memory.rows) pageable += row.pageable ? row.bytes : 0;
  return (free_bytes - std::min(pageable, free_bytes / 4 * 3)) / 4;
}

// Returns the most blocks a cache can have: the places of tokens in it are 32-bit integers.
int64_t most_blocks(const LoadPlan& plan) {
  int64_t parts = 1;
  for (const BlockGroup& group : plan.kv.groups) parts = std::max<int64_t>(parts, group.ids_per_block);
  return std::numeric_limits<int32_t>::max() / (parts * plan.block_size) - 1;
}

// Returns for example " in 7 groups of 5 layers (1 of all tokens, 6 of the last 1024)", or "" if there is one group.
std::string describe_groups(const KvLayout& kv) {
  if (kv.groups.size() < 2) return "";
  std::map<int, int, std::greater<>> by_window;
  int full = 0;
  for (const BlockGroup& group : kv.groups) ++(group.window > 0 ? by_window[group.window] : full);
  std::string text = full > 0 ? fmt::format("{} of all tokens", full) : "";
  for (const auto& [window, count] : by_window) {
    text += fmt::format("{}{} of the last {}", text.empty() ? "" : ", ", count, window);
  }
  return fmt::format(" in {} groups of {} layers ({})", kv.groups.size(), kv.places.size(), text);
}

std::string describe_share(const ops::KeyShare& share) {
  return share.whole() ? "" : fmt::format(", divided between {} ranks,", share.parts);
}

// Makes the sizes of a plan those that all ranks can hold.
void agree(LoadPlan& plan) {
  if (plan.communicator == nullptr) return;
  std::array<int*, 6> sizes = {&plan.blocks,       &plan.max_model_len, &plan.step_tokens,
                               &plan.max_num_seqs, &plan.logit_rows,    &plan.state_slots};
  std::array<int, sizes.size()> mine;
  for (size_t i = 0; i < sizes.size(); ++i) mine[i] = *sizes[i];
  std::vector<std::array<int, sizes.size()>> all(static_cast<size_t>(plan.communicator->size()));
  plan.communicator->all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (const auto& of_rank : all) {
    for (size_t i = 0; i < sizes.size(); ++i) *sizes[i] = std::min(*sizes[i], of_rank[i]);
  }
}

// Plans the sequence length and the number of blocks. Sizes set by options are used exactly; others become what fits.
void plan_cache(const EngineOptions& options, LoadPlan& plan, size_t free_bytes) {
  const int asked = options.max_model_len;
  if (asked < 0) throw Error(ErrorCode::kInvalidRequest, "--max-model-len must not be negative");
  if (asked > plan.shape.max_positions) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("--max-model-len {} is longer than the model's {} positions",
                                                        asked, plan.shape.max_positions));
  }
  const int bs = plan.block_size;
  plan.max_model_len = asked > 0 ? asked : plan.shape.max_positions;
  const auto blocks_of_sequence = [&](int64_t tokens) -> int64_t {
    return peak_blocks(tokens, bs, plan.kv.groups, plan.step_tokens);
  };
  size_t block_bytes = plan.kv.block_bytes();
  int64_t most = blocks_of_sequence(plan.max_model_len) * options.max_num_seqs;
  if (block_bytes == 0) {  // blocks are block hashes only, or those of other stages of the pipeline
    most = std::max(blocks_of_sequence(plan.max_model_len), std::min(most, kMostNames));
    block_bytes = kBookkeeping;
  }
  const int64_t asked_bytes = options.kv_cache_memory_bytes;
  if (asked_bytes < 0) throw Error(ErrorCode::kInvalidRequest, "--kv-cache-memory-bytes must not be negative");
  const auto default_bytes =
      static_cast<size_t>(options.kv_cache_share * static_cast<double>(default_cache(plan, free_bytes)));
  int64_t blocks = asked_bytes > 0 ? asked_bytes / static_cast<int64_t>(block_bytes)
                                   : std::min<int64_t>(most, static_cast<int64_t>(default_bytes / block_bytes));
  const int64_t one_sequence = blocks_of_sequence(plan.max_model_len);
  if (asked_bytes == 0 && blocks < one_sequence) {
    blocks = std::min<int64_t>(one_sequence, static_cast<int64_t>(free_bytes / block_bytes));
  }
  blocks = std::min<int64_t>(blocks, most_blocks(plan));
  if (blocks < one_sequence) {
    int64_t fits = 0;  // counted in blocks by the loop, then in tokens
    for (int64_t more = 1 << 26; more > 0; more /= 2) {
      if (blocks_of_sequence((fits + more) * bs) <= blocks) fits += more;
    }
    fits *= bs;
    if (asked > 0 || fits < bs) {
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("one sequence of {} tokens needs {} of KV cache, but only {} tokens fit: lower "
                              "--max-model-len or raise --kv-cache-memory-bytes",
                              plan.max_model_len, format_bytes(one_sequence * block_bytes), fits));
    }
    plan.warnings.push_back(
        fmt::format("the KV cache has room for {} of the model's {} tokens per sequence; longer requests are rejected",
                    fits, plan.max_model_len));
    plan.max_model_len = static_cast<int>(fits);
  }
  plan.blocks = static_cast<int>(blocks);
}

// Plans the sequence length and scratch memory of a model that computes embeddings or scores. It processes whole texts:
// a step must have room for the longest text, and keys and values are needed for one layer at a time.
void plan_whole_texts(const EngineOptions& options, LoadPlan& plan, const Model& model, const LoadContext& context,
                      size_t free_bytes) {
  const int asked = options.max_model_len, most = plan.shape.max_positions, said = plan.embedding.max_seq_length;
  if (asked < 0 || asked > most) {
    throw Error(
        ErrorCode::kInvalidRequest,
        fmt::format("--max-model-len {} is out of range (expected 0 to {}, the model's positions)", asked, most));
  }
  const int wanted = asked > 0 ? asked : said > 0 ? std::min(said, most) : most;
  plan.kv = one_place(plan.shape.kv, plan.kv_dtype, options.block_size);
  const size_t block_bytes = plan.kv.block_bytes();
  const int budget = plan.step_tokens;
  size_t step = 0;
  for (plan.max_model_len = wanted;; plan.max_model_len /= 2) {
    plan.step_tokens = std::max(budget, plan.max_model_len);
    plan.blocks = plan.step_tokens / options.block_size + plan.max_num_seqs;  // a sequence wastes less than a block
    step = step_bytes(model, context, plan.step_tokens, plan.max_num_seqs) +
           workspace_bytes(plan, context, plan.max_model_len);
    const size_t bytes = step + block_bytes * plan.blocks;
    if (bytes <= (asked > 0 ? free_bytes : free_bytes / 2)) break;
    if (asked > 0 || plan.max_model_len < 2) {
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("a step of {} tokens needs {}, but only {} are available: lower --max-model-len or "
                              "--max-num-batched-tokens",
                              plan.step_tokens, format_bytes(bytes), format_bytes(free_bytes)));
    }
  }
  agree(plan);
  if (plan.max_model_len < wanted) {
    plan.warnings.push_back(
        fmt::format("memory suffices for {} of the model's {} tokens per text; longer texts are rejected",
                    plan.max_model_len, wanted));
  }
  plan.memory.rows.push_back({"step", step, fmt::format("activations of {} tokens", plan.step_tokens)});
  plan.memory.rows.push_back({"keys, values", block_bytes * plan.blocks,
                              fmt::format("{} blocks of {} tokens as {}, {} tokens per text at most", plan.blocks,
                                          options.block_size, plan.kv_dtype->name, plan.max_model_len)});
}

// Adds the memory plan's rows for what is kept of the prefix cache outside of the device's blocks.
void plan_rows(const EngineOptions& options, LoadPlan& plan) {
  const char* name = !options.kv_transfer_listen.empty() ? "--kv-transfer-listen"
                     : !options.kv_transfer_peer.empty() ? "--kv-transfer-peer"
                     : !options.kv_disk.empty()          ? "--kv-disk"
                                                         : "--kv-host-memory-bytes";
  if (!options.enable_prefix_caching) {
    throw Error(ErrorCode::kInvalidRequest, fmt::format("{} needs --enable-prefix-caching", name));
  }
  if (!plan.shape.state.empty()) {
    throw Error(
        ErrorCode::kUnsupportedModel,
        fmt::format("{} cannot be used with {}: the states of its recurrent layers are not kept", name, options.model));
  }
  const size_t bytes = host_row_bytes(options) / static_cast<size_t>(ranks_of(options));
  if (plan.device->memory().host_accessible()) {
    plan.memory.rows.push_back({"kept rows", bytes, "keys and values of the prefix cache, outside of its blocks"});
    return;
  }
  plan.memory.rows.push_back(
      {"kept rows", 2 * kStagedRowBytes, "keys and values on their way to host memory and back"});
  if (const size_t free = host_memory().available(); bytes > free) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("{}: {} of host memory are wanted, but {} are available", name,
                                                     format_bytes(bytes), format_bytes(free)));
  }
}

bool fp8_activations(const EngineOptions& options, const Checkpoint& checkpoint) {
  const std::string& asked = options.activation_quantization;
  if (asked != "auto" && asked != "none" && asked != "fp8") {
    throw Error(ErrorCode::kInvalidRequest,
                fmt::format("--activation-quantization: unknown value '{}' (expected one of: auto, none, fp8)", asked));
  }
  return asked == "fp8" || (asked == "auto" && (checkpoint.fp8_activations || options.quantization == "fp8"));
}

// Adds the memory plan's rows for the weights. Pages of a packed file are not counted as used memory on the host.
void plan_weights(const EngineOptions& options, LoadPlan& plan) {
  const std::string what = fmt::format("{} parameters as {}", plan.parameters, plan.weight_type()->name);
  const bool copied = !plan.device->memory().host_accessible();
  if (options.packed_cache.empty() || copied) return plan.memory.rows.push_back({"weights", plan.weight_bytes, what});
  plan.memory.rows.push_back({"packed weights", plan.packed_bytes(),
                              fmt::format("{}, pages of a file in {}: not counted", what, options.packed_cache), true});
  plan.memory.rows.push_back({"other weights", plan.weight_bytes - plan.packed_bytes(), "vectors and tables"});
}

}  // namespace

namespace {

// Tells about quantized matrices that no block format can hold, because otherwise their size in memory is a surprise.
void warn_about_unpacked(LoadPlan& plan) {
  size_t matrices = 0, elements = 0;
  std::string first;
  for (const auto& [name, entry] : plan.checkpoint->tensors()) {
    if (!entry.compute || entry.dtype->block_size > 1) continue;
    if (matrices++ == 0) first = name;
    elements += static_cast<size_t>(entry.shape.elements());
  }
  if (matrices == 0) return;
  plan.warnings.push_back(fmt::format(
      "{} quantized matrices ({} elements) do not stay packed but are stored as {}, because no block format has their "
      "groups (act-order, or an unusual size); the first is '{}'",
      matrices, elements, plan.weight_type()->name, first));
}

}  // namespace

namespace {

// Says which part of the model this process has: a stage is a run of as many ranks as divide its layers.
void join_ranks(const EngineOptions& options, LoadPlan& plan, std::shared_ptr<Communicator> communicator) {
  const int size = options.tensor_parallel_size, stages = options.pipeline_parallel_size;
  check_ranks(options);
  check_key_parts(options);
  const int rank = communicator != nullptr ? communicator->rank() : 0;
  plan.ranks = {rank % size, size};
  plan.stage = {rank / size, stages};
  plan.communicator = std::move(communicator);
  if (plan.communicator == nullptr) return;
  CHECK(plan.communicator->size() == size * stages, "{} ranks of {}", plan.communicator->size(), size * stages);
  if (stages == 1) {
    plan.group = plan.communicator;
  } else if (size > 1) {
    plan.group = plan.communicator->group(plan.stage.rank * size, size);
  }
  plan.key_ranks = join_key_ranks(options, plan);
}

}  // namespace

size_t LoadPlan::packed_bytes() const { return std::accumulate(packed_sizes.begin(), packed_sizes.end(), size_t{0}); }

// Vectors of a model that generates.
void plan_vectors(const EngineOptions& options, LoadPlan& plan) {
  const std::string& asked = options.embedding_pooling;
  if (asked == "none") return;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("--embedding-pooling {}: {}", asked, why));
  };
  if (asked != "last" && asked != "mean") refuse("unknown value (expected one of: none, last, mean)");
  if (plan.task != Task::kGenerate) {
    refuse(fmt::format("the model was loaded with --task {} (expected generate)", to_string(plan.task)));
  }
  if (plan.shape.hidden == 0) {
    refuse(fmt::format("models of the family {} give no hidden states beside their logits (use --task embed)",
                       plan.shape.family));
  }
  plan.embedding_pooling = asked == "last" ? HiddenPooling::kLast : HiddenPooling::kMean;
  plan.embedding.matryoshka = options.matryoshka;
  const size_t bytes = HiddenPooler::bytes(*plan.embedding_pooling, plan.max_num_seqs, plan.shape.hidden);
  if (bytes > 0) plan.memory.rows.push_back({"vectors", bytes, fmt::format("sums of {} texts", plan.max_num_seqs)});
}

// Hidden states of texts that contrastive search goes on with.
void plan_hidden_rows(const EngineOptions& options, LoadPlan& plan) {
  const int rows = options.contrastive_search_tokens;
  if (rows == 0) return;
  const auto refuse = [](ErrorCode code, const std::string& why) {
    throw Error(code, fmt::format("--contrastive-search-tokens: {}", why));
  };
  if (plan.task != Task::kGenerate) {
    refuse(ErrorCode::kUnsupportedModel,
           fmt::format("the model was loaded with --task {} (expected generate)", to_string(plan.task)));
  }
  if (plan.shape.hidden == 0) {
    refuse(ErrorCode::kUnsupportedModel,
           fmt::format("models of the family {} give no hidden states beside their logits", plan.shape.family));
  }
  plan.hidden_rows = rows;
  const size_t bytes = HiddenSimilarity::bytes(rows, plan.shape.hidden);
  if (plan.device->memory().host_accessible()) {
    plan.memory.rows.push_back({"hidden states", bytes, fmt::format("{} tokens of contrastive searches", rows)});
  } else if (const size_t free = host_memory().available(); bytes > free) {
    refuse(ErrorCode::kOutOfMemory,
           fmt::format("{} of host memory are wanted, but {} are available", format_bytes(bytes), format_bytes(free)));
  }
}

// Memory of a step for the hidden states that the last stage of a pipeline sends to rank 0.
size_t sent_hidden_bytes(const LoadPlan& plan) {
  const bool wanted = plan.embedding_pooling.has_value() || plan.hidden_rows > 0;
  if (!plan.stage.many() || !wanted) return 0;
  return static_cast<size_t>(plan.step_tokens) * static_cast<size_t>(plan.shape.hidden) * sizeof(float) + 64;
}

// Vectors in place of the ids of prompts.
void plan_prompt_vectors(const EngineOptions& options, LoadPlan& plan) {
  if (!options.enable_prompt_embeds) return;
  if (plan.task != Task::kGenerate) {
    throw Error(ErrorCode::kUnsupportedModel, fmt::format("--enable-prompt-embeds: the model was loaded with --task {} "
                                                          "(expected generate)",
                                                          to_string(plan.task)));
  }
  if (plan.shape.input_width == 0) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("--enable-prompt-embeds: layers of the family {} read token ids, which vectors have not",
                            plan.shape.family));
  }
  plan.prompt_vector_width = plan.shape.input_width;
}

LoadPlan plan_load(const EngineOptions& given, ThreadPool& pool, std::shared_ptr<Communicator> communicator) {
  check_options(given);
  EngineOptions options = given;
  LoadPlan plan;
  plan.drafts = parse_speculative_config(options.speculative_config);
  join_ranks(options, plan, std::move(communicator));
  plan.checkpoint = open_checkpoint(options.model, {.allow_bin = options.allow_bin});
  check_sizes(*plan.checkpoint);
  plan.phases.end("files");
  plan.task = choose_task(options.task, *plan.checkpoint);
  if (plan.task == Task::kEmbed) {
    plan.embedding = read_embedding_files(*plan.checkpoint);
    plan.embedding.matryoshka |= options.matryoshka;
  }
  if (plan.task == Task::kScore) plan.score_activation = read_score_activation(plan.checkpoint->config);
  plan.backend = &ops::select_backend(options.backend, options.deterministic);
  const int ranks = ranks_of(options);
  if (ranks > 1) refuse_with_ranks(options, *plan.backend);
  const int rank = plan.communicator != nullptr ? plan.communicator->rank() : 0;
  const DeviceOfRank place = device_of_rank(*plan.backend, options.device, place_of(options, rank));
  plan.device = &plan.backend->open(place.ordinal);
  plan.queue = plan.device->make_queue(pool);
  plan.phases.end("device");
  const bool host_accessible = plan.device->memory().host_accessible();
  if (ranks > 1 && !host_accessible && options.distributed_executor_backend == "mpi") {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("--backend {} cannot be used with --distributed-executor-backend mpi: ranks on GPUs need "
                            "each other's memory (expected local, or a backend of CPUs such as cpu-avx512)",
                            plan.backend->name));
  }
  if (ranks > 1 && !host_accessible && !options.packed_cache.empty()) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("--packed-cache with several ranks needs a backend with weights in host memory, not {}",
                            plan.backend->name));
  }
  if (options.max_num_seqs == 0) options.max_num_seqs = host_accessible ? 256 : 512;
  plan.block_size = options.block_size * options.decode_context_parallel_size;
  plan.step_tokens = options.max_num_batched_tokens;
  if (plan.step_tokens == 0) plan.step_tokens = host_accessible ? 512 : 8192;
  plan.dtype = parse_dtype("dtype", options.dtype, checkpoint_dtype(*plan.checkpoint));
  plan.quantization = parse_quantization(options.quantization, plan.checkpoint->config);
  plan.fp8_activations = fp8_activations(options, *plan.checkpoint);
  plan.keep_types = options.dtype == "auto" && plan.checkpoint->keep_types;
  plan.kv_dtype = parse_cache_dtype(options.kv_cache_dtype, plan.dtype, plan);
  if (options.enable_lora || !options.lora_modules.empty()) {
    if (plan.task != Task::kGenerate) {
      throw Error(ErrorCode::kUnsupportedModel, "--enable-lora: only models that generate text can have adapters");
    }
    plan.adapters = {.slots = options.max_loras,
                     .rank = options.max_lora_rank,
                     .type = parse_lora_dtype(options.lora_dtype, plan.dtype),
                     .experts = options.lora_experts};
  }

  const std::unique_ptr<LoraSites> sites = make_sites(plan, /*dry=*/true);
  LoadContext context = context_for(options, plan, sites.get(), /*dry=*/true);
  const std::unique_ptr<ExpertBalancer> balancer = make_balancer(options);
  context.balancer = balancer.get();
  const std::unique_ptr<Model> model = build_model(plan, context, options.max_model_len);
  if (balancer != nullptr) balancer->check();
  note_model(plan, *model, context);
  check_key_parts(options, plan);
  if (plan.kv_dtype == &kInt8 && std::ranges::any_of(plan.shape.kv, &KvShape::entries)) {
    throw Error(ErrorCode::kUnsupportedModel,
                fmt::format("--kv-cache-dtype int8: not supported for the family {} (expected one of: auto, float32, "
                            "bfloat16, float16, fp8, fp8_e5m2)",
                            plan.shape.family));
  }
  plan.max_num_seqs = plan.logit_rows = options.max_num_seqs;
  plan_vectors(options, plan);
  plan_hidden_rows(options, plan);
  plan_prompt_vectors(options, plan);
  plan_drafts(options.model, plan);
  warn_about_unpacked(plan);

  MemoryPlan& memory = plan.memory;
  memory.available_bytes =
      usable_memory(plan.device->memory(), options.gpu_memory_utilization) / static_cast<size_t>(place.sharers);
  if (place.sharers > 1 && !host_accessible) {
    plan.warnings.push_back(fmt::format("{} ranks share device {}, and take turns: a device for each is faster",
                                        place.sharers, place.ordinal));
  }
  memory.mapped_bytes = context.mapped_bytes;
  plan_weights(options, plan);
  if (sites != nullptr) {
    const size_t of_experts = sites->expert_bytes();
    const std::string room = fmt::format("{} of rank {} at most", plan.adapters.slots, plan.adapters.rank);
    memory.rows.push_back({"adapters", sites->bytes() - of_experts, room});
    if (of_experts > 0) memory.rows.push_back({"adapters of experts", of_experts, room + " (see --lora-experts)"});
  }
  if (plan.task != Task::kGenerate) {
    if (keeps_rows(options)) {
      throw Error(ErrorCode::kInvalidRequest,
                  "--kv-host-memory-bytes, --kv-disk, --kv-transfer-listen and --kv-transfer-peer need a model that "
                  "generates text: others keep no prefix cache");
    }
    const size_t used = memory.total() + kHeadroom;
    size_t left = memory.available_bytes > used ? memory.available_bytes - used : 0;
    plan_states(options, plan, left);
    plan_whole_texts(options, plan, *model, context, left);
    return plan;
  }
  if (keeps_rows(options)) plan_rows(options, plan);
  const size_t workspace_of_draft = plan_draft(options, plan, *model);
  const int longest = options.max_model_len > 0 ? options.max_model_len : plan.shape.max_positions;
  const size_t step = step_bytes(*model, context, plan.step_tokens, plan.logit_rows) + sent_hidden_bytes(plan) +
                      std::max(workspace_bytes(plan, context, longest), workspace_of_draft);
  memory.rows.push_back(
      {"step", step, fmt::format("activations of {} tokens, logits of {} rows", plan.step_tokens, plan.logit_rows)});
  const size_t fixed = memory.total() + kHeadroom;
  size_t free_bytes = memory.available_bytes > fixed ? memory.available_bytes - fixed : 0;
  plan_states(options, plan, free_bytes);
  plan.kv = groups_by_window(plan.shape.kv, plan.kv_dtype, options.block_size, longest);
  plan.kv.share = key_share(options, plan.ranks);
  if (plan.draft != nullptr) plan.kv = with_second_model(std::move(plan.kv), plan.draft->shape.kv);
  const size_t block_bytes = plan.kv.block_bytes();
  if (free_bytes < std::max(block_bytes, kBookkeeping)) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("{} does not fit in memory:\n{}", options.model, memory.table()));
  }
  plan_cache(options, plan, free_bytes);
  agree(plan);
  share_blocks(plan);
  memory.rows.push_back(
      {"KV cache", block_bytes * plan.blocks,
       fmt::format("{} blocks of {} tokens{} as {}{}{}, {} tokens per sequence at most", plan.blocks, plan.block_size,
                   describe_share(plan.kv.share), plan.kv_dtype->name, describe_groups(plan.kv),
                   plan.draft != nullptr ? ", those of drafts included" : "", plan.max_model_len)});
  if (memory.total() + kHeadroom > memory.available_bytes) {
    throw Error(ErrorCode::kOutOfMemory, fmt::format("{} does not fit in memory:\n{}", options.model, memory.table()));
  }
  return plan;
}

namespace {

// Runs work() on one rank after the other: it may wait for a file that another program's rank holds, and both take
// files in the same order. If work() throws PackedFileError on one rank, this throws it on all, so that they go on
// alike.
template <class F>
void on_all_ranks(Communicator* ranks, F&& work) {
  if (ranks == nullptr) return work();
  std::exception_ptr error;
  for (int turn = 0; turn < ranks->size(); ++turn) {
    try {
      if (turn == ranks->rank()) work();
    } catch (const PackedFileError&) {
      error = std::current_exception();
    }
    ranks->barrier();
  }
  const std::byte failed{error != nullptr};
  std::vector<std::byte> all(static_cast<size_t>(ranks->size()));
  ranks->all_gather(std::span(&failed, 1), all);
  if (error) std::rethrow_exception(error);
  const auto first = std::ranges::find(all, std::byte{1});
  if (first == all.end()) return;
  throw PackedFileError(ErrorCode::kInternal, fmt::format("rank {} cannot use its file", first - all.begin()));
}

// Loads the model. If the options name a folder for packed weights, the weights are in a file there. Throws
// PackedFileError if that file cannot be written.
LoadedModel load(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events,
                 const std::shared_ptr<Communicator>& communicator) {
  LoadedModel loaded{.plan = plan_load(options, pool, communicator),
                     .packed = nullptr,
                     .adapters = nullptr,
                     .model = nullptr,
                     .kv = nullptr,
                     .states = nullptr,
                     .arena = nullptr};
  const LoadPlan& plan = loaded.plan;
  loaded.plan.phases.end("plan");
  if (events.planned) events.planned(plan);
  Communicator* const ranks = plan.communicator.get();
  if (!options.packed_cache.empty()) {
    on_all_ranks(ranks, [&] { loaded.packed = open_packed_file(options, plan, pool); });
  }
  const bool packs = loaded.packed == nullptr || !loaded.packed->filled();
  const bool on_host = plan.device->memory().host_accessible();
  if (packs) {
    if (ranks_of(options) == 1) plan.checkpoint->read_ahead();  // a rank does not need all of it
  } else {
    log::info("{}: {} packed weights", loaded.packed->path(), on_host ? "mapping" : "reading");
    const bool was_read = packed_file_check(options, plan) == PackedFileCheck::kOnLoad;
    if (!was_read && on_host && fits_in_memory(plan)) loaded.packed->read_ahead(pool);
  }
  loaded.adapters = make_sites(plan, /*dry=*/false);
  if (!on_host) {
    const size_t gaps = Slab::kAlignment * plan.packed_sizes.size();
    loaded.slab = std::make_unique<Slab>(plan.weight_bytes + gaps, plan.device->memory());
  }
  LoadContext context = context_for(options, plan, loaded.adapters.get(), /*dry=*/false, loaded.slab.get());
  context.packed = loaded.packed;
  const double total = static_cast<double>(std::max<size_t>(plan.checkpoint->total_bytes(), 1));
  if (!on_host) {
    loaded.packer = std::make_unique<Packer>(*plan.queue);
    context.packer = loaded.packer.get();
  }
  if (events.progress) {
    context.progress = [&](size_t done) {
      const size_t pending = loaded.packer != nullptr ? loaded.packer->pending() : 0;
      events.progress(static_cast<double>(done - std::min(done, pending)) / total);
    };
  }
  loaded.balancer = make_balancer(options);
  context.balancer = loaded.balancer.get();
  loaded.model = build_model(plan, context, plan.max_model_len);
  loaded.for_file = std::move(context.for_file);
  if (loaded.balancer != nullptr || ranks != nullptr) loaded.finish_weights(events.progress);
  context.packer = nullptr;
  loaded.plan.phases.end("layers");
  if (loaded.balancer != nullptr) loaded.balancer->start(context);
  plan.checkpoint->check_files();  // zeros in place of lost pages must not get into the packed file
  if (loaded.packed != nullptr && on_host) {
    on_all_ranks(ranks, [&] {
      if (packs) loaded.packed->finish(&pool);
    });
  }
  Memory& memory = plan.device->memory();
  const int spare = plan.spare();
  loaded.kv = std::make_unique<KvCache>(plan.kv, plan.blocks + spare, memory);
  const int slots = plan.state_slots > 0 ? plan.state_slots + spare : 0;
  loaded.states = std::make_unique<StateCache>(plan.shape.state, slots, memory);
  const size_t step = step_bytes(*loaded.model, context, plan.step_tokens, plan.logit_rows) + sent_hidden_bytes(plan);
  loaded.arena = std::make_unique<Arena>(step, memory);
  plan.queue->reserve_workspace(workspace_bytes(plan, context, plan.max_model_len));
  loaded.draft = load_draft(options, plan, *loaded.model, *loaded.kv);
  loaded.plan.phases.end("caches");
  loaded.check_files();
  if (loaded.packed != nullptr) loaded.packed->start_check();
  for (const std::string& warning : plan.warnings) {
    if (plan.ranks.rank == 0 && plan.stage.rank == 0) log::warning("{}", warning);
  }
  if (plan.communicator != nullptr) plan.communicator->barrier();  // all ranks have loaded their parts
  return loaded;
}

}  // namespace

void LoadedModel::finish_weights(const std::function<void(double)>& progress) {
  if (packer == nullptr) return;
  const double total = static_cast<double>(std::max<size_t>(plan.checkpoint->total_bytes(), 1));
  constexpr auto kBetweenReports = std::chrono::milliseconds(100);
  while (!packer->wait(std::chrono::steady_clock::now() + kBetweenReports)) {
    if (progress) progress(1.0 - static_cast<double>(packer->pending()) / total);
  }
  log::debug("weights beside the start: {}", packer->describe());
  packer.reset();
  plan.checkpoint->check_files();
  if (packed == nullptr) return;
  if (packed->filled()) {
    packed->check();
    packed.reset();  // the weights are on the device
  } else {
    writer = std::make_unique<PackedWriter>(std::move(packed), std::move(for_file), plan.device->memory());
  }
}

void LoadedModel::check_files() const {
  if (!any_file_damaged()) return;
  plan.checkpoint->check_files();
  if (packed != nullptr) packed->check();
}

bool LoadedModel::files_intact() const {
  try {
    check_files();
    return true;
  } catch (const Error&) {
    return false;
  }
}

LoadedModel load_model(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events,
                       std::shared_ptr<Communicator> communicator) {
  return load_again_if_damaged(options, [&](const EngineOptions& given) {
    LoadedModel loaded = begin_loading(given, pool, events, communicator);
    loaded.finish_weights(events.progress);
    return loaded;
  });
}

LoadedModel begin_loading(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events,
                          std::shared_ptr<Communicator> communicator) {
  if (loads_replicas(options)) {
    log::info("--data-parallel-size {}: this command needs one replica only", options.data_parallel_size);
  }
  if (communicator == nullptr) check_launched(options);
  if (ranks_of(options) > 1 && communicator == nullptr) {
    plan_load(options, pool);  // what is wrong with the options or the model is reported once, before others start
    communicator = start_ranks(options);
  }
  try {
    return load(options, pool, events, communicator);
  } catch (const PackedFileError& e) {
    log::warning("--packed-cache: {}; the weights are packed into memory", e.what());
  } catch (const std::exception& e) {
    if (communicator != nullptr) communicator->fail(e.what());  // the other ranks must not wait for this one
    throw;
  }
  EngineOptions without = options;
  without.packed_cache.clear();
  return load(without, pool, events, communicator);
}

}  // namespace sluice
