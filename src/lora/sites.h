// Where adapters change a model's linear layers. Every Linear has a site with room for the matrices of some adapters
// (LoRA, Hu et al. 2021, arXiv:2106.09685). Which adapter is in which place is decided above.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/ops.h"

namespace sluice {

struct RowRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// The part of a layer that this process computes (nn/loading/split.h). Its outputs are LoraSite::Part::rows.
struct LoraShare {
  int64_t module_inputs = 0;  // columns of the modules' weights
  RowRange inputs{};          // those that the layer takes here
  bool adds_bias = true;      // false: another rank's summand has it
  bool elsewhere = false;     // the layer belongs to another stage (nn/loading/stage.h)
};

// What an adapter does to a layer besides small matrices. The adapter owns the memory.
struct LoraExtra {
  int64_t first = 0;     // the layer's output where it begins
  ops::Weight weight{};  // added to the layer's matrix; of a table with `rows`: b, see there
  Tensor bias{};         // [1, outputs] added to the outputs from there on; empty: nothing
  Tensor rows{};         // of a table: its new rows; with a weight: a [ids, rank], and b a^T is added instead
};

// The site of one Linear. Its parts are the modules of the checkpoint that are fused into it. Or that of an Embedding.
struct LoraSite {
  struct Part {
    std::string module;                // "model.layers.0.self_attn.q_proj"
    int64_t module_outputs = 0;        // rows of the module's weight
    std::vector<RowRange> rows;        // its rows in output order, as far as this process has them
    std::vector<float> input_scale{};  // [k] factors of the columns that the stored weight has; empty: none
    std::string tensor{};              // of the module's matrix
    bool transposed = false;           // the tensor is [k, module_outputs]
    bool rescaled = false;             // its rows are scaled to unit length, so that nothing can be added to them
  };
  bool table = false;  // an Embedding of weight.k ids and weight.n columns, without a and b
  std::vector<Part> parts;
  LoraShare share;  // if it is elsewhere, the site has no memory and never changes
  ops::LoraWeight weight;
  Buffer a, b, scales;
  std::vector<bool> used;                             // by slot: whether its adapter changes this layer
  bool changed = false;                               // since the start, some adapter has changed this layer
  std::vector<std::vector<const LoraExtra*>> extras;  // by slot
  bool has_extras = false;                            // some slot has

  int64_t first_output(size_t part) const { return part == 0 ? 0 : weight.part_ends[part - 1]; }
};

class LoraSites {
 public:
  struct Room {
    int slots = 0;           // adapters
    int rank = 0;            // the largest one
    DType type = &kFloat32;  // of the small matrices: fp32 or bf16
  };
  // `dry`: the sites only count their bytes.
  LoraSites(Room room, bool dry, Memory& memory) : room_(room), dry_(dry), memory_(memory) {}

  const Room& room() const { return room_; }
  // Called by the constructor of a Linear.
  std::shared_ptr<LoraSite> add(std::vector<LoraSite::Part> parts, const LoraShare& share);

  // Called by the constructor of an Embedding.
  std::shared_ptr<LoraSite> add_table(LoraSite::Part part, int64_t ids, int64_t columns, bool elsewhere);

  struct Place {
    LoraSite* site = nullptr;
    size_t part = 0;
  };
  // The places of a module; none if adapters cannot change it.
  std::span<const Place> find(std::string_view module) const;
  bool shares_tensor(std::string_view tensor) const;  // several modules have it
  std::span<const std::shared_ptr<LoraSite>> all() const { return sites_; }
  size_t bytes() const { return bytes_; }
  // Called after the site's adapters have changed.
  void update(LoraSite& site);
  int changed() const { return changed_; }            // sites that some adapter has changed since the start
  bool plain() const { return with_extras_ == 0; }    // no adapter that has a slot does more than small matrices
  int64_t most_inner() const { return most_inner_; }  // numbers per row of ops::LoraShrinkArgs::inner

 private:
  const Room room_;
  const bool dry_;
  Memory& memory_;
  std::vector<std::shared_ptr<LoraSite>> sites_;
  std::map<std::string, std::vector<Place>, std::less<>> places_;
  size_t bytes_ = 0;
  int64_t most_inner_ = 0;
  int changed_ = 0;
  int with_extras_ = 0;  // sites with extras
};

}  // namespace sluice
