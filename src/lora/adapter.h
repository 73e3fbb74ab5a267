// Low-rank adapters: in the format of Hugging Face's peft, adapter_config.json and adapter_model.safetensors, or as a
// GGUF file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "lora/sites.h"
#include "ops/device.h"

namespace sluice {

// An adapter in host memory. It adds scale * b a to the weight of each of its modules. A module of all experts of a
// layer has a pair of matrices for each. DoRA (Liu et al. 2024, arXiv:2402.09353) then scales the rows of the sum,
// or the columns of a table, to the lengths in `magnitude`.
struct Adapter {
  struct Module {
    std::string name;  // of the module in the base model: "model.layers.0.self_attn.q_proj"
    int64_t rank = 0, inputs = 0, outputs = 0;
    int64_t experts = 1;
    float scale = 0;
    std::vector<float> a{};           // [experts, rank, inputs]
    std::vector<float> b{};           // [outputs, rank, experts]
    bool embedding = false;           // a table of `inputs` rows and `outputs` columns, to whose transpose b a is added
    std::vector<float> magnitude{};   // [outputs]; empty: no DoRA
    std::vector<float> bias{};        // [outputs] added to the bias, times scale; empty: nothing
    std::vector<float> saved{};       // [outputs, inputs] replaces the weight (of tables: [ids, columns]); rank is 0
    std::vector<float> saved_bias{};  // [outputs] replaces the bias; empty: it stays
    // Not empty: `saved` [tokens, inputs] replaces only the rows of these tokens, in a table or a head, and in all
    // modules that share its weight.
    std::vector<int32_t> tokens{};
    // The weight that it was trained on, if the file has it: the lengths of its rows, and its bias.
    std::vector<float> base{};
    // Whether the slots' small matrices say all that it does.
    bool plain() const { return rank > 0 && !embedding && magnitude.empty() && bias.empty(); }
  };
  struct Extra {
    LoraSite* site = nullptr;
    LoraExtra what{};
    Buffer weight{}, bias{}, rows{};  // its memory
  };
  std::string folder;               // or its file
  std::string digest;               // SHA-256 of its files, in hexadecimal
  std::vector<int32_t> invocation;  // tokens where it begins to apply (adapter_from)
  std::string gguf;  // the architecture by whose names a GGUF file calls the modules; empty: they have their own
  std::vector<Module> modules;
  int rank = 0;                                // the largest one of its modules
  std::vector<std::unique_ptr<Extra>> extras;  // of modules that are not plain, made by prepare_adapter
};

// Reads peft's folder or a GGUF file. Throws Error(kUnsupportedModel) that names the key or the tensor that is not
// supported, Error(kCorruptFile) for files that contradict themselves, Error(kNotFound) if there is no adapter.
std::shared_ptr<Adapter> read_adapter(const std::string& path);

// The first token of a prompt that the adapter changes; -1: it changes none. An activated LoRA (Greenewald et al. 2025,
// arXiv:2504.12397) applies from the last place on where its invocation is.
int adapter_from(const Adapter& adapter, std::span<const int32_t> prompt);

// Gives the modules of an adapter their names in the model. Modules from GGUF also get the order of its rows. Modules
// of parts that a multimodal model does not load are left out. Throws Error(kUnsupportedModel) that names the key or
// tensor, also if the adapter is of another architecture.
void name_modules(Adapter& adapter, const Checkpoint& model);

// The places of a module of an adapter, which multimodal models may call otherwise; none if adapters cannot change it.
std::vector<LoraSites::Place> places_of(const LoraSites& sites, const Adapter::Module& module);

// Checks that the model has the adapter's modules, which have their names in it, that their shapes and the weights that
// they were trained on agree, and that its rank is within the sites'. Throws Error(kUnsupportedModel) that names the
// tensor.
void check_adapter(const Adapter& adapter, const LoraSites& sites, const Checkpoint& model);

std::vector<float> row_lengths(const std::vector<float>& matrix, int64_t rows);

// Makes what an adapter that was checked has besides small matrices, from the weights of the model. Uses the queue's
// threads and its device's memory.
void prepare_adapter(Adapter& adapter, const LoraSites& sites, const Checkpoint& model, ops::Queue& queue);

// Null if a factor can be applied to all that the adapter adds, else the first module that stands against it: it has
// more than small matrices (prepare_adapter).
const Adapter::Module* unscalable_module(const Adapter& adapter);

// Puts an adapter that was prepared into a slot of all sites, or nothing for null. It replaces what was there, and
// waits for steps that were called on the queue before. What the adapter adds is multiplied by `scale`, which is 1 if
// a module is unscalable.
void place_adapter(const Adapter* adapter, int slot, float scale, LoraSites& sites, ops::Queue& queue);

}  // namespace sluice
