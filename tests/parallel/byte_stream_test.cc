// What streams between servers have in common, over TCP and over UCX: bytes come whole, and whoever waits is woken when
// the other side ends.
#include "parallel/byte_stream.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "support/ucx.h"

namespace sluice::byte_stream_test {
namespace {

using std::chrono_literals::operator""ms, std::chrono_literals::operator""s;
using Clock = std::chrono::steady_clock;

class ByteStreams : public testing::OverTransports {
 protected:
  std::unique_ptr<TcpStream> connect() const {
    return connect_tcp({.host = "127.0.0.1", .port = listener_.port()}, 2s);
  }
  // Both ends of a stream that is open.
  void join() {
    near_ = stream_over(connect());
    far_ = stream_over(listener_.accept(2s));
    std::thread other([&] { EXPECT_EQ(far_->open(5s), ""); });
    EXPECT_EQ(near_->open(5s), "");
    other.join();
  }

  TcpListener listener_{{.host = "127.0.0.1", .port = 0}, "--listen"};
  std::unique_ptr<ByteStream> near_, far_;
};
INSTANTIATE_TEST_SUITE_P(Transports, ByteStreams, ::testing::Values("tcp", "ucx"),
                         [](const auto& info) { return info.param; });

std::vector<std::byte> some_bytes(size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST_P(ByteStreams, BytesComeWholeAndInOrder) {
  join();
  const std::vector<std::byte> sent = some_bytes(16 << 20, 5);
  std::vector<std::byte> got(sent.size());
  std::thread writer([&] { EXPECT_TRUE(near_->write(sent, 5s)); });
  EXPECT_TRUE(far_->read(got, 5s));
  writer.join();
  EXPECT_EQ(sent, got);
}

// Both directions at once, in pieces of any size, cut otherwise by the reader than by the writer.
TEST_P(ByteStreams, SizesOfReadsAndWritesAreFree) {
  join();
  const std::vector<std::byte> sent = some_bytes(12'000'000, 7);
  const auto each_piece = [](unsigned seed, size_t end, const auto& move) {
    std::mt19937 random(seed);
    for (size_t at = 0; at < end;) {
      constexpr size_t kMost[] = {1, 16, 300, 5000, 70'000, 300'000, 6'000'000};
      const size_t n = std::min<size_t>(end - at, 1 + random() % kMost[random() % std::size(kMost)]);
      if (!move(at, n)) return false;
      at += n;
    }
    return true;
  };
  const auto write_all = [&](ByteStream& stream, unsigned seed) {
    return each_piece(seed, sent.size(),
                      [&](size_t at, size_t n) { return stream.write(std::span(sent).subspan(at, n), 5s); });
  };
  const auto read_all = [&](ByteStream& stream, unsigned seed) {
    std::vector<std::byte> got(sent.size());
    return each_piece(seed, sent.size(),
                      [&](size_t at, size_t n) { return stream.read(std::span(got).subspan(at, n), 5s); }) &&
           got == sent;
  };
  std::thread near_writes([&] { EXPECT_TRUE(write_all(*near_, 1)); });
  std::thread far_writes([&] { EXPECT_TRUE(write_all(*far_, 2)); });
  std::thread near_reads([&] { EXPECT_TRUE(read_all(*near_, 3)); });
  EXPECT_TRUE(read_all(*far_, 4));
  for (std::thread* thread : {&near_writes, &far_writes, &near_reads}) thread->join();
}

TEST_P(ByteStreams, SilenceEndsAWait) {
  join();
  std::byte byte{};
  EXPECT_FALSE(far_->readable(10ms));
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(far_->read({&byte, 1}, 50ms));
  EXPECT_GE(Clock::now() - before, 40ms);
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST_P(ByteStreams, AWriterWhoseBytesNobodyReadsGivesUp) {
  join();
  const std::vector<std::byte> bytes = some_bytes(32 << 20, 1);
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(near_->write(bytes, 200ms));
  EXPECT_LT(Clock::now() - before, 8s);
}

TEST_P(ByteStreams, AnEndWakesReaders) {
  for (const bool own : {false, true}) {
    join();
    std::thread other([&] {
      std::this_thread::sleep_for(30ms);
      (own ? far_ : near_)->shut_down();
    });
    const Clock::time_point before = Clock::now();
    std::byte byte{};
    EXPECT_TRUE(far_->readable(10s));
    EXPECT_FALSE(far_->read({&byte, 1}, 10s));
    EXPECT_LT(Clock::now() - before, 5s);
    other.join();
  }
}

TEST_P(ByteStreams, AnEndWakesWriters) {
  for (const bool own : {false, true}) {
    join();
    std::thread other([&] {
      std::this_thread::sleep_for(30ms);
      (own ? near_ : far_)->shut_down();
    });
    const Clock::time_point before = Clock::now();
    EXPECT_FALSE(near_->write(some_bytes(32 << 20, 1), 10s));
    EXPECT_LT(Clock::now() - before, 8s);
    other.join();
  }
}

// What came before the other side ended can be read.
TEST_P(ByteStreams, ShortBytesBeforeAnEndArrive) {
  join();
  const std::vector<std::byte> sent = some_bytes(100, 1);
  EXPECT_TRUE(near_->write(sent, 1s));
  EXPECT_TRUE(far_->readable(2s));
  near_->shut_down();
  std::vector<std::byte> got(sent.size());
  EXPECT_TRUE(far_->read(got, 2s));
  EXPECT_EQ(got, sent);
  EXPECT_FALSE(far_->read(got, 2s));
}

TEST_P(ByteStreams, WakeEndsReadableOnce) {
  join();
  far_->wake();
  const Clock::time_point before = Clock::now();
  EXPECT_FALSE(far_->readable(10s));
  EXPECT_LT(Clock::now() - before, 5s);
  EXPECT_FALSE(far_->readable(20ms)) << "the wake is used up";
  EXPECT_GE(Clock::now() - before, 15ms);
}

// The CPU time of this process, in us.
int64_t cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) { return time.tv_sec * 1'000'000 + time.tv_usec; };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

TEST_P(ByteStreams, AWaitTakesNoCpu) {
  join();
  std::byte byte{};
  EXPECT_TRUE(near_->write({&byte, 1}, 1s));
  EXPECT_TRUE(far_->read({&byte, 1}, 1s));
  const int64_t before = cpu_time();
  std::thread other([&] { EXPECT_FALSE(near_->readable(1s)); });
  EXPECT_FALSE(far_->readable(1s));
  other.join();
  if (kSanitized) return;  // times say nothing then
  EXPECT_LT(cpu_time() - before, 200'000) << "us of two threads that wait for a second";
}

// The other process does not read; it may have been stopped. Short messages fill what room there is.
TEST_P(ByteStreams, AWriterWithoutRoomTakesLittleCpu) {
  join();
  const std::vector<std::byte> bytes = some_bytes(33'000, 1);
  const int64_t before = cpu_time();
  while (near_->write(bytes, 1s)) {
  }
  if (kSanitized) return;  // times say nothing then
  EXPECT_LT(cpu_time() - before, 400'000) << "us";
}

// The other process of the test below: this program again. It connects, and reads or writes until it is killed.
constexpr const char* kPort = "SLUICE_TEST_PORT";
constexpr const char* kReads = "SLUICE_TEST_READS";
TEST_P(ByteStreams, DISABLED_OtherProcess) {
  const int port = std::atoi(std::getenv(kPort));
  const std::unique_ptr<ByteStream> stream = stream_over(connect_tcp({.host = "127.0.0.1", .port = port}, 5s));
  ASSERT_EQ(stream->open(5s), "");
  std::vector<std::byte> bytes(1 << 20);
  while (std::getenv(kReads) != nullptr ? stream->read(bytes, 5s) : stream->write(bytes, 5s)) {
  }
}

// A process that is killed while its bytes travel ends the stream at once.
TEST_P(ByteStreams, AKilledProcessEndsTheStream) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string filter = "--gtest_filter=Transports/ByteStreams.DISABLED_OtherProcess/" + GetParam();
  const std::string port = kPort + ("=" + std::to_string(listener_.port())), reads_too = std::string(kReads) + "=1";
  for (const bool reads : {false, true}) {
    std::vector<char*> environment;
    for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
    environment.push_back(const_cast<char*>(port.c_str()));
    if (reads) environment.push_back(const_cast<char*>(reads_too.c_str()));
    environment.push_back(nullptr);
    char also[] = "--gtest_also_run_disabled_tests";
    char* arguments[] = {const_cast<char*>(program.c_str()), also, const_cast<char*>(filter.c_str()), nullptr};
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
    const std::unique_ptr<ByteStream> stream = stream_over(listener_.accept(10s));
    ASSERT_EQ(stream->open(5s), "");
    std::vector<std::byte> bytes(1 << 20);
    std::thread killer([&] {
      std::this_thread::sleep_for(100ms);
      ::kill(child, SIGKILL);
    });
    const Clock::time_point before = Clock::now();
    while (reads ? stream->write(bytes, 20s) : stream->read(bytes, 20s)) {
    }
    EXPECT_LT(Clock::now() - before, 5s);
    killer.join();
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status)) << status;
  }
}

// A reader that gives up gets nothing later: its memory may have another use by then.
TEST_P(ByteStreams, NothingIsWrittenAfterAReadFailed) {
  join();
  std::vector<std::byte> got(4 << 20);
  std::thread reader([&] { EXPECT_FALSE(far_->read(got, 100ms)); });
  std::this_thread::sleep_for(10ms);
  std::atomic<bool> given_up{false};
  std::thread writer([&] {
    while (!given_up) std::this_thread::sleep_for(1ms);
    near_->write(some_bytes(got.size(), 3), 500ms);
  });
  reader.join();
  given_up = true;
  writer.join();
  EXPECT_EQ(got, std::vector<std::byte>(got.size()));
}

// Whoever connects without knowing UCX costs nothing but its connection.
TEST_P(ByteStreams, GarbageDuringOpenIsRefused) {
  if (ucx_ == nullptr) GTEST_SKIP() << "TCP agrees on nothing";
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    const std::unique_ptr<TcpStream> stranger = connect();
    const std::unique_ptr<ByteStream> stream = stream_over(listener_.accept(2s));
    std::vector<std::byte> bytes = some_bytes(random() % 400, random());
    // Some know how a greeting begins.
    constexpr char kBegin[] = "SLUICEUX\1\0\0\0\20\0\0";
    if (round % 3 == 0 && bytes.size() > sizeof kBegin) std::memcpy(bytes.data(), kBegin, sizeof kBegin);
    if (!bytes.empty()) stranger->write(bytes, 1s);
    if (round % 2 == 0) stranger->shut_down();
    EXPECT_NE(stream->open(50ms), "");
    bytes.resize(1);
    EXPECT_FALSE(stream->readable(1ms) && stream->read(bytes, 1ms));
    EXPECT_FALSE(stream->write(bytes, 1ms));
  }
  join();  // and the listener still works
}

// Such memory is that of some drivers. Here it is a page that nobody may read.
TEST_P(ByteStreams, MemoryThatOtherProcessesCannotCopy) {
  if (ucx_ == nullptr) GTEST_SKIP() << "TCP copies from the process itself";
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  ucx_ = Ucx::load({static_cast<const std::byte*>(page), 4096});
  join();
  const std::vector<std::byte> sent = some_bytes(8 << 20, 5);
  std::vector<std::byte> got(sent.size());
  std::thread writer([&] { EXPECT_TRUE(near_->write(sent, 5s)); });
  EXPECT_TRUE(far_->read(got, 5s));
  writer.join();
  EXPECT_EQ(sent, got);
  near_.reset();
  far_.reset();
  ucx_.reset();
  ::munmap(page, 4096);
}

// The program has handlers of its own, for example of SIGBUS.
TEST_P(ByteStreams, TheLibraryHandlesNoSignals) {
  if (ucx_ == nullptr) GTEST_SKIP() << "TCP has no library";
  for (int signal = 1; signal < 32; ++signal) {
    struct sigaction action {};
    Dl_info handler{};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
      continue;
    if (::dladdr(reinterpret_cast<void*>(action.sa_handler), &handler) == 0) continue;
    EXPECT_EQ(std::string(handler.dli_fname).find("libucs"), std::string::npos) << signal;
  }
}

}  // namespace
}  // namespace sluice::byte_stream_test
