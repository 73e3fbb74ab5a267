// Backends: every slot filled, the choice of one, activations by name.
#include "ops/testing.h"
#include "sluice/error.h"

namespace sluice::ops {
namespace {

TEST(Backend, EveryBackendFillsEverySlot) {
  for (const Backend* backend : usable_backends()) {
    SCOPED_TRACE(std::string(backend->name));
    const Ops& ops = backend->table();
    EXPECT_NE(ops.embed, nullptr);
    EXPECT_NE(ops.rms_norm, nullptr);
    EXPECT_NE(ops.layer_norm, nullptr);
    EXPECT_NE(ops.glu, nullptr);
    EXPECT_NE(ops.unary, nullptr);
    EXPECT_NE(ops.xielu, nullptr);
    EXPECT_NE(ops.map, nullptr);
    EXPECT_NE(ops.add, nullptr);
    EXPECT_NE(ops.rope_store, nullptr);
    EXPECT_NE(ops.attention, nullptr);
    EXPECT_NE(ops.gather_rows, nullptr);
    EXPECT_NE(ops.copy_rows, nullptr);
    EXPECT_NE(ops.sample, nullptr);
    EXPECT_NE(ops.feed_sampled, nullptr);
    EXPECT_NE(ops.clamped_glu, nullptr);
    EXPECT_NE(ops.latent_store, nullptr);
    EXPECT_NE(ops.route, nullptr);
    EXPECT_NE(ops.group_by_expert, nullptr);
    EXPECT_NE(ops.expert_matmul, nullptr);
    EXPECT_NE(ops.head_matmul, nullptr);
    EXPECT_NE(ops.combine, nullptr);
    for (DType type : {&kFloat32, &kBFloat16, &kFloat16}) {
      ASSERT_TRUE(ops.matmul.contains(type)) << type->name;
      const MatmulKernels& kernels = ops.matmul.at(type);
      EXPECT_TRUE(kernels.packed_bytes != nullptr && kernels.pack != nullptr && kernels.matmul != nullptr);
    }
  }
}

TEST(Backend, EmptyNameSelectsTheHighestRank) {
  const Backend& best = select_backend();
  for (const Backend* backend : usable_backends()) EXPECT_LE(backend->rank, best.rank) << backend->name;
  EXPECT_EQ(&select_backend(best.name), &best);
  EXPECT_EQ(select_backend("reference").rank, 0);
}

TEST(Backend, TheHostsIsTheHighestRankOnItsMemory) {
  const Backend& best = select_host_backend();
  EXPECT_TRUE(best.memory().host_accessible());
  for (const Backend* backend : usable_backends()) {
    if (!backend->memory().host_accessible()) continue;
    EXPECT_LE(backend->rank, best.rank) << backend->name;
  }
}

TEST(Backend, UnknownNameIsAnErrorThatListsTheUsableOnes) {
  try {
    select_backend("cpu-z80");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ErrorCode::kUnsupportedModel);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("cpu-z80"), testing::HasSubstr("reference")));
  }
}

TEST(Backend, DeterministicOnesKeepTheBitsOfRows) {
  EXPECT_FALSE(select_backend({}, true).rounds);
  for (const Backend* backend : usable_backends()) {
    SCOPED_TRACE(std::string(backend->name));
    if (!backend->rounds) {
      EXPECT_EQ(&select_backend(backend->name, true), backend);
      continue;
    }
    EXPECT_FALSE(select_backend(backend->exact).rounds);
    EXPECT_THROW(select_backend(backend->name, true), Error);
  }
}

TEST(Backend, ActivationsByName) {
  EXPECT_EQ(parse_activation("silu"), Activation::kSilu);
  EXPECT_EQ(parse_activation("gelu_pytorch_tanh"), Activation::kGeluTanh);
  EXPECT_EQ(parse_activation("relu2"), Activation::kRelu2);
  EXPECT_EQ(parse_activation("swiglu7"), std::nullopt);
}

}  // namespace
}  // namespace sluice::ops
