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

// The experts of a layer that are one StackedLinear. Each has small matrices of its own.
struct LoraExperts {
  int64_t count = 0;   // in the model; 0: the layer has no experts
  int64_t most = 0;    // that an adapter may have matrices of: with those that return their input
  RowRange held{};     // those that this process has
  int64_t chosen = 1;  // per row
};

// What an adapter does to a layer besides small matrices. The adapter owns the memory.
struct LoraExtra {
  int64_t first = 0;     // the layer's output where it begins
  ops::Weight weight{};  // added to the layer's matrix; of a table with `rows`: b, see there
  Tensor bias{};         // [1, outputs] added to the outputs from there on; empty: nothing
  Tensor rows{};         // of a table: its new rows; with a weight: a [ids, rank], and b a^T is added instead
};

// A projection of the latent vectors whose heads are a StackedLinear (nn/attention/latent_attention.h). Head h has the
// rows from h * stride + first on. Of A and B, one has a matrix per head, the other one is shared by all heads.
struct LoraHeads {
  int64_t count = 0;  // in the model; 0: the layer has no heads
  RowRange held{};    // those that this process has
  int64_t stride = 0, first = 0;
  bool transposed = false;  // the layer multiplies by the transposed matrices, so that B comes first
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
  LoraExperts experts{};
  LoraHeads heads{};
  std::vector<Part> parts;
  LoraShare share;  // if it is elsewhere, the site has no memory and never changes
  ops::LoraWeight weight;
  Buffer a, b, scales;
  std::vector<bool> used;                             // by slot: whether its adapter changes this layer
  bool changed = false;                               // since the start, some adapter has changed this layer
  std::vector<std::vector<const LoraExtra*>> extras;  // by slot
  bool has_extras = false;                            // some slot has

  int64_t first_output(size_t part) const { return part == 0 ? 0 : weight.part_ends[part - 1]; }
  // The pairs of small matrices that an adapter has here, and as many slots of `weight`.
  int64_t matrices() const { return experts.count > 0 ? experts.held.count : heads.count > 0 ? heads.held.count : 1; }
  // The same for A and for B alone.
  int64_t matrices_a() const { return heads.count > 0 && !heads.transposed ? 1 : matrices(); }
  int64_t matrices_b() const { return heads.count > 0 && heads.transposed ? 1 : matrices(); }
  bool adapts(const ops::Ctx& c) const { return c.adapters != nullptr && changed; }
};

// The memory that layers need, one at a time, for LoraShrinkArgs::inner.
class LoraScratch {
 public:
  void add(int64_t items, int64_t inner);  // `items` per row, of `inner` numbers each
  int64_t floats(int64_t rows) const;      // for a step of up to so many rows
  bool empty() const { return needs_.empty(); }

 private:
  std::map<int64_t, int64_t> needs_;  // the most inner numbers by items
};

class LoraSites {
 public:
  struct Room {
    int slots = 0;           // adapters
    int rank = 0;            // the largest one
    DType type = &kFloat32;  // of the small matrices: fp32 or bf16
    bool experts = true;     // also for those of experts
  };
  // `dry`: the sites only count their bytes.
  LoraSites(Room room, bool dry, Memory& memory) : room_(room), dry_(dry), memory_(memory) {}

  const Room& room() const { return room_; }
  // Called by the constructor of a Linear.
  std::shared_ptr<LoraSite> add(std::vector<LoraSite::Part> parts, const LoraShare& share);

  // Called by the constructor of a layer of experts, which then gives names to it; null if there is no room for
  // experts.
  std::shared_ptr<LoraSite> add_experts(std::vector<LoraSite::Part> parts, const LoraShare& share,
                                        const LoraExperts& experts);

  // Called by the constructor of a layer of heads. All parts of the module may have sites of their own.
  std::shared_ptr<LoraSite> add_heads(LoraSite::Part part, const LoraShare& share, const LoraHeads& heads);

  // Called by the constructor of an Embedding.
  std::shared_ptr<LoraSite> add_table(LoraSite::Part part, int64_t ids, int64_t columns, bool elsewhere);

  struct Place {
    LoraSite* site = nullptr;
    size_t part = 0;
    int64_t outputs = 0;          // rows of the module's weight
    int64_t first = 0, step = 1;  // row i of the part is row first + step * i of the module
    int64_t expert = -1;          // whose module it is; -1: it is that of all experts, or there are none
    bool turned = false;          // peft calls the columns of all experts rows, because they are stored so
  };
  // Another name of a part. A `*` in it stands for the number of an expert.
  void name(std::string module, const Place& place) { places_[std::move(module)].push_back(place); }
  // The places of a module; none if adapters cannot change it.
  std::vector<Place> find(std::string_view module) const;
  std::span<const std::shared_ptr<LoraSite>> all() const { return sites_; }
  size_t bytes() const { return bytes_; }
  size_t expert_bytes() const { return expert_bytes_; }  // part of bytes()
  // Called after the site's adapters have changed.
  void update(LoraSite& site);
  int changed() const { return changed_; }          // sites that some adapter has changed since the start
  bool plain() const { return with_extras_ == 0; }  // no adapter that has a slot does more than small matrices
  const LoraScratch& scratch() const { return scratch_; }

 private:
  std::shared_ptr<LoraSite> make(std::vector<LoraSite::Part> parts, const LoraShare& share, const LoraExperts& experts,
                                 const LoraHeads& heads);

  const Room room_;
  const bool dry_;
  Memory& memory_;
  std::vector<std::shared_ptr<LoraSite>> sites_;
  std::map<std::string, std::vector<Place>, std::less<>> places_;
  size_t bytes_ = 0, expert_bytes_ = 0;
  LoraScratch scratch_;
  int changed_ = 0;
  int with_extras_ = 0;  // sites with extras
};

}  // namespace sluice
