// HTTPS with a certificate made on the spot.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cstdio>

#include "server/server_fixture.h"
#include "support/certificate.h"

namespace sluice::tls_test {
namespace {

class TlsTest : public ServerTest {
 protected:
  TlsTest() {
    options.ssl_certfile = ::testing::TempDir() + "/sluice_tls.pem";
    options.ssl_keyfile = ::testing::TempDir() + "/sluice_tls.key";
    testing::write_authority(options.ssl_certfile, options.ssl_keyfile, "127.0.0.1");
    context = SSL_CTX_new(TLS_client_method());
  }
  ~TlsTest() override {
    SSL_CTX_free(context);
    std::remove(options.ssl_certfile.c_str());
    std::remove(options.ssl_keyfile.c_str());
  }

  // Sends the text and reads until the server ends the connection; "" when the handshake fails.
  std::string exchange(const std::string& text) {
    TestClient client(port);
    SSL* ssl = SSL_new(context);
    SSL_set_fd(ssl, client.fd());
    std::string out;
    if (SSL_connect(ssl) == 1) {
      SSL_write(ssl, text.data(), static_cast<int>(text.size()));
      char bytes[4096];
      for (int n; (n = SSL_read(ssl, bytes, sizeof bytes)) > 0;) out.append(bytes, static_cast<size_t>(n));
      clean_end = SSL_get_shutdown(ssl) == SSL_RECEIVED_SHUTDOWN;
    }
    SSL_free(ssl);
    return out;
  }

  SSL_CTX* context = nullptr;
  bool clean_end = false;
};

TEST_F(TlsTest, AnswersAndStreams) {
  start();
  const std::string health = exchange(get_text("/health", "Connection: close\r\n"));
  EXPECT_TRUE(health.starts_with("HTTP/1.1 200 OK\r\n")) << health;
  EXPECT_TRUE(clean_end);
  const std::string stream = exchange(
      post_text("/v1/completions", R"({"model":"fake","prompt":"abcdef","stream":true})", "Connection: close\r\n"));
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos);
}

TEST_F(TlsTest, OldVersionsAndPlainTextAreRefused) {
  options.header_timeout_ms = 300;
  start();
  SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_1_VERSION);
  EXPECT_EQ(exchange(get_text("/health")), "");
  TestClient plain(port);
  plain.send(get_text("/health"));
  EXPECT_EQ(plain.read_response().status, 0);
  TestClient silent(port);
  EXPECT_TRUE(silent.closed_by_server(3000));
}

TEST_F(TlsTest, SuitesWithoutForwardSecrecyAreRefused) {
  start();
  const auto answers = [this](const char* suites) {
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(context, suites);
    return exchange(get_text("/health", "Connection: close\r\n")).starts_with("HTTP/1.1 200 OK\r\n");
  };
  EXPECT_TRUE(answers("ECDHE+AESGCM"));
  EXPECT_TRUE(answers("ECDHE+CHACHA20"));
  EXPECT_FALSE(answers("AES128-SHA"));
  EXPECT_FALSE(answers("AES256-GCM-SHA384"));
  EXPECT_FALSE(answers("ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA"));
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  EXPECT_TRUE(exchange(get_text("/health", "Connection: close\r\n")).starts_with("HTTP/1.1 200 OK\r\n"));
}

TEST_F(TlsTest, ClientsThatLeaveCancel) {
  engine.step_us = 1000;
  start();
  TestClient client(port);
  SSL* ssl = SSL_new(context);
  SSL_set_fd(ssl, client.fd());
  ASSERT_EQ(SSL_connect(ssl), 1);
  const std::string text =
      post_text("/v1/completions", R"({"model":"fake","prompt":"abc","ignore_eos":true,"max_tokens":4000})");
  SSL_write(ssl, text.data(), static_cast<int>(text.size()));
  ASSERT_TRUE(eventually([&] { return engine.running() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.running() == 0; }));
  SSL_free(ssl);
}

}  // namespace
}  // namespace sluice::tls_test
