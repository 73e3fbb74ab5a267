// Tests how layers share the blocks of the cache: groups by window, their cost, and that no two layers share bytes.
#include "nn/attention/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/thread_pool.h"

namespace sluice::kv_cache_test {
namespace {

using ::testing::Each;
using ::testing::Field;

std::vector<KvShape> layers_of(int sliding, int window, int full, KvShape one, KvShape full_one) {
  std::vector<KvShape> layers;
  const int every = full > 0 ? (sliding + full) / full : sliding + 1;
  for (int i = 0; i < sliding + full; ++i) {
    const bool is_full = i % every == every - 1 && i / every < full;
    layers.push_back(is_full ? full_one : one);
    layers.back().window = is_full ? 0 : window;
  }
  return layers;
}

constexpr KvShape kHeads{.kv_heads = 4, .head_dim = 256, .value_dim = 256};

// Gemma 3 with 4 billion parameters: five layers with a window of 1024 tokens for each layer without one.
TEST(KvLayout, FiveSlidingLayersToOneFull) {
  const auto layers = layers_of(29, 1024, 5, kHeads, kHeads);
  const KvLayout together = one_group(layers, &kBFloat16, 16);
  const KvLayout apart = groups_by_window(layers, &kBFloat16, 16, 131072);
  ASSERT_EQ(apart.groups.size(), 7u);
  EXPECT_EQ(apart.groups[0].window, 0);
  EXPECT_THAT(std::vector(apart.groups.begin() + 1, apart.groups.end()), Each(Field(&BlockGroup::window, 1024)));
  EXPECT_EQ(apart.places.size(), 5u);
  EXPECT_EQ(apart.block_bytes() * 34, together.block_bytes() * 5);
}

TEST(KvLayout, OneGroupWhereAllLayersSeeEquallyFar) {
  for (const int window : {0, 100}) {
    const KvLayout layout = groups_by_window(layers_of(4, window, 0, kHeads, kHeads), &kFloat32, 16, 1000);
    ASSERT_EQ(layout.groups.size(), 1u);
    EXPECT_EQ(layout.groups[0].window, window);
    EXPECT_EQ(layout.groups[0].ids_per_block, 1);
  }
}

TEST(KvLayout, OneGroupWhereNoSequenceIsMuchLongerThanTheWindow) {
  const auto layers = layers_of(4, 4096, 4, kHeads, kHeads);
  EXPECT_EQ(groups_by_window(layers, &kBFloat16, 16, 4096).groups.size(), 1u);
  EXPECT_EQ(groups_by_window(layers, &kBFloat16, 16, 4200).groups.size(), 1u);
  EXPECT_EQ(groups_by_window(layers, &kBFloat16, 16, 8192).groups.size(), 2u);
  EXPECT_EQ(one_group(layers, &kBFloat16, 16).groups[0].window, 0) << "some layers see everything";
}

// Gemma 4: layers without a window have fewer and longer heads.
TEST(KvLayout, SmallLayersShareAPlace) {
  const KvShape small{.kv_heads = 1, .head_dim = 512, .value_dim = 512};
  const auto layers = layers_of(10, 512, 2, kHeads, small);
  const KvLayout layout = groups_by_window(layers, &kBFloat16, 8, 10000);
  ASSERT_EQ(layout.groups[0].window, 0);
  EXPECT_EQ(layout.groups[0].ids_per_block, 2);
  EXPECT_EQ(layout.places.size(), 1u);
  EXPECT_EQ(layout.groups.size(), 11u);
}

TEST(KvLayout, OneGroupWhereSizesDoNotFit) {
  const KvShape odd{.kv_heads = 3, .head_dim = 256, .value_dim = 256}, latent{.kv_heads = 1, .head_dim = 1024};
  EXPECT_EQ(groups_by_window(layers_of(10, 512, 2, kHeads, odd), &kBFloat16, 8, 10000).groups.size(), 1u);
  EXPECT_EQ(groups_by_window(layers_of(10, 512, 2, kHeads, latent), &kBFloat16, 8, 10000).groups.size(), 1u);
}

TEST(KvLayout, ASecondModelIsInTheFirstGroup) {
  const KvShape small{.kv_heads = 1, .head_dim = 64, .value_dim = 64},
      wide{.kv_heads = 1, .head_dim = 512, .value_dim = 512};
  const KvLayout own = groups_by_window(layers_of(10, 512, 2, kHeads, wide), &kBFloat16, 8, 10000);
  ASSERT_EQ(own.groups[0].ids_per_block, 2);
  const KvLayout both = with_second_model(own, {small, small, small});
  EXPECT_EQ(both.groups.size(), own.groups.size());
  EXPECT_EQ(both.places.size(), own.places.size() + 2) << "two layers fill a place";
  EXPECT_EQ(both.block_bytes(), own.block_bytes() + 2 * 2 * 2 * 8 * 64 * sizeof(int16_t));
  ASSERT_EQ(both.layers.size(), 15u);
  EXPECT_EQ(both.layers[13].part, 1);
  EXPECT_EQ(both.layers[14].group, 0);

  const KvCache cache(both, 4);
  const KvCache second(cache, 12);
  EXPECT_EQ(second.layer(2).k.data, cache.layer(14).k.data);
}

// Blocks that the second model still sees are kept.
TEST(KvLayout, ASecondModelMaySeeFurther) {
  const auto window_with = [](int window, int second) {
    const KvLayout layout = one_group(layers_of(4, window, 0, kHeads, kHeads), &kFloat32, 16);
    return with_second_model(layout, layers_of(2, second, 0, kHeads, kHeads)).groups[0].window;
  };
  EXPECT_EQ(window_with(100, 50), 100);
  EXPECT_EQ(window_with(100, 200), 200);
  EXPECT_EQ(window_with(100, 0), 0);
  EXPECT_EQ(window_with(0, 200), 0);
}

// One layer without a window among many: there is not one block table per layer.
TEST(KvLayout, TheNumberOfGroupsIsBounded) {
  const auto layers = layers_of(63, 512, 1, kHeads, kHeads);
  const KvLayout layout = groups_by_window(layers, &kBFloat16, 16, 131072);
  EXPECT_GT(layout.groups.size(), 1u);
  EXPECT_LE(layout.groups.size(), 16u);
}

// Blocks are assigned to groups at random. Every layer fills its own blocks, and no byte may be overwritten by another
// layer.
TEST(KvCache, LayersOfAllGroupsKeepTheirBytes) {
  std::mt19937 random(1);
  for (int run = 0; run < 50; ++run) {
    const KvShape one{.kv_heads = 1 << random() % 3, .head_dim = 8, .value_dim = 8};
    const KvShape other{.kv_heads = 1 << random() % 3, .head_dim = 8, .value_dim = 8};
    auto layers = layers_of(1 + random() % 9, 10, 1 + random() % 5, one, other);
    KvLayout layout = groups_by_window(layers, &kFloat32, 8, 1000);
    if (run % 2 == 1) {
      const KvShape drafts{.kv_heads = 1 << random() % 3, .head_dim = 4, .value_dim = 4};
      const auto more = layers_of(static_cast<int>(random() % 3), 10, 1, drafts, random() % 2 == 0 ? drafts : one);
      layout = with_second_model(std::move(layout), more);
      layers.insert(layers.end(), more.begin(), more.end());
    }
    const int groups = static_cast<int>(layout.groups.size()), blocks = groups * 3;
    const KvCache cache(layout, blocks);
    std::vector<int> owner(blocks);
    for (int i = 0; i < blocks; ++i) owner[i] = i % groups;
    std::ranges::shuffle(owner, random);
    const auto each = [&](const auto& visit) {
      float value = 1;
      for (size_t i = 0; i < layers.size(); ++i) {
        const KvCache::Layer& layer = cache.layer(static_cast<int>(i));
        for (const Tensor* t : {&layer.k, &layer.v}) {
          ASSERT_EQ(t->shape[1], layers[i].kv_heads);
          for (int block = 0; block < blocks; ++block) {
            if (owner[block] != layer.group) continue;
            const int64_t id = int64_t{block} * layout.groups[layer.group].ids_per_block;
            ASSERT_LT(id, t->shape[0]);
            for (int64_t e = 0; e < t->row_elements(); ++e) visit(t->f32()[id * t->row_elements() + e], value++);
          }
        }
      }
    };
    each([](float& at, float value) { at = value; });
    each([&](const float& at, float value) { ASSERT_EQ(at, value) << "run " << run; });
  }
}

// int8 scales are part of a block. No layer's scales overlap another's, however many layers share a place.
TEST(KvCache, Int8HasAScalePerVector) {
  constexpr int kBlocks = 36;
  const KvShape small{.kv_heads = 1, .head_dim = 512, .value_dim = 512}, latent{.kv_heads = 1, .head_dim = 72};
  EXPECT_EQ(one_group({kHeads, latent}, &kInt8, 16).block_bytes(), 2u * 4 * 16 * (256 + 4) + 16 * (72 + 4));
  for (const auto& layers : {layers_of(10, 512, 2, kHeads, small), layers_of(2, 64, 1, kHeads, kHeads),
                             std::vector<KvShape>{latent, kHeads, small}}) {
    const KvLayout layout = groups_by_window(layers, &kInt8, 8, 10000);
    const int groups = static_cast<int>(layout.groups.size());
    const KvCache cache(layout, kBlocks);
    // Every block belongs to a group. Every scale gets a value from its block, layer and place.
    const auto each = [&](const auto& visit) {
      float value = 1;
      for (size_t i = 0; i < layers.size(); ++i) {
        const KvCache::Layer& layer = cache.layer(static_cast<int>(i));
        const int64_t vectors = int64_t{layers[i].kv_heads} * 8;
        for (int block = layer.group; block < kBlocks; block += groups) {
          const int64_t id = int64_t{block} * layout.groups[layer.group].ids_per_block;
          for (const ops::CacheTensor* t : {&layer.k, &layer.v}) {
            if (t->shape[3] == 0) {
              EXPECT_EQ(t->scales, nullptr);
              continue;
            }
            for (int64_t v = 0; v < vectors; ++v) visit(t->scales[id * vectors + v], value++);
          }
        }
      }
    };
    each([](float& at, float value) { at = value; });
    each([](const float& at, float value) { ASSERT_EQ(at, value); });
    // Copying a block copies its scales with its codes.
    const ops::Backend& reference = ops::select_backend("reference");
    ThreadPool pool(1);
    Arena arena(0);
    ops::Queue queue(reference.open(0), pool);
    ops::Ctx ctx(queue, arena);
    const KvCache::Layer& first = cache.layer(0);
    const int64_t vectors = int64_t{layers[0].kv_heads} * 8, from = first.group, to = kBlocks - 1;
    const int64_t ids = layout.groups[first.group].ids_per_block;
    first.k.as<int8_t>()[from * ids * vectors * first.k.shape[3]] = 77;
    const std::vector<int32_t> pairs = {static_cast<int32_t>(from), static_cast<int32_t>(to)};
    cache.copy_blocks(ctx, pairs);
    EXPECT_EQ(first.k.as<int8_t>()[to * ids * vectors * first.k.shape[3]], 77);
    EXPECT_EQ(std::memcmp(first.k.scales + from * ids * vectors, first.k.scales + to * ids * vectors,
                          static_cast<size_t>(vectors) * sizeof(float)),
              0);
  }
}

TEST(KvCache, CopiesTokensAlone) {
  const ops::Backend& reference = ops::select_backend("reference");
  ThreadPool pool(1);
  Arena arena(0);
  ops::Queue queue(reference.open(0), pool);
  ops::Ctx ctx(queue, arena);
  const std::vector<KvShape> layers = {kHeads, {.kv_heads = 1, .head_dim = 72}, kHeads};
  const KvCache cache(one_group(layers, &kInt8, 8), 4);
  // Every vector has a code and a scale of its own.
  const auto each = [&](const auto& visit) {
    for (int i = 0; i < 3; ++i) {
      for (const ops::CacheTensor* t : {&cache.layer(i).k, &cache.layer(i).v}) {
        const int64_t heads = t->shape[1], width = t->shape[3];
        for (int64_t v = 0; width > 0 && v < 4 * heads * 8; ++v) {
          const auto slot = static_cast<int32_t>(v / (heads * 8) * 8 + v % 8);
          const int64_t head = v / 8 % heads;
          const auto code = [&](int32_t at) { return static_cast<int8_t>(at + 32 * head); };
          visit(slot, t->as<int8_t>() + v * width, width, t->scales + v, code);
        }
      }
    }
  };
  each([](int32_t slot, int8_t* codes, int64_t width, float* scale, const auto& code) {
    std::fill_n(codes, width, code(slot));
    *scale = static_cast<float>(code(slot));
  });
  const std::vector<int32_t> pairs = {5, 17, 30, 18, 7, 0};
  cache.copy_tokens(ctx, pairs);
  each([&](int32_t slot, const int8_t* codes, int64_t width, const float* scale, const auto& code) {
    for (size_t i = 0; i < pairs.size(); i += 2) slot = slot == pairs[i + 1] ? pairs[i] : slot;
    EXPECT_EQ(codes[0], code(slot));
    EXPECT_EQ(codes[width - 1], code(slot));
    EXPECT_EQ(*scale, static_cast<float>(code(slot)));
  });
}

}  // namespace
}  // namespace sluice::kv_cache_test
