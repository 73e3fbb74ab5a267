// What rank 0 tells the others about adapters, and when it says nothing.
#include "engine/rank_adapters.h"

#include <gtest/gtest.h>

#include "lora/adapter_message.h"

namespace sluice::rank_adapters_test {
namespace {

std::shared_ptr<Adapter> adapter_of(const std::string& folder) {
  auto adapter = std::make_shared<Adapter>();
  adapter->folder = folder;
  adapter->digest = "d1";
  adapter->rank = 2;
  adapter->modules = {
      {.name = "q_proj", .rank = 2, .inputs = 3, .outputs = 1, .scale = 0.5f, .a = {1, 2, 3, 4, 5, 6}, .b = {7, 8}},
      {.name = "lm_head", .inputs = 1, .outputs = 2, .saved = {9, 10}, .saved_bias = {11, 12}}};
  return adapter;
}

std::vector<std::byte> message_of(const Adapter& adapter) {
  MessageWriter write;
  write_adapter(write, adapter);
  return write.message;
}

std::shared_ptr<Adapter> received(std::span<const std::byte> message) {
  MessageReader read{message};
  return receive_adapter(read);
}

TEST(AdapterMessage, HasEverything) {
  const std::vector<std::byte> message = message_of(*adapter_of("a"));
  const std::shared_ptr<Adapter> got = received(message);
  EXPECT_EQ(got->folder, "a");
  EXPECT_EQ(got->digest, "d1");
  ASSERT_EQ(got->modules.size(), 2u);
  EXPECT_EQ(got->modules[0].name, "q_proj");
  EXPECT_EQ(got->modules[0].a, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(got->modules[0].scale, 0.5f);
  EXPECT_EQ(got->modules[1].saved_bias, (std::vector<float>{11, 12}));
  EXPECT_EQ(message_of(*got), message);
  for (size_t bytes = 0; bytes < message.size(); ++bytes) {
    EXPECT_THROW(received(std::span(message).first(bytes)), Error) << bytes;
  }
  std::vector<std::byte> longer = message;
  longer.push_back({});
  EXPECT_THROW(received(longer), Error);
}

TEST(SentAdapters, AreSentOnceAndDroppedWhenTheyAreGone) {
  SentAdapters sent;
  std::shared_ptr<Adapter> a = adapter_of("a"), b = adapter_of("b");
  EXPECT_FALSE(sent.send(a).empty());
  EXPECT_TRUE(sent.send(a).empty());
  EXPECT_FALSE(sent.send(b).empty());
  EXPECT_NE(sent.place(*a, 0, 1), sent.place(*b, 0, 1));
  EXPECT_NE(sent.place(*a, 0, 1), sent.place(*a, 1, 1));
  EXPECT_NE(sent.place(*a, 0, 1), sent.place(*a, 0, 0.5f));
  EXPECT_TRUE(sent.drop().empty());
  a.reset();
  EXPECT_FALSE(sent.drop().empty());
  EXPECT_TRUE(sent.drop().empty());
  EXPECT_FALSE(sent.place(*b, 0, 1).empty());
}

}  // namespace
}  // namespace sluice::rank_adapters_test
