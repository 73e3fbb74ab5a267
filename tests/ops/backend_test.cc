// Backends: every slot is filled; selection of a backend; activations by name.
#include "ops/testing.h"
#include "sluice/error.h"

namespace sluice::ops::backend_test {
namespace {

TEST(Backend, EveryBackendFillsEverySlot) {
  for (const Backend* backend : usable_backends()) {
    SCOPED_TRACE(std::string(backend->name));
    const Ops& ops = backend->open(0).ops();
    const auto expect_filled = [&](const auto& slot) { EXPECT_NE(ops.*slot.member, nullptr) << slot.name; };
    std::apply([&](const auto&... slots) { (expect_filled(slots), ...); }, kSlots);
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
  EXPECT_TRUE(best.open(0).memory().host_accessible());
  for (const Backend* backend : usable_backends()) {
    if (!backend->open(0).memory().host_accessible()) continue;
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
  EXPECT_TRUE(select_backend({}, true).can.batch_invariant);
  for (const Backend* backend : usable_backends()) {
    SCOPED_TRACE(std::string(backend->name));
    if (backend->can.batch_invariant) {
      EXPECT_EQ(&select_backend(backend->name, true), backend);
      continue;
    }
    EXPECT_TRUE(select_backend(backend->batch_invariant_backend).can.batch_invariant);
    EXPECT_THROW(select_backend(backend->name, true), Error);
  }
}

TEST(Backend, ActivationsByName) {
  EXPECT_EQ(parse_activation("silu"), Activation::kSilu);
  EXPECT_EQ(parse_activation("gelu_pytorch_tanh"), Activation::kGeluTanh);
  EXPECT_EQ(parse_activation("relu2"), Activation::kRelu2);
  EXPECT_EQ(parse_activation("swiglu7"), std::nullopt);
}

// Two queues of a device, and queues of two devices: each keeps its own order, and one can run after another.
TEST(Backend, QueuesOfDevicesRunBesideEachOther) {
  for (const Backend* backend : usable_backends()) {
    SCOPED_TRACE(std::string(backend->name));
    ThreadPool first_threads(1, false), second_threads(1, false);
    for (int ordinal = 0; ordinal < std::min(backend->devices(), 2); ++ordinal) {
      ops::Device& device = backend->open(ordinal);
      EXPECT_EQ(device.ordinal(), ordinal);
      EXPECT_EQ(&backend->open(ordinal), &device) << "a device is opened once";
      const auto compute = device.make_queue(first_threads), copies = device.make_queue(second_threads);
      EXPECT_EQ(&compute->device(), &device);
      constexpr size_t kFloats = 1 << 16;
      Buffer x(kFloats * sizeof(float), device.memory()), y(kFloats * sizeof(float), device.memory()),
          host(kFloats * sizeof(float), device.pinned_memory());
      Arena arena(0);
      Ctx ctx(*compute, arena);
      auto* values = reinterpret_cast<float*>(host.data());
      for (size_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(i % 100);
      const Shape shape{64, kFloats / 64};
      // The copy queue uploads x, the compute queue doubles it into y, and the copy queue downloads y.
      copies->copy_async(x.data(), host.data(), x.size());
      compute->run_after(*copies, copies->record_event());
      copy(ctx, Tensor(y.data(), &kFloat32, shape), Tensor(x.data(), &kFloat32, shape));
      add(ctx, Tensor(y.data(), &kFloat32, shape), Tensor(x.data(), &kFloat32, shape), 1.0f);
      copies->run_after(*compute, compute->record_event());
      copies->copy_async(host.data(), y.data(), y.size());
      copies->wait_for(copies->record_event());
      for (size_t i = 0; i < kFloats; ++i) ASSERT_EQ(values[i], 2.0f * static_cast<float>(i % 100)) << i;
    }
  }
}

}  // namespace
}  // namespace sluice::ops::backend_test
