// Loads a model from the engine's options: opens the checkpoint, plans memory, checks, and builds the model. The plan
// is made before any weight is read; `inspect` stops after it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/memory_plan.h"
#include "engine/phases.h"
#include "engine/sentence_transformers.h"
#include "formats/checkpoint.h"
#include "lora/sites.h"
#include "nn/attention/kv_cache.h"
#include "nn/loading/packed_file.h"
#include "nn/loading/packed_writer.h"
#include "nn/loading/packer.h"
#include "nn/model.h"
#include "parallel/communicator.h"
#include "sluice/options.h"
#include "sluice/request.h"
#include "speculative/options.h"
#include "tensor/slab.h"

namespace sluice {

// How the model will be loaded, derived from the options, the configuration and the tensor headers.
struct LoadPlan {
  std::shared_ptr<const Checkpoint> checkpoint;
  const ops::Backend* backend = nullptr;
  ops::Device* device = nullptr;
  std::shared_ptr<ops::Queue> queue;  // the device's queue that packs the weights and runs the steps
  DType dtype = nullptr;              // type of weights and compute
  DType quantization = nullptr;       // block format of matrices; null: none
  bool fp8_activations = false;       // allows inputs of fp8_e4m3 matrices to be rounded to 8-bit floats
  DType kv_dtype = nullptr;           // type of the KV cache
  DType weight_type() const { return quantization != nullptr ? quantization : dtype; }  // type of most matrices
  Task task = Task::kGenerate;
  std::optional<HiddenPooling> embedding_pooling{};           // EngineOptions::embedding_pooling
  EmbeddingFiles embedding{};                                 // for kEmbed
  int prompt_vector_width = 0;                                // ModelInfo::prompt_vector_width
  int hidden_rows = 0;                                        // EngineOptions::contrastive_search_tokens
  ScoreActivation score_activation = ScoreActivation::kNone;  // for kScore
  ModelShape shape;
  int64_t parameters = 0;
  size_t weight_bytes = 0;           // bytes of packed matrices and vectors
  std::vector<size_t> packed_sizes;  // bytes of each packed matrix
  std::string packed_layout;         // description of the packed matrices
  bool keep_types = false;           // keeps every matrix in its checkpoint type, plain types included
  size_t packed_bytes() const;
  int max_model_len = 0;  // most tokens of one sequence
  int step_tokens = 0;    // most tokens of one step
  KvLayout kv;            // how layers share the blocks of the KV cache
  int blocks = 0;         // blocks of the KV cache
  int block_size = 0;     // tokens per block, of which this rank has kv.block_size
  int state_slots = 0;    // slots for recurrent states; 0: the model has no recurrent layers
  int max_num_seqs = 0;   // most sequences of one step: the option's value, or fewer if there are fewer state slots
  int logit_rows = 0;     // most rows of logits in one step
  std::optional<SpeculativeOptions> drafts{};    // of tokens to verify; nullopt: none
  std::shared_ptr<const LoadPlan> draft{};       // the model that drafts; null: there is none. Its blocks are those of
                                                 // this plan, and its layers the last ones of `kv`
  LoraSites::Room adapters{};                    // room for adapters; 0 slots: none
  Ranks ranks{};                                 // which part of each layer this process has
  Ranks stage{};                                 // which layers it has
  std::shared_ptr<Communicator> communicator{};  // to all other ranks; null: there are none, or the plan is all
  std::shared_ptr<Communicator> group{};         // to the ranks that compute each layer together; null: there is one
  std::shared_ptr<Communicator> key_ranks{};     // to those of them that divide the keys of a sequence; null: none do
  // Extra blocks and state slots for the rows that pad a captured step (engine/graph_runner.h).
  int spare() const { return backend->can.captures ? 1 : 0; }
  MemoryPlan memory;
  Phases phases;                      // of the start so far
  std::vector<std::string> warnings;  // limits of this plan that are below what the model supports
};

// Plans the load without reading weights. Throws Error; kOutOfMemory, with the memory table, when the plan does not
// fit. The ranks of a communicator agree on the sizes that all of them can hold. Without one the plan is that of rank
// 0.
LoadPlan plan_load(const EngineOptions& options, ThreadPool& pool,
                   std::shared_ptr<Communicator> communicator = nullptr);

struct LoadedModel {
  LoadPlan plan;
  std::shared_ptr<PackedFile> packed;   // file of packed weights that are used; null: the weights are in memory
  std::unique_ptr<Slab> slab{};         // memory of weights on a device; null: the host's
  std::unique_ptr<LoraSites> adapters;  // where adapters change the model; null: there is no room for any
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<StateCache> states;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<LoadedModel> draft{};                   // see LoadPlan::draft
  std::shared_ptr<ExpertBalancer> balancer{};             // null: experts stay in order
  std::unique_ptr<Packer> packer{};                       // still packs the weights; null: finish_weights() was called
  std::vector<std::shared_ptr<const Buffer>> for_file{};  // weights on a device that `packed` is to hold
  std::unique_ptr<PackedWriter> writer{};                 // writes them; null: there is nothing to write

  // Waits until all weights are in place. Calls progress() now and then, unless it is null, with the share that is.
  // Throws Error if a weight or its file is damaged.
  void finish_weights(const std::function<void(double)>& progress = {});

  // Throws Error(kCorruptFile) if a mapped file of weights became shorter or turned out to be damaged. What was
  // computed since the last call must not be used then. Costs next to nothing while all is well.
  void check_files() const;
  bool files_intact() const;
};

// Callbacks during loading, called by the loading thread. An exception from one aborts the load. Each may be null.
struct LoadEvents {
  std::function<void(const LoadPlan&)> planned{};  // called before the weights are read, to start concurrent work
  std::function<void(double)> progress{};          // called now and then with the share that is done, from 0 to 1
};
// Loads the model: reads and packs the weights, or maps or copies weights that were packed before (--packed-cache).
// Logs the plan's warnings. With --tensor-parallel-size or --pipeline-parallel-size it starts the other ranks first
// (engine/ranks.h), unless the caller is one of them and passes its communicator. Throws Error.
LoadedModel load_model(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events = {},
                       std::shared_ptr<Communicator> communicator = nullptr);
// The same, but weights may still be on their way to the device. Steps can be captured, and finish_weights() must be
// called before one is computed.
LoadedModel begin_loading(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events = {},
                          std::shared_ptr<Communicator> communicator = nullptr);

}  // namespace sluice
