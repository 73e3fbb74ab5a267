// Adapters that peft made, of the architectures of tests/goldens/arch: the logits are transformers' and peft's.
// tests/tools/make_lora_goldens.py makes them. Some have logits with another scale, too. Others were converted to GGUF
// by llama.cpp.
#include <gtest/gtest.h>

#include "base/json.h"
#include "engine/rank_adapters.h"
#include "engine/runner.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "lora/adapter.h"

namespace sluice::adapter_goldens_test {
namespace {

std::filesystem::path root() { return std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/goldens/lora"; }

class AdapterGoldens : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

using Entries = std::map<std::string, TensorEntry>;

Entries entries_of(const MappedFile& file) {
  Entries entries;
  for (TensorEntry& entry : read_safetensors(file.bytes(), "golden")) entries.emplace(entry.name, entry);
  return entries;
}

TEST_P(AdapterGoldens, GivePeftsLogits) {
  const auto& [name, backend] = GetParam();
  const std::string folder = (root() / name).string();
  const Json config = read_json_file(folder + "/adapter_config.json");
  const ArchGolden arch(config.at("base_model_name_or_path").get<std::string>());
  const MappedFile file(folder + "/golden.safetensors");
  const Entries golden = entries_of(file);
  const Tensor stored = golden.at("ids").view();
  const std::span<const int32_t> ids(reinterpret_cast<const int32_t*>(stored.data),
                                     static_cast<size_t>(stored.shape[0]));
  EngineOptions options;
  options.model = arch.checkpoint();
  options.backend = backend.empty() ? std::string(ops::select_host_backend().name) : backend;
  options.dtype = "float32";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 64;
  options.enable_lora = true;
  options.max_loras = 2;
  ThreadPool pool(2, /*pin=*/false);
  LoadedModel model = load_model(options, pool);
  Runner runner(model);
  const std::string gguf = folder + "/adapter.gguf";
  const std::shared_ptr<Adapter> adapter = read_adapter(std::filesystem::exists(gguf) ? gguf : folder);
  name_modules(*adapter, *model.plan.checkpoint);
  check_adapter(*adapter, *model.adapters, *model.plan.checkpoint);
  prepare_apart(*adapter, model);
  runner.place_adapter(*adapter, 1);
  const auto expect_close = [&](const Tensor& want, int slot, int chunk) {
    std::vector<float> got;
    for_each_logits(
        runner, model.plan, model.plan.block_size, ids, chunk,
        [&](int, std::span<const float> row) { got.insert(got.end(), row.begin(), row.end()); }, slot,
        adapter_from(*adapter, ids));
    ASSERT_EQ(static_cast<int64_t>(got.size()), want.shape.elements());
    EXPECT_LE(relative_error(got.data(), want.f32(), want.shape.elements()), kTolerance)
        << "slot " << slot << ", chunks of " << chunk;
  };
  for (const int chunk : {64, 5}) expect_close(golden.at("logits").view(), 1, chunk);
  if (!std::filesystem::exists(folder + "/scaled.safetensors")) return;
  const MappedFile scaled_file(folder + "/scaled.safetensors");
  const Entries scaled = entries_of(scaled_file);
  runner.place_adapter(*adapter, 0, *scaled.at("scale").view().f32());
  for (const int chunk : {64, 5}) expect_close(scaled.at("logits").view(), 0, chunk);
  expect_close(golden.at("logits").view(), 1, 64);
}

INSTANTIATE_TEST_SUITE_P(All, AdapterGoldens,
                         ::testing::Combine(::testing::ValuesIn(golden_names(root())),
                                            ::testing::ValuesIn(golden_backends())),
                         [](const auto& info) { return test_name(std::get<0>(info.param), std::get<1>(info.param)); });

}  // namespace
}  // namespace sluice::adapter_goldens_test
