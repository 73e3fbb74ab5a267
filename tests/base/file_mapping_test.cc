// Tests that a mapped file may shrink: lost pages read as zeros, the mapping says so, and other SIGBUS signals keep
// their effect.
#include "base/file_mapping.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "base/mmap.h"
#include "sluice/error.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace sluice::file_mapping_test {
namespace {

constexpr size_t kPage = 4096;

// Another thread may replace the page meanwhile, which ThreadSanitizer takes for a write.
[[gnu::no_sanitize_thread, gnu::noinline]] std::byte read_at(const MappedFile& file, size_t at) {
  return *const_cast<const volatile std::byte*>(file.bytes().data() + at);
}

TEST(FileMapping, LostPagesReadAsZerosAndAreReported) {
  const testing::TempFolder folder;
  const std::string path = folder.write("weights", std::string(5 * kPage, 'x'));
  const MappedFile file(path), other(folder.write("other", "text"));
  EXPECT_EQ(read_at(file, 4 * kPage), std::byte{'x'});
  file.check();
  std::filesystem::resize_file(path, kPage);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(read_at(file, 3 * kPage), std::byte{0});
  EXPECT_EQ(read_at(file, 5 * kPage - 1), std::byte{0});
  EXPECT_EQ(read_at(file, kPage), std::byte{0}) << "before the first fault";
  EXPECT_EQ(read_at(file, 0), std::byte{'x'});
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("sluice: " + path + ": the file became shorter"), 0u) << log;
  EXPECT_EQ(log.find('\n'), log.size() - 1) << "reported once: " << log;
  EXPECT_TRUE(any_file_damaged());
  try {
    file.check();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ErrorCode::kCorruptFile);
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
  other.check();
}

TEST(FileMapping, ManyThreadsMayMeetTheLossAtOnce) {
  const testing::TempFolder folder;
  constexpr size_t kPages = 512;
  const std::string path = folder.write("weights", std::string(kPages * kPage, 'x'));
  const MappedFile file(path);
  std::filesystem::resize_file(path, 0);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = kPages; i-- > 0;) EXPECT_EQ(read_at(file, (i * (2 * t + 1)) % kPages * kPage), std::byte{0});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THROW(file.check(), Error);
}

TEST(FileMapping, AWritableMappingStaysWritable) {
  const testing::TempFolder folder;
  const std::string path = folder.write("weights", std::string(2 * kPage, 'x'));
  const int fd = ::open(path.c_str(), O_RDWR);
  void* mapped = ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ::close(fd);
  const FileMapping mapping({static_cast<std::byte*>(mapped), 2 * kPage}, PROT_READ | PROT_WRITE, path);
  std::filesystem::resize_file(path, 0);
  mapping.data()[kPage] = std::byte{7};
  EXPECT_EQ(mapping.data()[kPage], std::byte{7});
  EXPECT_TRUE(mapping.shrank());
}

TEST(FileMapping, PlacesInTheTableAreUsedAgain) {
  const testing::TempFolder folder;
  const std::string path = folder.write("weights", std::string(kPage, 'x'));
  for (int i = 0; i < 10'000; ++i) MappedFile{path}.check();
  const MappedFile file(path);
  std::filesystem::resize_file(path, 0);
  EXPECT_EQ(read_at(file, 0), std::byte{0});
  EXPECT_THROW(file.check(), Error);
}

TEST(FileMappingDeathTest, OtherBusErrorsKeepTheirEffect) {
  const testing::TempFolder folder;
  const std::string path = folder.write("data", std::string(kPage, 'x'));
  const MappedFile watched(path);  // installs the handler
  const int fd = ::open(path.c_str(), O_RDONLY);
  void* mapped = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, fd, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::filesystem::resize_file(path, 0);
  const auto* byte = static_cast<const volatile char*>(mapped);
#if SLUICE_SANITIZED
  EXPECT_DEATH([[maybe_unused]] const char read = *byte, "BUS");
#else
  EXPECT_EXIT([[maybe_unused]] const char read = *byte, ::testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(::raise(SIGBUS), ::testing::KilledBySignal(SIGBUS), "");
#endif
  ::munmap(mapped, kPage);
  ::close(fd);
}

}  // namespace
}  // namespace sluice::file_mapping_test
