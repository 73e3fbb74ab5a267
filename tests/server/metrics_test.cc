// /metrics: the text form, and what it has of the engine and of HTTP.
#include "server/metrics.h"

#include "server/server_fixture.h"

namespace sluice::server::metrics_test {
namespace {

class MetricsTest : public ServerTest {};

TEST(MetricsText, IsEscaped) {
  MetricFamily family{.name = "a", .help = "one\\two\nthree"};
  family.samples.push_back({.labels = {{"name", "fa\"ke\\\n"}}, .value = 0});
  EXPECT_EQ(prometheus_text({family}), "# HELP a one\\\\two\\nthree\n# TYPE a gauge\na{name=\"fa\\\"ke\\\\\\n\"} 0\n");
}

TEST_F(MetricsTest, OfTheEngineAndOfHttp) {
  chat();
  get("/nothing");
  // The bodies of answered requests are freed just after their answers are sent.
  eventually([&] { return get("/metrics").body.find("http_request_body_bytes 0\n") != std::string::npos; });
  const TestResponse response = get("/metrics");
  EXPECT_EQ(response.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const auto* line :
       {"# HELP vllm:num_requests_running Running\\nrequests.\n# TYPE vllm:num_requests_running gauge\n",
        "vllm:num_requests_running{model_name=\"fake\"} 0\n", "# TYPE vllm:prompt_tokens_total counter\n",
        "vllm:prompt_tokens_total{model_name=\"fake\"} 7\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"fake\",le=\"0.5\"} 2\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"fake\",le=\"1\"} 3\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"fake\",le=\"+Inf\"} 7\n",
        "vllm:time_to_first_token_seconds_sum{model_name=\"fake\"} 12.5\n",
        "vllm:time_to_first_token_seconds_count{model_name=\"fake\"} 7\n",
        "http_requests_total{handler=\"/v1/chat/completions\",method=\"POST\",status=\"200\"} 1\n",
        "http_requests_total{handler=\"none\",method=\"GET\",status=\"404\"} 1\n", "http_connections ",
        "http_request_body_bytes 0\n"}) {
    EXPECT_NE(response.body.find(line), std::string::npos) << line << "\n" << response.body;
  }
}

}  // namespace
}  // namespace sluice::server::metrics_test
