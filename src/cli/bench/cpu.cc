// sluice bench cpu: one table of prefill and decode rates of a random 1.1B Llama in several weight types. Creates the
// checkpoint itself.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cli/bench/bench.h"
#include "formats/safetensors.h"
#include "ops/ops.h"
#include "sluice/error.h"

namespace sluice::cli {}  // namespace sluice::cli

namespace sluice::cli::bench_cpu {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHidden = 2048, kLayers = 22, kHeads = 32, kKvHeads = 4, kHeadDim = 64, kInner = 5632, kVocab = 32000;

struct Named {
  std::string name;
  Shape shape;
};

std::vector<Named> tensors_of_model() {
  std::vector<Named> all = {{"model.embed_tokens.weight", {kVocab, kHidden}}};
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    all.push_back({layer + "input_layernorm.weight", {kHidden}});
    all.push_back({layer + "self_attn.q_proj.weight", {kHeads * kHeadDim, kHidden}});
    all.push_back({layer + "self_attn.k_proj.weight", {kKvHeads * kHeadDim, kHidden}});
    all.push_back({layer + "self_attn.v_proj.weight", {kKvHeads * kHeadDim, kHidden}});
    all.push_back({layer + "self_attn.o_proj.weight", {kHidden, kHeads * kHeadDim}});
    all.push_back({layer + "post_attention_layernorm.weight", {kHidden}});
    all.push_back({layer + "mlp.gate_proj.weight", {kInner, kHidden}});
    all.push_back({layer + "mlp.up_proj.weight", {kInner, kHidden}});
    all.push_back({layer + "mlp.down_proj.weight", {kHidden, kInner}});
  }
  all.push_back({"model.norm.weight", {kHidden}});
  all.push_back({"lm_head.weight", {kVocab, kHidden}});
  return all;
}

// Fills bf16 tensors: near one for norms, uniform with deviation 0.02 for matrices.
void fill_random(const Tensor& tensor, uint64_t& state) {
  const bool norm = tensor.shape.rank() == 1;
  auto* to = tensor.as<uint16_t>();
  for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float uniform = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
    to[i] = float_to_bf16(norm ? 1.0f + 0.05f * uniform : 0.02f * 1.732f * uniform);
  }
}

void make_model(const fs::path& folder) {
  if (fs::exists(folder / "model.safetensors")) return;
  fs::create_directories(folder);
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", kHidden},
                       {"num_hidden_layers", kLayers},
                       {"num_attention_heads", kHeads},
                       {"num_key_value_heads", kKvHeads},
                       {"intermediate_size", kInner},
                       {"vocab_size", kVocab},
                       {"max_position_embeddings", 2048},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"tie_word_embeddings", false},
                       {"torch_dtype", "bfloat16"},
                       {"hidden_act", "silu"}};
  std::ofstream out(folder / "config.json");
  out << dump_json(config);
  out.close();
  if (!out)
    throw Error(ErrorCode::kInternal, fmt::format("{}: cannot write the file", (folder / "config.json").string()));
  size_t bytes = 0;
  for (const Named& named : tensors_of_model()) bytes += Tensor(nullptr, &kBFloat16, named.shape).bytes();
  const Buffer memory(bytes);
  std::vector<NamedTensor> tensors;
  uint64_t state = 1;
  std::byte* at = memory.data();
  for (const Named& named : tensors_of_model()) {
    tensors.push_back({named.name, Tensor(at, &kBFloat16, named.shape)});
    fill_random(tensors.back().tensor, state);
    at += tensors.back().tensor.bytes();
  }
  write_safetensors((folder / "model.safetensors").string(), tensors);
}

struct Arguments {
  LoadArguments load;
  std::string folder = "build/bench-models/random-1b";
  std::vector<std::string> types = {"q4_0", "q8_0", "bfloat16"};
};

int cpu(Arguments a) {
  make_model(a.folder);
  constexpr int kPrompt = 512, kShort = 32, kOutput = 32;
  a.load.engine.model = a.folder;
  a.load.engine.tokenizer = bundled_model();
  if (a.load.engine.backend.empty()) a.load.engine.backend = ops::select_host_backend().name;
  a.load.engine.max_num_batched_tokens = kPrompt;
  fmt::print("{:<10}{:>14}{:>10}{:>11}{:>11}{:>10}{:>10}{:>10}\n", "tok/s", "prefill 512", "of peak", "decode, 1",
             "of bandw.", "4", "16", "32");
  for (const std::string& type : a.types) {
    a.load.engine.quantization = type == "bfloat16" ? "none" : type;
    a.load.engine.quantize_head = true;  // as configured for llama.cpp in the comparison
    const std::vector<Json> r = measure_latency(
        a.load, {{1, kPrompt, kOutput}, {4, kShort, kOutput}, {16, kShort, kOutput}, {32, kShort, kOutput}});
    const auto number = [&](size_t i, const char* key) { return r[i].value(key, 0.0); };  // shares may be missing
    fmt::print("{:<10}{:>14.1f}{:>9.0f}%{:>11.1f}{:>10.0f}%", type, number(0, "prefill_tokens_per_second"),
               100 * number(0, "prefill_share_of_peak"), number(0, "decode_tokens_per_second"),
               100 * number(0, "decode_share_of_bandwidth"));
    for (size_t i = 1; i < r.size(); ++i) fmt::print("{:>10.1f}", number(i, "decode_tokens_per_second"));
    fmt::print("\n");
    for (const Json& result : r) print_result(result);
  }
  return 0;
}

std::function<int()> declare(CLI::App& app) {
  auto a = std::make_shared<Arguments>();
  add_engine_options(app, a->load.engine);
  app.add_option("--folder", a->folder, "folder of the random checkpoint; created if missing (2.2 GB)")
      ->capture_default_str();
  app.add_option("--types", a->types, "weight types: bfloat16 or block formats to quantize to")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--iterations", a->load.iterations, "number of measured runs")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return [a] { return cpu(*a); };
}

const BenchCommand command{"cpu", "rates of a random 1.1B Llama in several weight types", declare};
const Registry<BenchCommand> registered{command};

}  // namespace
}  // namespace sluice::cli::bench_cpu
