// Tests the list of a folder's names.
#include "base/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace sluice::folder_test {
namespace {

TEST(Folder, NamesAreSorted) {
  const testing::TempFolder folder;
  for (const char* name : {"b", "a", ".hidden", "c/inner"}) folder.write(name, "");
  std::error_code error;
  EXPECT_THAT(names_in(folder.path(), error), ::testing::ElementsAre(".hidden", "a", "b", "c"));
  EXPECT_FALSE(error);
}

TEST(Folder, WhatCannotBeReadIsToldApart) {
  const testing::TempFolder folder;
  std::error_code error;
  EXPECT_THAT(names_in(folder.path(), error), ::testing::IsEmpty());
  EXPECT_FALSE(error);
  EXPECT_THAT(names_in(folder.path() / "absent", error), ::testing::IsEmpty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace sluice::folder_test
