// The start of a server process: descriptors and warnings.
#include "server/startup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace sluice::server::startup_test {
namespace {

// Runs a check in a process of its own; true if it returns true.
template <class F>
bool in_child(F check) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(check() ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Startup, ClosedStandardDescriptorsBecomeDevNull) {
  for (int closed = 0; closed < 8; ++closed) {
    EXPECT_TRUE(in_child([closed] {
      for (int fd = 0; fd < 3; ++fd) {
        if ((closed >> fd & 1) != 0) ::close(fd);
      }
      open_standard_descriptors();
      struct stat null {};
      ::stat("/dev/null", &null);
      for (int fd = 0; fd < 3; ++fd) {
        struct stat status {};
        if (::fstat(fd, &status) != 0) return false;
        if ((closed >> fd & 1) != 0 && status.st_rdev != null.st_rdev) return false;
      }
      const int next = ::open("/dev/null", O_RDONLY);  // nothing else stays open
      return next > 2 && ::fcntl(next + 1, F_GETFD) < 0;
    })) << closed;
  }
}

TEST(Startup, TheLimitOnOpenFilesIsRaised) {
  EXPECT_TRUE(in_child([] {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_max = std::min<rlim_t>(limit.rlim_max, 4096);
    limit.rlim_cur = 64;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0 || fit_connections(100) != 100) return false;
    ::getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur == limit.rlim_max;
  }));
  EXPECT_TRUE(in_child([] {
    ::close(2);
    const rlimit limit{.rlim_cur = 1024, .rlim_max = 1024};
    return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && fit_connections(10'000) == 768;
  }));
}

std::string warnings(const ServerOptions& options, bool loopback, bool requires_key) {
  ::testing::internal::CaptureStderr();
  warn_about(options, loopback, requires_key);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Startup, WarnsAboutOpenServers) {
  ServerOptions options;
  options.host = "0.0.0.0";
  EXPECT_NE(warnings(options, false, false).find("--host 0.0.0.0: the network can reach"), std::string::npos);
  EXPECT_EQ(warnings(options, false, true), "");
  EXPECT_EQ(warnings(options, true, false), "");
}

TEST(Startup, WarnsAboutKeysThatOthersMayRead) {
  const std::string file = ::testing::TempDir() + "/sluice_mode_key";
  std::ofstream(file) << "key";
  ServerOptions tls, keys;
  tls.ssl_keyfile = file;
  keys.api_key_file = file;
  for (const mode_t mode : {0644, 0660, 0604, 0601}) {
    ::chmod(file.c_str(), mode);
    EXPECT_NE(warnings(tls, true, true).find("--ssl-keyfile " + file), std::string::npos) << mode;
    EXPECT_NE(warnings(keys, true, true).find("--api-key-file " + file), std::string::npos) << mode;
  }
  for (const mode_t mode : {0600, 0400}) {
    ::chmod(file.c_str(), mode);
    EXPECT_EQ(warnings(tls, true, true) + warnings(keys, true, true), "") << mode;
  }
  ::unlink(file.c_str());
}

}  // namespace
}  // namespace sluice::server::startup_test
