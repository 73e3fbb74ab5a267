// Tests of what travels over TCP and over UCX.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "parallel/ucx.h"
#include "sluice/error.h"
#include "support/sanitized.h"

namespace sluice::testing {

// The parameter is "tcp" or "ucx".
class OverTransports : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "tcp") return;
    // UCX hooks functions of the C library, which ThreadSanitizer calls where it cannot be entered.
    if (kSanitized) ::setenv("UCX_MEM_EVENTS", "n", 0);
    try {
      ucx_ = Ucx::load({});
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
  }

  std::unique_ptr<ByteStream> stream_over(std::unique_ptr<TcpStream> connection) const {
    if (ucx_ == nullptr) return connection;
    return ucx_->make_stream(std::move(connection));
  }

  std::unique_ptr<Ucx> ucx_;  // null for TCP
};

}  // namespace sluice::testing
