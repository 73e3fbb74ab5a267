// From options to a loaded model: open, plan, check, build. The plan comes first; `inspect` stops there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/memory_plan.h"
#include "engine/sentence_transformers.h"
#include "formats/checkpoint.h"
#include "nn/attention/kv_cache.h"
#include "nn/loading/packed_file.h"
#include "nn/model.h"
#include "sluice/options.h"

namespace sluice {

// What the configuration and the tensor headers tell, before any weight is read.
struct LoadPlan {
  std::shared_ptr<const Checkpoint> checkpoint;
  const ops::Backend* backend = nullptr;
  ops::Device* device = nullptr;
  std::shared_ptr<ops::Queue> queue;  // of the device; packs the weights and runs the steps
  DType dtype = nullptr;              // weights and compute
  DType quantization = nullptr;       // block format of matrices, null: none
  bool fp8_activations = false;       // inputs of fp8_e4m3 matrices may be rounded to 8-bit floats
  DType kv_dtype = nullptr;
  DType weight_type() const { return quantization != nullptr ? quantization : dtype; }  // of most matrices
  Task task = Task::kGenerate;
  EmbeddingFiles embedding{};                                 // kEmbed
  ScoreActivation score_activation = ScoreActivation::kNone;  // kScore
  ModelShape shape;
  int64_t parameters = 0;
  size_t weight_bytes = 0;           // of packed matrices and vectors
  std::vector<size_t> packed_sizes;  // of each packed matrix
  std::string packed_layout;         // what they are
  bool keep_types = false;           // plain types, too, stay what they are in the checkpoint
  size_t packed_bytes() const;
  int max_model_len = 0;
  int step_tokens = 0;   // most tokens of one step
  KvLayout kv;           // how layers share the blocks of the KV cache
  int blocks = 0;        // of it
  int block_size = 0;    // tokens
  int state_slots = 0;   // of recurrent layers; 0: the model has none
  int max_num_seqs = 0;  // sequences of one step: as asked for, or as many as there are states
  int logit_rows = 0;    // most rows of logits in one step
  // Blocks and state slots beside these, of the rows that pad a recorded step (engine/graph_runner.h).
  int spare() const { return backend->can.captures ? 1 : 0; }
  MemoryPlan memory;
  std::vector<std::string> warnings;  // of what the model could do and this plan has no room for
};

// Throws Error; kOutOfMemory with the table when the plan does not fit.
LoadPlan plan_load(const EngineOptions& options, ThreadPool& pool);

struct LoadedModel {
  LoadPlan plan;
  std::shared_ptr<PackedFile> packed;  // the weights' file; null: they are in memory
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;
  std::unique_ptr<StateCache> states;
  std::unique_ptr<Arena> arena;
};

// Called while a model is loaded, by the thread that loads it; what they throw ends it. May be null.
struct LoadEvents {
  std::function<void(const LoadPlan&)> planned{};  // before the weights are read, for what can be done beside that
  std::function<void(double)> progress{};          // a share from 0 to 1, now and then
};
// Reads and packs the weights, or maps those that were packed before (--packed-cache). Logs the plan's warnings.
LoadedModel load_model(const EngineOptions& options, ThreadPool& pool, const LoadEvents& events = {});

}  // namespace sluice
