// Tests files of packed weights: a written file is mapped again; anything else is refused and written anew.
#include "nn/loading/packed_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>
#include <vector>

#include "support/temp_folder.h"

namespace sluice::packed_file_test {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPage = 4096;

class PackedFileTest : public ::testing::Test {
 protected:
  PackedFileSpec spec(const std::string& contents = "weights") const {
    return {.folder = folder_ / "cache", .contents = contents, .program = "1", .sizes = {3, kPage, 5 * kPage + 17}};
  }

  // The byte at `at` of a weight; depends on `seed`.
  static std::byte byte_of(unsigned seed, size_t weight, size_t at) {
    return static_cast<std::byte>((seed * 31 + weight * 7 + at * 13 + at / 256) & 255);
  }
  static void fill(PackedFile& file, const PackedFileSpec& s, unsigned seed) {
    for (size_t w = 0; w < s.sizes.size(); ++w) {
      std::byte* to = file.next(s.sizes[w]);
      for (size_t i = 0; i < s.sizes[w]; ++i) to[i] = byte_of(seed, w, i);
    }
  }
  static void expect_filled(PackedFile& file, const PackedFileSpec& s, unsigned seed) {
    ASSERT_TRUE(file.filled());
    for (size_t w = 0; w < s.sizes.size(); ++w) {
      const std::byte* data = file.next(s.sizes[w]);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % kPage, 0u);
      for (size_t i = 0; i < s.sizes[w]; ++i) ASSERT_EQ(data[i], byte_of(seed, w, i)) << w << ", " << i;
    }
  }
  // Writes the spec's file; returns its path.
  std::string write(const PackedFileSpec& s, unsigned seed = 1) const {
    PackedFile file(s);
    EXPECT_FALSE(file.filled());
    fill(file, s, seed);
    file.finish(nullptr);
    return file.path();
  }
  // Expects an existing file to be refused and written again.
  void expect_made_again(const PackedFileSpec& s) const {
    {
      PackedFile file(s);
      ASSERT_FALSE(file.filled());
      const std::byte* first = file.next(s.sizes[0]);
      EXPECT_EQ(first[0], std::byte{0}) << "new weights begin as zeros";
    }
    write(s, 2);
    PackedFile file(s);
    expect_filled(file, s, 2);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder_ / "cache")) out.push_back(entry.path().filename().string());
    return out;
  }
  static void overwrite(const std::string& path, size_t at, char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    ASSERT_TRUE(file.good());
  }

  testing::TempFolder folder_;
};

TEST_F(PackedFileTest, OfADeviceGetsItsRoomWhenItIsWritten) {
  PackedFileSpec s = spec();
  s.from_device = true;
  for (const bool written : {false, true}) {
    PackedFile file(s);
    const std::string unfinished = file.path() + ".unfinished";
    EXPECT_EQ(fs::file_size(unfinished), 0u);
    if (!written) continue;
    file.reserve();
    EXPECT_EQ(fs::file_size(unfinished), file.bytes());
    fill(file, s, 1);
    file.finish(nullptr);
  }
  PackedFile file(s);
  expect_filled(file, s, 1);
}

TEST_F(PackedFileTest, OfADeviceDoesNotWaitForAnotherProcess) {
  PackedFileSpec s = spec();
  const PackedFile first(s);
  s.from_device = true;
  EXPECT_THROW(PackedFile{s}, PackedFileError);
}

TEST_F(PackedFileTest, IsMappedWhenItIsThere) {
  const PackedFileSpec s = spec();
  const std::string path = write(s);
  EXPECT_EQ(fs::file_size(path), kPage * (1 + 1 + 1 + 1 + 6)) << "header, checksums, weights";
  PackedFile file(s);
  expect_filled(file, s, 1);
  ThreadPool pool(2);
  file.read_ahead(pool);
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(PackedFileTest, MayBeReadOnly) {
  const PackedFileSpec s = spec();
  fs::permissions(write(s), fs::perms::owner_read);
  fs::permissions(s.folder, fs::perms::owner_read | fs::perms::owner_exec);
  {
    PackedFile file(s);
    expect_filled(file, s, 1);
  }
  fs::permissions(s.folder, fs::perms::owner_all);
}

TEST_F(PackedFileTest, OtherContentsAreOtherFiles) {
  const PackedFileSpec a = spec("a"), b = spec("b");
  EXPECT_NE(write(a, 1), write(b, 2));
  PackedFile first(a), second(b);
  expect_filled(first, a, 1);
  expect_filled(second, b, 2);
}

TEST_F(PackedFileTest, OfAnotherBuildIsReplaced) {
  PackedFileSpec s = spec();
  const std::string path = write(s);
  s.program = "2";
  expect_made_again(s);
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(PackedFileTest, UnderAnotherNameIsRefused) {
  const std::string path = write(spec("a")), other = write(spec("b"));
  fs::rename(path, other);
  expect_made_again(spec("b"));
}

TEST_F(PackedFileTest, CutOrLongerIsRefused) {
  const PackedFileSpec s = spec();
  for (const int change : {-1, -4096, 1}) {
    const std::string path = write(s);
    fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(change));
    expect_made_again(s);
    fs::remove(path);
  }
  const std::string path = write(s);
  fs::resize_file(path, 0);
  expect_made_again(s);
}

TEST_F(PackedFileTest, DamagedHeaderIsRefusedWhereverTheDamageIs) {
  const PackedFileSpec s = spec();
  constexpr size_t kHeader = 8 + 4 + 4 + 8 + 4 * 32;
  for (size_t at = 0; at < kHeader; at += 3) {
    const std::string path = write(s);
    std::ifstream in(path, std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    overwrite(path, at, static_cast<char>(bytes[at] ^ 0x40));
    EXPECT_FALSE(PackedFile(s).filled()) << at;
    fs::remove(path);
  }
}

TEST_F(PackedFileTest, WeightsThatNeverCameToTheDiskAreRefused) {
  const PackedFileSpec s = spec();
  const std::string path = write(s);
  for (size_t i = 0; i < kPage; ++i) overwrite(path, 4 * kPage + i, '\0');  // the first page of the third weight
  expect_made_again(s);
}

// Flips bytes one at a time, those of checksums and weights. Only padding may change unnoticed.
TEST_F(PackedFileTest, EveryDamagedByteOfAWeightIsDetected) {
  const PackedFileSpec s = spec();
  const std::string path = write(s);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  size_t begin = kPage;
  const auto expect_detected = [&](size_t at) {
    overwrite(path, at, static_cast<char>(bytes[at] ^ 0x80));
    EXPECT_FALSE(PackedFile(s).filled()) << at;
    fs::copy_file(folder_ / "good", path, fs::copy_options::overwrite_existing);
  };
  fs::copy_file(path, folder_ / "good");
  for (size_t i = 0; i < 3 * sizeof(uint32_t); ++i) expect_detected(begin + i);  // the checksums of three blocks
  begin += kPage;
  for (const size_t size : s.sizes) {
    for (size_t i = 0; i < size; i += 97) expect_detected(begin + i);
    expect_detected(begin + size - 1);
    begin += (size + kPage - 1) / kPage * kPage;
  }
}

// Weights of several blocks, checked by several threads.
TEST_F(PackedFileTest, DamageInAnyBlockIsDetected) {
  ThreadPool pool(3, /*pin=*/false);
  PackedFileSpec s = spec();
  s.sizes = {3u << 20, (1u << 20) + 5, 2u << 20};
  s.pool = &pool;
  const std::string path = write(s);
  {
    PackedFile file(s);
    expect_filled(file, s, 1);
  }
  for (const size_t at : {size_t{2} * kPage + 17, size_t{3} << 20, (size_t{4} << 20) + 3 * kPage}) {
    fs::copy_file(path, folder_ / "good", fs::copy_options::overwrite_existing);
    overwrite(path, at, 'x');
    EXPECT_FALSE(PackedFile(s).filled()) << at;
    fs::copy_file(folder_ / "good", path, fs::copy_options::overwrite_existing);
  }
  EXPECT_TRUE(PackedFile(s).filled());
}

TEST_F(PackedFileTest, DamageIsFoundInTheBackground) {
  PackedFileSpec s = spec();
  const std::string path = write(s);
  s.check = PackedFileCheck::kInBackground;
  {
    PackedFile file(s);
    file.start_check();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    file.check();
    EXPECT_TRUE(fs::exists(path));
  }
  overwrite(path, 7 * kPage, 'x');
  PackedFile file(s);
  EXPECT_TRUE(file.filled());
  file.check();
  file.start_check();
  for (int i = 0; i < 1000 && fs::exists(path); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(fs::exists(path)) << "the next start packs again";
  EXPECT_THROW(file.check(), Error);
}

TEST_F(PackedFileTest, ChecksCanBeOff) {
  PackedFileSpec s = spec();
  overwrite(write(s), 7 * kPage, 'x');
  s.check = PackedFileCheck::kOff;
  EXPECT_TRUE(PackedFile(s).filled());
}

// Readers of a device's weights take blocks in any order.
TEST_F(PackedFileTest, PartsAreReadAndCompared) {
  PackedFileSpec s = spec();
  s.sizes = {3, (2u << 20) + 5, 1u << 20};
  s.check = PackedFileCheck::kByReader;
  const std::string path = write(s);
  PackedFile file(s);
  for (size_t weight = 0; weight < s.sizes.size(); ++weight) EXPECT_EQ(file.skip(s.sizes[weight]), weight);
  const auto expect_part = [&](size_t weight, size_t begin, size_t count) {
    std::vector<std::byte> part(count);
    file.read(weight, begin, part);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], byte_of(1, weight, begin + i)) << weight << ", " << begin + i;
  };
  expect_part(2, 0, s.sizes[2]);
  expect_part(1, 2u << 20, 5);
  expect_part(1, 1u << 20, (1u << 20) + 5);
  expect_part(1, 0, 1u << 20);
  expect_part(0, 0, 3);
}

void expect_damaged(const PackedFile& file, size_t weight, size_t bytes, bool deleted) {
  std::vector<std::byte> into(bytes);
  try {
    file.read(weight, 0, into);
    FAIL() << "not reported";
  } catch (const PackedFileDamaged& e) {
    EXPECT_EQ(e.deleted, deleted);
    EXPECT_NE(std::string(e.what()).find(std::to_string(weight)), std::string::npos) << e.what();
  }
}

TEST_F(PackedFileTest, AReaderFindsDamageAndDeletesTheFile) {
  PackedFileSpec s = spec();
  s.check = PackedFileCheck::kByReader;
  const std::string path = write(s);
  overwrite(path, 7 * kPage, 'x');
  const PackedFile file(s);
  ASSERT_TRUE(file.filled());
  std::vector<std::byte> sound(s.sizes[1]);
  file.read(1, 0, sound);
  EXPECT_TRUE(fs::exists(path));
  expect_damaged(file, 2, s.sizes[2], /*deleted=*/true);
  EXPECT_FALSE(fs::exists(path));
  write(s);
  expect_damaged(file, 2, s.sizes[2], /*deleted=*/true);
  EXPECT_TRUE(fs::exists(path)) << "the file of another process";
}

TEST_F(PackedFileTest, AReaderReportsAFileThatBecameShorter) {
  PackedFileSpec s = spec();
  s.check = PackedFileCheck::kByReader;
  const std::string path = write(s);
  const PackedFile file(s);
  fs::resize_file(path, 6 * kPage);
  expect_damaged(file, 2, s.sizes[2], /*deleted=*/true);
}

TEST_F(PackedFileTest, AReaderMayNotBeAbleToDeleteADamagedFile) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may delete everything";
  PackedFileSpec s = spec();
  s.check = PackedFileCheck::kByReader;
  overwrite(write(s), 7 * kPage, 'x');
  const PackedFile file(s);
  fs::permissions(s.folder, fs::perms::owner_read | fs::perms::owner_exec);
  expect_damaged(file, 2, s.sizes[2], /*deleted=*/false);
  fs::permissions(s.folder, fs::perms::owner_all);
}

TEST_F(PackedFileTest, ThatShrinksInUseIsReported) {
  const PackedFileSpec s = spec();
  const std::string path = write(s);
  PackedFile file(s);
  fs::resize_file(path, kPage);
  const std::byte lost = *const_cast<volatile std::byte*>(file.next(s.sizes[0]));
  EXPECT_EQ(lost, std::byte{0});
  EXPECT_THROW(file.check(), Error);
}

TEST_F(PackedFileTest, ThatShrinksWhileItIsWrittenIsNotKept) {
  const PackedFileSpec s = spec();
  PackedFile file(s);
  fs::resize_file(file.path() + ".unfinished", 0);
  fill(file, s, 1);
  EXPECT_THROW(file.finish(nullptr), PackedFileError);
  EXPECT_FALSE(fs::exists(file.path()));
}

TEST_F(PackedFileTest, DoesNotFollowLinks) {
  const PackedFileSpec s = spec();
  const std::string path = write(s), victim = folder_.write("victim", "text");
  fs::remove(path);
  fs::create_symlink(victim, path + ".unfinished");
  EXPECT_THROW(PackedFile{s}, PackedFileError);
  EXPECT_EQ(fs::file_size(victim), 4u);
}

TEST_F(PackedFileTest, ThatIsNotFinishedLeavesNothing) {
  const PackedFileSpec s = spec();
  {
    PackedFile file(s);
    fill(file, s, 1);
    EXPECT_EQ(names().size(), 1u);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(PackedFileTest, WhatACrashLeftIsMadeAnew) {
  const PackedFileSpec s = spec();
  const pid_t child = ::fork();
  if (child == 0) {
    PackedFile file(s);
    fill(file, s, 7);
    ::_exit(0);  // no destructors run, as in a crash
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(names().size(), 1u);
  expect_made_again(s);
  EXPECT_EQ(names().size(), 1u);
}

// One process packs; the others wait for it and map its file.
TEST_F(PackedFileTest, IsWrittenOnceByManyAtATime) {
  const PackedFileSpec s = spec();
  std::atomic<int> packed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      PackedFile file(s);
      if (file.filled()) return expect_filled(file, s, 1);
      ++packed;
      fill(file, s, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      file.finish(nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(packed, 1);
  EXPECT_EQ(names().size(), 1u);
}

// If a process gives up, the next one that waits for it packs instead.
TEST_F(PackedFileTest, IsWrittenByTheNextWhenTheFirstGivesUp) {
  const PackedFileSpec s = spec();
  auto first = std::make_unique<PackedFile>(s);
  std::thread waits([&] { write(s, 3); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first.reset();
  waits.join();
  PackedFile file(s);
  expect_filled(file, s, 3);
}

void expect_refused(const PackedFileSpec& s, const std::string& message) {
  try {
    const PackedFile file(s);
    FAIL() << "not refused";
  } catch (const PackedFileError& e) {
    EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
  }
}

TEST_F(PackedFileTest, ThatHasNoRoomIsRefusedAndLeavesNothing) {
  PackedFileSpec s = spec();
  s.sizes.push_back(size_t{1} << 60);
  expect_refused(s, "no room for");
  EXPECT_TRUE(names().empty());
}

TEST_F(PackedFileTest, InAFolderThatCannotBeIsRefused) {
  PackedFileSpec s = spec();
  s.folder = folder_.write("file", "text") + "/cache";
  expect_refused(s, "cannot create its folder");
}

TEST_F(PackedFileTest, OfAProgramWithoutBuildIdIsRefused) {
  PackedFileSpec s = spec();
  s.program.clear();
  expect_refused(s, "build id");
}

}  // namespace
}  // namespace sluice::packed_file_test
