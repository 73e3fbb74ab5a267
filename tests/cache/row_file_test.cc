// The file of rows over restarts, damage and kills.
#include "cache/row_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::row_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Bytes = std::vector<std::byte>;

constexpr size_t kRow = 10'000;
constexpr size_t kFile = 1 << 20;

BlockHash name(int number) {
  BlockHash hash;
  std::memcpy(hash.bytes.data(), &number, sizeof number);
  return hash;
}

Bytes contents(int number, size_t bytes = kRow) {
  std::mt19937 random(static_cast<unsigned>(number));
  Bytes row(bytes);
  for (std::byte& byte : row) byte = static_cast<std::byte>(random());
  return row;
}

class RowFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<RowFile> open(size_t bytes = kFile, const std::string& identity = "a model") {
    return std::make_unique<RowFile>(folder_ / "kv", identity, kRow, bytes);
  }
  std::vector<int> kept(RowFile& file) {
    std::vector<int> slots;
    for (const RowFile::Kept& row : file.take_kept()) slots.push_back(row.slot);
    return slots;
  }
  static bool reads(RowFile& file, int slot, int number) {
    Bytes row(kRow);
    return file.read(slot, name(number), row) && row == contents(number);
  }

  testing::TempFolder folder_;
};

TEST_F(RowFileTest, KeepsRowsForTheNextRun) {
  std::string path;
  {
    const auto file = open();
    EXPECT_THAT(kept(*file), IsEmpty());
    for (const int slot : {5, 0, 3}) ASSERT_TRUE(file->write(slot, name(slot), 0, contents(slot)));
    path = file->path();
  }
  const auto file = open();
  EXPECT_THAT(kept(*file), ElementsAre(5, 0, 3)) << "the oldest first";
  for (const int slot : {5, 0, 3}) EXPECT_TRUE(reads(*file, slot, slot));
  EXPECT_FALSE(reads(*file, 5, 0)) << "another row is there";
  EXPECT_FALSE(reads(*file, 1, 1)) << "nothing is there";
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_LE(static_cast<size_t>(status.st_size), kFile);
}

TEST_F(RowFileTest, AnotherIdentityIsAnotherFile) {
  const auto file = open(), other = open(kFile, "another model");
  EXPECT_NE(file->path(), other->path());
}

TEST_F(RowFileTest, ANewEpochForgetsEarlierRows) {
  {
    const auto file = open();
    file->write(0, name(0), 0, contents(0));
    ASSERT_TRUE(file->begin_epoch(1));
    file->write(1, name(1), 0, contents(1));  // was on its way
    file->write(2, name(2), 1, contents(2));
  }
  const auto file = open();
  EXPECT_THAT(kept(*file), ElementsAre(2));
}

TEST_F(RowFileTest, FindsEveryDamagedByte) {
  std::string path;
  {
    const auto file = open();
    for (int slot = 0; slot < 4; ++slot) ASSERT_TRUE(file->write(slot, name(slot), 0, contents(slot)));
    path = file->path();
  }
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const auto size = std::filesystem::file_size(path);
    const auto at = static_cast<std::streamoff>(round % 2 == 0 ? random() % 5000 : random() % size);
    std::fstream raw(path, std::ios::in | std::ios::out | std::ios::binary);
    raw.seekg(at);
    const char former = static_cast<char>(raw.get());
    raw.seekp(at);
    raw.put(static_cast<char>(former ^ 0x10));
    raw.close();
    {
      const auto file = open();
      for (const RowFile::Kept& row : file->take_kept()) {
        int number = 0;
        std::memcpy(&number, row.row.bytes.data(), sizeof number);
        Bytes bytes(kRow);
        if (!file->read(row.slot, row.row, bytes)) continue;
        EXPECT_EQ(bytes, contents(number)) << "byte " << at;
      }
    }
    if (at < 4096) {  // the header: the file was begun anew
      const auto file = open();
      for (int slot = 0; slot < 4; ++slot) ASSERT_TRUE(file->write(slot, name(slot), 0, contents(slot)));
      continue;
    }
    std::fstream repaired(path, std::ios::in | std::ios::out | std::ios::binary);
    repaired.seekp(at);
    repaired.put(former);
  }
}

TEST_F(RowFileTest, AFileOfAnotherSizeIsBegunAnew) {
  { open()->write(0, name(0), 0, contents(0)); }
  { EXPECT_THAT(kept(*open(kFile / 2)), IsEmpty()); }
  EXPECT_THAT(kept(*open()), IsEmpty());
}

TEST_F(RowFileTest, RefusesWhatCannotBeUsed) {
  const auto message = [&](const auto& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ErrorCode::kInvalidRequest);
      return e.what();
    }
    return "no error";
  };
  const auto file = open();
  EXPECT_THAT(message([&] { open(); }), HasSubstr("another process uses the file"));
  const std::chrono::milliseconds patience(30);
  EXPECT_THAT(message([&] { RowFile(folder_ / "kv", "a model", kRow, kFile, patience); }),
              HasSubstr("another process uses"));
  EXPECT_THAT(message([&] { open(kRow, "b"); }), HasSubstr("raise --kv-disk-bytes"));
  EXPECT_THAT(message([&] { open(size_t{1} << 60, "c"); }), HasSubstr("lower --kv-disk-bytes"));
  EXPECT_THAT(message([&] { RowFile(file->path(), "d", kRow, kFile); }), HasSubstr("--kv-disk: "));
}

TEST_F(RowFileTest, WaitsForAProcessThatEnds) {
  auto file = open();
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    file.reset();
  });
  EXPECT_NO_THROW(RowFile(folder_ / "kv", "a model", kRow, kFile, std::chrono::minutes(1)));
  other.join();
}

// A process is killed while it writes rows to random slots, again and again. Rows that the next run reads are whole.
TEST_F(RowFileTest, AKilledWriterLeavesNoTornRow) {
  constexpr int kSlots = 8;
  int found = 0;
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto file = open();
      std::mt19937 random(static_cast<unsigned>(round));
      for (;;) {
        const int number = static_cast<int>(random() % 1000);
        file->write(number % kSlots, name(number), 0, contents(number));
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto file = open();
    for (const RowFile::Kept& row : file->take_kept()) {
      int number = 0;
      std::memcpy(&number, row.row.bytes.data(), sizeof number);
      Bytes bytes(kRow);
      if (!file->read(row.slot, row.row, bytes)) continue;
      EXPECT_EQ(bytes, contents(number));
      ++found;
    }
  }
  EXPECT_GT(found, 20);
}

}  // namespace
}  // namespace sluice::row_file_test
