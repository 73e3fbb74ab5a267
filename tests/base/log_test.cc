// Tests the two forms of log lines.
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"

namespace sluice::log_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string logged(std::string_view message, std::span<const log::Field> fields = {}) {
  ::testing::internal::CaptureStderr();
  log::write(log::Level::kInfo, message, fields);
  return ::testing::internal::GetCapturedStderr();
}

const log::Field kFields[] = {{"id", "a\nb"}, {"in", int64_t{7}}, {"ms", 1.5}};

TEST(Log, TextIsOneLine) {
  EXPECT_THAT(logged("request", kFields), EndsWith("info request id=a\\x0ab in=7 ms=1.500\n"));
}

TEST(Log, JsonIsOneObjectPerLine) {
  log::set_format(log::Format::kJson);
  const std::string line = logged("re\"quest\n", kFields);
  log::set_format(log::Format::kText);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const Json object = parse_json(line);
  EXPECT_EQ(object.at("message"), "re\"quest\n");
  EXPECT_EQ(object.at("level"), "info");
  EXPECT_EQ(object.at("id"), "a\nb");
  EXPECT_EQ(object.at("in"), 7);
  EXPECT_EQ(object.at("ms"), 1.5);
  EXPECT_EQ(object.at("time").get<std::string>().size(), 23u);
}

}  // namespace
}  // namespace sluice::log_test
