// Tests that entries get physical experts of their experts, spread over several, and that the entries of experts are
// counted. Compares every backend with the reference.
#include "ops/physical_experts.h"

#include <algorithm>
#include <utility>

#include "ops/testing.h"

namespace sluice::ops::physical_experts_test {
namespace {

using Integers = std::vector<int32_t, TestAllocator<int32_t>>;
using Counts = std::vector<int64_t, TestAllocator<int64_t>>;

class PhysicalExpertsTest : public OpsTest {
 protected:
  struct Lists {
    Integers first{0}, physical{};
  };
  // `physical` physical experts of so many experts, each of which has one at least, in any order.
  Lists lists_of(int experts, int physical) {
    std::vector<int32_t> owners(static_cast<size_t>(physical));
    for (int i = 0; i < physical; ++i)
      owners[static_cast<size_t>(i)] = i < experts ? i : static_cast<int>(random()) % experts;
    std::ranges::shuffle(owners, random);
    Lists lists;
    for (int e = 0; e < experts; ++e) {
      for (int p = 0; p < physical; ++p) {
        if (owners[static_cast<size_t>(p)] == e) lists.physical.push_back(p);
      }
      lists.first.push_back(static_cast<int32_t>(lists.physical.size()));
    }
    return lists;
  }
  // Entries of `top_k` different experts for each row.
  Owned chosen(int64_t rows, int top_k, int experts) {
    Owned out(&kInt32, {rows, top_k});
    std::vector<int32_t> all(static_cast<size_t>(experts));
    for (int e = 0; e < experts; ++e) all[static_cast<size_t>(e)] = e;
    for (int64_t row = 0; row < rows; ++row) {
      std::ranges::shuffle(all, random);
      std::copy_n(all.begin(), top_k, out->as<int32_t>() + row * top_k);
    }
    return out;
  }
};

TEST_P(PhysicalExpertsTest, EqualsTheReference) {
  struct Case {
    int64_t rows;
    int top_k, experts, physical;
  };
  const Case cases[] = {{0, 2, 4, 6},      {1, 1, 1, 1},     {1, 2, 8, 16},
                        {37, 8, 128, 160}, {700, 6, 64, 64}, {9000, 8, 300, 900}};
  for (const Case& c : share(cases)) {
    const Lists lists = lists_of(c.experts, c.physical);
    Owned logits(&kFloat32, {c.rows, c.experts}, 5);
    logits.fill(random);
    Owned got = chosen(c.rows, c.top_k, c.experts), want = got;
    Counts counts(static_cast<size_t>(c.experts), 7), expected = counts;
    const auto run = [&](Checked& on, Owned& entries, Counts& into) {
      choose_physical(on.ctx, {.experts = entries,
                               .logits = logits,
                               .first = lists.first.data(),
                               .physical = lists.physical.data(),
                               .counts = into.data()});
    };
    run(device, got, counts), run(reference, want, expected);
    EXPECT_TRUE(std::ranges::equal(std::span(got->as<int32_t>(), static_cast<size_t>(c.rows * c.top_k)),
                                   std::span(want->as<int32_t>(), static_cast<size_t>(c.rows * c.top_k))))
        << c.rows << " rows";
    EXPECT_EQ(counts, expected) << c.rows << " rows";
  }
}

TEST_P(PhysicalExpertsTest, SpreadsEntriesAndCountsThem) {
  constexpr int kRows = 4000;
  Owned logits(&kFloat32, {kRows, 3});
  logits.fill(random);
  Owned entries(&kInt32, {kRows, 2});
  for (int i = 0; i < kRows; ++i) entries->as<int32_t>()[2 * i] = i % 2, entries->as<int32_t>()[2 * i + 1] = 2;
  const Owned chosen = entries;
  const Integers first{0, 3, 4, 5}, physical{0, 2, 4, 3, 1};  // expert 0 has three
  Counts counts(3, 0);
  const auto place = [&](const Owned& all, int64_t from, int64_t rows) {
    choose_physical(device.ctx, {.experts = Tensor(all->as<int32_t>() + 2 * from, &kInt32, {rows, 2}),
                                 .logits = Tensor(logits.row(from), &kFloat32, {rows, 3}),
                                 .first = first.data(),
                                 .physical = physical.data(),
                                 .counts = counts.data()});
  };
  place(entries, 0, kRows);
  EXPECT_EQ(counts, (Counts{kRows / 2, kRows / 2, kRows}));
  int64_t places[5] = {};
  for (int i = 0; i < 2 * kRows; ++i) {
    const int32_t expert = chosen->as<int32_t>()[i], place = entries->as<int32_t>()[i];
    const auto begin = physical.begin() + first[static_cast<size_t>(expert)];
    const auto end = physical.begin() + first[static_cast<size_t>(expert) + 1];
    ASSERT_NE(std::find(begin, end, place), end) << place << " of expert " << expert;
    ++places[place];
  }
  for (const int i : {0, 2, 4}) EXPECT_NEAR(static_cast<double>(places[i]), kRows / 6.0, 100) << i;
  if (GetParam()->name == "reference") return;
  const Owned alone = chosen;  // the choice does not depend on the rows beside it
  for (int64_t row = 0; row < 100; ++row) place(alone, row, 1);
  EXPECT_TRUE(std::equal(alone->as<int32_t>(), alone->as<int32_t>() + 200, entries->as<int32_t>()));
}

SLUICE_FOR_EVERY_KERNEL(PhysicalExpertsTest, &OpTable::choose_physical);

}  // namespace
}  // namespace sluice::ops::physical_experts_test
