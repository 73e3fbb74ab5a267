// Tests that no number of a configuration costs much before it is refused: every integer of every architecture's
// config.json is replaced by a large one in turn, and the load is planned.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>

#include "base/json.h"
#include "engine/load.h"
#include "golden/arch_golden.h"
#include "golden/goldens.h"
#include "ops/ops.h"
#include "sluice/error.h"
#include "support/sanitized.h"

namespace sluice::sizes_test {
namespace {

int64_t peak_memory_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

// Calls body(path, value) for every integer in the object and its nested objects.
template <class F>
void for_each_integer(Json& object, const std::string& path, F&& body) {
  for (auto& [key, value] : object.items()) {
    if (value.is_object()) for_each_integer(value, path + key + ".", body);
    if (value.is_number_integer()) body(path + key, value);
  }
}

// One golden of each architecture: variants have the same keys ("llama-yarn").
std::vector<std::string> architectures() {
  std::vector<std::string> out;
  for (const std::string& name : golden_names(arch_goldens())) {
    const auto stem = [](const std::string& n) { return n.substr(0, n.find('-')); };
    if (out.empty() || stem(out.back()) != stem(name)) out.push_back(name);
  }
  return out;
}

class Sizes : public ::testing::TestWithParam<std::string> {};

TEST_P(Sizes, LargeNumbersAreCheap) {
  const ArchGolden golden(GetParam());
  EngineOptions options;
  options.model = golden.checkpoint();
  options.backend = "reference";
  options.kv_cache_memory_bytes = 16 << 20;
  options.max_num_seqs = 4;
  ThreadPool pool(1, /*pin=*/false);
  const std::string file = golden.checkpoint() + "/config.json";
  Json config = read_config(file).values();
  const auto write = [&] { std::ofstream(file) << dump_json(config); };
  ASSERT_NO_THROW(plan_load(options, pool));
  const int64_t memory = peak_memory_kib();
  for_each_integer(config, "", [&](const std::string& path, Json& value) {
    const Json before = value;
    for (const int64_t large : {int64_t{1'000'000}, int64_t{2'147'483'647}}) {
      value = large;
      write();
      const auto start = std::chrono::steady_clock::now();
      std::string error;
      try {
        plan_load(options, pool);
      } catch (const Error& e) {
        error = e.what();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      EXPECT_LT(took.count(), kSanitized ? 30 : 3) << path << " " << large << ": " << error;
      if (!kSanitized) {
        EXPECT_LT(peak_memory_kib() - memory, 200 << 10) << path << " " << large << ": " << error;
      }
      const std::string key = path.substr(path.rfind('.') + 1);
      if (key == "num_hidden_layers" || key == "hidden_size" || key == "vocab_size") {
        const bool refused = error.find(key) != std::string::npos;
        EXPECT_TRUE(refused || path.find("vision") != path.npos || path.find("audio") != path.npos)
            << path << " " << large << ": " << error;
      }
    }
    value = before;
  });
}

INSTANTIATE_TEST_SUITE_P(All, Sizes, ::testing::ValuesIn(architectures()),
                         [](const auto& info) { return test_name(info.param, ""); });

}  // namespace
}  // namespace sluice::sizes_test
