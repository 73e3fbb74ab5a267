// What a request may cost: memory and time that its bytes pay for, whatever field they are put into. Requests are made
// from the tables of fields, so a new field is covered by its type.
#include <dirent.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>

#include "server/allocations.h"
#include "server/endpoint.h"
#include "server/server_fixture.h"
#include "support/sanitized.h"

namespace sluice::server::budget_test {
namespace {

using Type = Parameter::Type;

constexpr int64_t kBytesPerByte = 20, kFreeBytes = 1 << 20;
constexpr int64_t kBytesPerSequence = 8 << 10;  // each is a request to the engine; 2048 at most
constexpr int64_t kBytesPerScore = 1 << 10;     // of a prompt's token, in the answer
constexpr int64_t kBytesPerToken = 256;         // of a text, in answers that describe each of its tokens
constexpr double kMilliseconds = 200;

// The smallest request that each endpoint answers, and the model's task.
struct Base {
  std::string_view endpoint, body;
  Task task = Task::kGenerate;
};
constexpr std::string_view kChat = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1})";
constexpr Base kBases[] = {
    {"tgi", R"({"inputs":"a","parameters":{"max_new_tokens":1}})"},
    {"tgi generate", R"({"inputs":"a","parameters":{"max_new_tokens":1}})"},
    {"tgi generate_stream", R"({"inputs":"a","parameters":{"max_new_tokens":1}})"},
    {"ollama chat", R"({"model":"fake","messages":[{"role":"user","content":"hi"}]})"},
    {"ollama show", R"({"model":"fake"})"},
    {"ollama pull", R"({"model":"fake"})"},
    {"ollama embed", R"({"model":"fake","input":"a"})", Task::kEmbed},
    {"ollama embeddings", R"({"model":"fake","prompt":"a"})", Task::kEmbed},
    {"ollama generate", R"({"model":"fake","prompt":"a"})"},
    {"anthropic messages", kChat},
    {"anthropic count_tokens", R"({"messages":[{"role":"user","content":"hi"}]})"},
    {"completions", R"({"prompt":"a","max_tokens":1})"},
    {"chat", kChat},
    {"chat update", R"({"metadata":{}})"},
    {"tokenize", R"({"prompt":"a"})"},
    {"load_lora_adapter", R"({"lora_name":"a","lora_path":"a"})"},
    {"unload_lora_adapter", R"({"lora_name":"a"})"},
    {"score", R"({"text_1":"a","text_2":"b"})", Task::kScore},
    {"detokenize", R"({"tokens":[65]})"},
    {"embeddings", R"({"input":"a"})", Task::kEmbed},
    {"rerank", R"({"query":"a","documents":["b"]})", Task::kScore},
    {"responses", R"({"input":"a"})"},
    {"response input_tokens", R"({"input":"a"})"},
    {"llama.cpp apply-template", R"({"messages":[{"role":"user","content":"hi"}]})"},
    {"llama.cpp set lora-adapters", R"({"lora":[]})"},
    {"llama.cpp completion", R"({"prompt":"a","n_predict":1})"},
    {"llama.cpp infill", R"({"input_prefix":"a","input_suffix":"b","n_predict":1})"},
    {"classify", R"({"input":"a"})", Task::kScore},
    {"pooling", R"({"input":"a"})", Task::kEmbed},
    {"invocations", R"({"model":"fake"})"},
    {"sglang generate", R"({"text":"a","sampling_params":{"max_new_tokens":1}})"},
    {"chat input_tokens", R"({"messages":[{"role":"user","content":"hi"}]})"},
    {"tgi tokenize", R"({"inputs":"a"})"},
    {"tgi chat_tokenize", R"({"messages":[{"role":"user","content":"hi"}]})"},
    {"tei embed", R"({"inputs":"a"})", Task::kEmbed},
    {"tei similarity", R"({"inputs":{"source_sentence":"a","sentences":["b"]}})", Task::kEmbed},
    {"tei predict", R"({"inputs":"a"})", Task::kScore},
    {"tei rerank", R"({"query":"a","texts":["b"]})", Task::kScore},
    {"tei tokenize", R"({"inputs":"a"})", Task::kEmbed},
    {"tei decode", R"({"ids":[65]})"},
    {"cohere embed", R"({"texts":["a"]})", Task::kEmbed},
    {"cohere embed v1", R"({"texts":["a"]})", Task::kEmbed},
};

std::string_view path_of(const EndpointInfo& endpoint) {
  return endpoint.paths.empty() ? endpoint.shared[0].path : endpoint.paths[0];
}

bool describes_tokens(const EndpointInfo& endpoint) {
  constexpr std::string_view kNames[] = {"tgi tokenize", "tgi chat_tokenize", "tei tokenize"};
  return std::ranges::find(kNames, endpoint.name) != std::end(kNames);
}

// A value that grows by repeating a part.
struct Shape {
  std::string_view name, begin, part, end;
};

// Values of any type, good or bad.
constexpr Shape kAny[] = {
    {"text", "\"", "a", "\""},          {"escapes", "\"", "\\u0001", "\""},
    {"digits", "0.", "1", "1"},         {"numbers", "[0", ",0", "]"},
    {"texts", "[\"a\"", ",\"a\"", "]"}, {"empty lists", "[[]", ",[]", "]"},
    {"lists", "[[0]", ",[0]", "]"},     {"objects", R"([{"a":0})", R"(,{"a":0})", "]"},
};

// Values that get past the first checks of fields with a form of their own.
struct FieldShape {
  std::string_view field;
  Shape shape;
};
constexpr FieldShape kForms[] = {
    {"messages", {"many", R"([{"role":"user","content":"a"})", R"(,{"role":"user","content":"a"})", "]"}},
    {"messages", {"one text", R"([{"role":"user","content":")", "a", "\"}]"}},
    {"messages",
     {"parts", R"([{"role":"user","content":[{"type":"text","text":"a"})", R"(,{"type":"text","text":"a"})", "]}]"}},
    {"messages",
     {"arguments",
      R"([{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\":[0)",
      ",0", R"(]}"}}]}])"}},
    {"tools", {"schema", R"([{"type":"function","function":{"name":"f","parameters":{"enum":[0)", ",0", "]}}}]"}},
    {"response_format",
     {"schema", R"({"type":"json_schema","json_schema":{"name":"a","schema":{"enum":[0)", ",0", "]}}}"}},
    {"structured_outputs", {"schema", R"({"json":{"enum":[0)", ",0", "]}}"}},
    {"structured_outputs", {"choice", R"({"choice":["a")", ",\"a\"", "]}"}},
    {"options", {"stop", R"({"stop":["a")", ",\"a\"", "]}"}},
    {"parameters", {"stop", R"({"max_new_tokens":1,"stop":["a")", ",\"a\"", "]}"}},
    {"prompt", {"token lists", "[[1]", ",[1]", "]"}},
    {"input", {"token lists", "[[1]", ",[1]", "]"}},
    {"input", {"items", R"([{"role":"user","content":"a"})", R"(,{"role":"user","content":"a"})", "]"}},
};

std::string grown(const Shape& shape, size_t bytes, size_t most_parts = SIZE_MAX) {
  std::string out(shape.begin);
  out.reserve(bytes + 64);
  for (size_t i = 0; i < most_parts && out.size() + shape.part.size() + shape.end.size() <= bytes; ++i)
    out += shape.part;
  return out += shape.end;
}

std::string members(size_t bytes, size_t most) {
  std::string out = "{\"0\":0";
  for (size_t i = 1; i < most && out.size() + 12 < bytes; ++i) out += fmt::format(",\"{}\":0", i);
  return out + "}";
}

struct Value {
  std::string name, text;
};

// Large values of a row, of about `bytes` bytes, and as large as its limits allow.
std::vector<Value> large_values(const Parameter& row, size_t bytes) {
  std::vector<Value> out;
  const auto add = [&](const Shape& shape) {
    out.push_back({std::string(shape.name), grown(shape, bytes)});
    const size_t allowed = row.max_bytes > 16 ? std::min(bytes, row.max_bytes - 8) : bytes;
    const size_t items = row.max_items > 0 && row.max_items != Parameter::kVocabulary && shape.part.starts_with(',')
                             ? row.max_items - 1
                             : SIZE_MAX;
    std::string fitting = grown(shape, allowed, items);
    if (fitting.size() < out.back().text.size()) out.push_back({fmt::format("allowed {}", shape.name), fitting});
  };
  for (const Shape& shape : kAny) add(shape);
  for (const FieldShape& form : kForms) {
    if (form.field == row.name) add(form.shape);
  }
  out.push_back({"members", members(bytes, SIZE_MAX)});
  out.push_back({"nested", std::string(60, '[') + grown(kAny[3], bytes) + std::string(60, ']')});
  if (row.type == Type::kTokenBias) out.push_back({"biases", members(bytes, 300)});
  if (row.type == Type::kInteger || row.type == Type::kNumber) {
    const double most = std::min(row.max, 9.2e18);
    out.push_back({"most", row.type == Type::kInteger ? fmt::format("{:.0f}", most) : fmt::format("{}", most)});
  }
  if (row.type == Type::kBoolean) out.push_back({"true", "true"});
  return out;
}

// The request's body with another value of the field.
std::string with(std::string_view base, std::string_view field, std::string_view value) {
  Json body = parse_json(base);
  body.erase(std::string(field));
  std::string text = dump_json(body);
  text.pop_back();
  if (text.size() > 1) text += ',';
  return fmt::format("{}\"{}\":{}}}", text, field, value);
}

// CPU time of each thread of the process, in seconds.
std::map<int, double> thread_times() {
  std::map<int, double> out;
  DIR* folder = ::opendir("/proc/self/task");
  while (const dirent* entry = ::readdir(folder)) {
    const int id = std::atoi(entry->d_name);
    timespec time{};
    const auto clock = static_cast<clockid_t>((~static_cast<unsigned>(id) << 3) | 6);  // as the kernel numbers them
    if (id > 0 && ::clock_gettime(clock, &time) == 0)
      out[id] = static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }
  ::closedir(folder);
  return out;
}

class BudgetTest : public ServerTest {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers change what requests cost";
  }
  BudgetTest() {
    options.worker_threads = 1;
    options.log_level = "off";
    Allocations::uncounted = true;  // this thread is the client
  }
  ~BudgetTest() override {
    stop();
    Allocations::uncounted = false;
  }

  // The model serves the endpoint's task, and answers at once where answers need no tokens.
  void serve(const Base& base) {
    engine.info().task = base.task;
    engine.info().vector_size = base.task == Task::kEmbed ? 4 : 1;
    engine.answer_with(base.endpoint.starts_with("tgi") ? std::vector<Delta>() : std::vector<Delta>{TextDelta{"x"}});
  }

  int status_of(const EndpointInfo& endpoint, std::string_view body) {
    if (!client_) client_ = std::make_unique<TestClient>(port);
    client_->send(post_text(path_of(endpoint), body));
    const TestResponse response = client_->read_response();
    if (response.status == 0 || response.headers.contains("connection")) client_.reset();
    return response.status;
  }

  struct Cost {
    int64_t memory = 0, sequences = 0;  // memory in bytes
    double seconds = 0;                 // of the busiest thread
    int status = 0;
  };

  Cost cost_of(const EndpointInfo& endpoint, const std::string& body) {
    const int64_t before = Allocations::live;
    Allocations::peak = before;
    const int submitted = engine.submitted;
    const auto times = thread_times();
    Cost cost{.status = status_of(endpoint, body)};
    for (const auto& [id, time] : thread_times()) {
      if (id != ::gettid() && times.contains(id)) cost.seconds = std::max(cost.seconds, time - times.at(id));
    }
    cost.memory = Allocations::peak - before;
    cost.sequences = engine.submitted - submitted;
    if (cost.sequences > 0 && endpoint.name != "completions") {
      cost.sequences += std::ssize(engine.last_pooling().texts);
    }
    return cost;
  }

  // `extra`: bytes of memory for what the answer contains beyond the request. A request that costs too much is sent
  // again, because threads may still work for the one before it.
  void expect_within_budget(const EndpointInfo& endpoint, const std::string& body, const std::string& what,
                            int64_t extra = 0) {
    const auto bytes = static_cast<int64_t>(body.size());
    ++requests_;
    Cost cost;
    for (int attempt = 0; attempt < 5; ++attempt) {
      cost = cost_of(endpoint, body);
      const int64_t allowed = kBytesPerByte * bytes + kFreeBytes + extra + kBytesPerSequence * cost.sequences;
      if (cost.memory <= allowed && cost.seconds * 1000 <= kMilliseconds && cost.status > 0) return;
    }
    ++violations_;
    ADD_FAILURE() << fmt::format("{} {}: {} bytes cost {} KiB ({:.1f} per byte) and {:.0f} ms, status {}",
                                 endpoint.name, what, bytes, cost.memory >> 10,
                                 static_cast<double>(cost.memory) / static_cast<double>(bytes), cost.seconds * 1000,
                                 cost.status);
  }

  // Every field of every endpoint, at this size.
  void measure_all(size_t bytes) {
    start();
    for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
      if (endpoint->parameters.empty() || endpoint->name.starts_with("test-")) continue;
      const auto base = std::ranges::find(kBases, endpoint->name, &Base::endpoint);
      ASSERT_NE(base, std::end(kBases)) << endpoint->name << " has no request here";
      serve(*base);
      for (const std::span<const Parameter> group : endpoint->parameters) {
        for (const Parameter& row : group) {
          for (const Value& value : large_values(row, bytes)) {
            const int64_t described = describes_tokens(*endpoint) ? std::ssize(value.text) * kBytesPerToken : 0;
            expect_within_budget(*endpoint, with(base->body, row.name, value.text),
                                 fmt::format("'{}' {}", row.name, value.name), described);
            if (violations_ > 200) return;
          }
        }
      }
    }
    fmt::print("{} requests\n", requests_);
  }

  std::unique_ptr<TestClient> client_;
  int requests_ = 0, violations_ = 0;
};

TEST_F(BudgetTest, EveryEndpointHasARequest) {
  start();
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    if (endpoint->parameters.empty() || endpoint->name.starts_with("test-")) continue;
    const auto base = std::ranges::find(kBases, endpoint->name, &Base::endpoint);
    ASSERT_NE(base, std::end(kBases)) << endpoint->name;
    serve(*base);
    const int status = status_of(*endpoint, base->body);
    EXPECT_EQ(status, endpoint->name == "load_lora_adapter"     ? 403
                      : endpoint->name == "invocations"         ? 400
                      : endpoint->name == "llama.cpp infill"    ? 501
                      : endpoint->name == "unload_lora_adapter" ? 404
                      : endpoint->name == "chat update"         ? 404
                                                                : 200)
        << endpoint->name;
  }
}

TEST_F(BudgetTest, SmallRequests) { measure_all(4 << 10); }
TEST_F(BudgetTest, MediumRequests) { measure_all(64 << 10); }

// A large field is shared by all prompts of a request.
TEST_F(BudgetTest, ManyPrompts) {
  constexpr size_t kPrompts = 2000;
  start();
  serve({"completions", ""});
  for (const EndpointInfo* endpoint : Registry<EndpointInfo>::all()) {
    if (endpoint->name != "completions") continue;
    for (const std::span<const Parameter> group : endpoint->parameters) {
      for (const Parameter& row : group) {
        if (row.type == Type::kUnsupported || row.name == "prompt") continue;
        for (const Value& value : large_values(row, 64 << 10)) {
          const std::string prompts = grown(kAny[4], 8 << 10, kPrompts);
          expect_within_budget(*endpoint, with(with(R"({"max_tokens":1})", "prompt", prompts), row.name, value.text),
                               fmt::format("many prompts and '{}' {}", row.name, value.name),
                               row.name == "prompt_logprobs" ? int64_t{21 * kPrompts} * kBytesPerScore : 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice::server::budget_test
