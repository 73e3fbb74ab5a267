// The C API as a program sees it: through the header and the shared library alone.
#include "sluice/c.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using testing::HasSubstr;

constexpr const char* kModel = "models/minnow-6m";
constexpr const char* kStory = R"({"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12})";

struct Close {
  void operator()(sluice_engine* engine) const { sluice_engine_close(engine); }
  void operator()(sluice_generation* generation) const { sluice_generation_free(generation); }
  void operator()(char* text) const { sluice_free(text); }
};
template <class T>
using Owned = std::unique_ptr<T, Close>;

Owned<sluice_engine> open(const char* model, const std::vector<sluice_option>& options = {}) {
  sluice_engine* engine = nullptr;
  EXPECT_EQ(sluice_engine_open(model, options.data(), options.size(), &engine), SLUICE_OK) << sluice_last_error();
  return Owned<sluice_engine>(engine);
}

Owned<sluice_generation> start(sluice_engine* engine, const char* request, sluice_callback callback = nullptr,
                               void* user_data = nullptr) {
  sluice_generation* generation = nullptr;
  EXPECT_EQ(sluice_generation_start(engine, request, callback, user_data, &generation), SLUICE_OK)
      << sluice_last_error();
  return Owned<sluice_generation>(generation);
}

struct Answer {
  std::string text, finish;
  std::vector<int32_t> tokens;
  int events = 0;
};

void add(const sluice_event& event, Answer& answer) {
  answer.text += std::string(event.text, event.text_bytes);
  answer.tokens.insert(answer.tokens.end(), event.tokens, event.tokens + event.token_count);
  if (event.finish_reason != nullptr) answer.finish = event.finish_reason;
  ++answer.events;
}

Answer wait(sluice_generation* generation) {
  Answer answer;
  const sluice_event* event = nullptr;
  sluice_status status = SLUICE_OK;
  while ((status = sluice_generation_next(generation, 60'000, &event)) == SLUICE_OK) add(*event, answer);
  EXPECT_EQ(status, SLUICE_END);
  return answer;
}

// One engine for all tests of a kind: loading takes longer than most of them.
class CApi : public testing::Test {
 protected:
  static void SetUpTestSuite() { engine_ = open(kModel, {{"dtype", "float32"}}); }
  static void TearDownTestSuite() { engine_.reset(); }
  static sluice_engine* engine() { return engine_.get(); }

 private:
  static inline Owned<sluice_engine> engine_;
};

TEST(CApiVersion, MatchesTheHeader) {
  EXPECT_EQ(sluice_abi_version(), static_cast<uint32_t>(SLUICE_ABI_VERSION));
  EXPECT_STREQ(sluice_version(), "0.1.0");
}

TEST(CApiOpen, NamesWhatIsWrong) {
  sluice_engine* engine = nullptr;
  EXPECT_EQ(sluice_engine_open("no/such/folder/at/all", nullptr, 0, &engine), SLUICE_NOT_FOUND);
  EXPECT_THAT(sluice_last_error(), HasSubstr("no/such/folder"));

  const sluice_option unknown{"max-modl-len", "1"};
  EXPECT_EQ(sluice_engine_open(kModel, &unknown, 1, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("unknown option '--max-modl-len'"));
  EXPECT_STREQ(sluice_last_error_field(), "max-modl-len");

  const sluice_option wrong{"block_size", "12 tokens"};
  EXPECT_EQ(sluice_engine_open(kModel, &wrong, 1, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error_field(), "block_size");

  const sluice_option refused{"data-parallel-size-local", "2"};
  EXPECT_EQ(sluice_engine_open(kModel, &refused, 1, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("not supported"));

  const sluice_option ranks{"tensor-parallel-size", "2"};
  EXPECT_EQ(sluice_engine_open(kModel, &ranks, 1, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("only the sluice program can start further ranks"));

  EXPECT_EQ(sluice_engine_open(nullptr, nullptr, 0, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error_field(), "model");
  EXPECT_EQ(sluice_engine_open(kModel, nullptr, 1, &engine), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_engine_open(kModel, nullptr, 0, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(engine, nullptr);
}

TEST_F(CApi, DescribesTheModel) {
  char* json = nullptr;
  ASSERT_EQ(sluice_engine_info(engine(), &json), SLUICE_OK);
  const Owned<char> info(json);
  EXPECT_THAT(info.get(), HasSubstr(R"("name":"minnow-6m")"));
  EXPECT_THAT(info.get(), HasSubstr(R"("task":"generate")"));
}

TEST_F(CApi, StreamsTheSameAnswerToTextAndTokens) {
  const Answer answer = wait(start(engine(), kStory).get());
  EXPECT_EQ(answer.finish, "length");
  EXPECT_EQ(answer.tokens.size(), 12u);
  EXPECT_GT(answer.events, 1);

  int32_t* ids = nullptr;
  size_t count = 0;
  const std::string prompt = "Once upon a time";
  ASSERT_EQ(sluice_tokenize(engine(), prompt.data(), prompt.size(), 1, &ids, &count), SLUICE_OK);
  std::string request = R"({"temperature": 0, "max_tokens": 12, "prompt": [)";
  for (size_t i = 0; i < count; ++i) request += (i > 0 ? "," : "") + std::to_string(ids[i]);
  char* text = nullptr;
  size_t bytes = 0;
  ASSERT_EQ(sluice_detokenize(engine(), ids, count, 1, &text, &bytes), SLUICE_OK);
  EXPECT_EQ(std::string(text, bytes), prompt);
  sluice_free(text);
  sluice_free(ids);
  EXPECT_EQ(wait(start(engine(), (request + "]}").c_str()).get()).text, answer.text);
}

TEST_F(CApi, AnswersChats) {
  const char* request =
      R"({"messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0, "max_tokens": 8})";
  char* prompt = nullptr;
  ASSERT_EQ(sluice_render_chat(engine(), request, &prompt), SLUICE_OK) << sluice_last_error();
  const Owned<char> rendered(prompt);
  EXPECT_THAT(rendered.get(), HasSubstr("What is 2 + 2?"));
  EXPECT_FALSE(wait(start(engine(), request).get()).text.empty());
}

TEST_F(CApi, GivesLogprobs) {
  const auto generation =
      start(engine(), R"({"prompt": "Once", "temperature": 0, "max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1})");
  const sluice_event* event = nullptr;
  size_t tokens = 0, prompt_tokens = 0;
  while (sluice_generation_next(generation.get(), -1, &event) == SLUICE_OK) {
    prompt_tokens += event->prompt_logprobs.count;
    EXPECT_EQ(event->logprobs.count, event->token_count);
    const sluice_logprob* top = event->logprobs.top;
    for (size_t i = 0; i < event->logprobs.count; ++i, ++tokens) {
      EXPECT_EQ(event->logprobs.tokens[i].token, event->tokens[i]);
      EXPECT_EQ(event->logprobs.tokens[i].rank, 1);
      EXPECT_EQ(event->logprobs.top_counts[i], 2);
      EXPECT_GE(top[0].logprob, top[1].logprob);
      top += 2;
    }
  }
  EXPECT_EQ(tokens, 3u);
  EXPECT_GT(prompt_tokens, 0u);
}

TEST_F(CApi, RefusesWrongRequests) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"prompt": "a", "temperature": 9})", "temperature"},
      {R"({"prompt": "a", "top_k": "many"})", "top_k"},
      {R"({"prompt": "a", "echo": true})", "echo"},
      {R"({"prompt": ["a", "b"]})", "prompt"},
      {R"({"prompt": [-1]})", "prompt[0]"},
      {R"({"prompt_embeds": "AAAA"})", "prompt_embeds"},
      {R"({"prompt": "a", "structured_outputs": {"regex": 1}})", "structured_outputs.regex"},
      {R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {R"({"messages": []})", "messages"},
      {R"({})", "prompt"},
  };
  for (const auto& [request, field] : cases) {
    sluice_generation* generation = nullptr;
    EXPECT_EQ(sluice_generation_start(engine(), request, nullptr, nullptr, &generation), SLUICE_INVALID_ARGUMENT);
    EXPECT_STREQ(sluice_last_error_field(), field) << request << ": " << sluice_last_error();
  }
  sluice_generation* generation = nullptr;
  EXPECT_EQ(sluice_generation_start(engine(), "{", nullptr, nullptr, &generation), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_generation_start(engine(), R"({"prompt": "a", "tempreature": 1})", nullptr, nullptr, &generation),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("tempreature"));
  EXPECT_EQ(sluice_generation_start(engine(), R"({"prompt": "a", "model": "other"})", nullptr, nullptr, &generation),
            SLUICE_NOT_FOUND);
  EXPECT_EQ(generation, nullptr);
}

TEST_F(CApi, ReportsAGrammarThatIsWrong) {
  const auto generation = start(engine(), R"({"prompt": "a", "structured_outputs": {"regex": "("}})");
  const sluice_event* event = nullptr;
  ASSERT_EQ(sluice_generation_next(generation.get(), 60'000, &event), SLUICE_OK);
  EXPECT_STREQ(event->finish_reason, "error");
  EXPECT_THAT(event->error, HasSubstr("regex"));
  EXPECT_STREQ(event->error_field, "structured_outputs.regex");
}

struct Heard {
  Answer answer;
  std::atomic<bool> last{false};
};

TEST_F(CApi, CallsBack) {
  Heard heard;
  const auto generation = start(
      engine(), kStory,
      [](const sluice_event* event, void* user_data) {
        auto& h = *static_cast<Heard*>(user_data);
        add(*event, h.answer);
        if (event->last != 0) h.last = true;
      },
      &heard);
  while (!heard.last) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const sluice_event* event = nullptr;
  EXPECT_EQ(sluice_generation_next(generation.get(), 0, &event), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(heard.answer.tokens.size(), 12u);
  EXPECT_EQ(heard.answer.text, wait(start(engine(), kStory).get()).text);
}

constexpr const char* kLong = R"({"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true})";

TEST_F(CApi, CancelsAndFrees) {
  const auto generation = start(engine(), kLong);
  const sluice_event* event = nullptr;
  ASSERT_EQ(sluice_generation_next(generation.get(), -1, &event), SLUICE_OK);
  sluice_generation_cancel(generation.get());
  EXPECT_EQ(wait(generation.get()).finish, "abort");

  std::atomic<int> calls{0};
  auto other = start(
      engine(), kLong, [](const sluice_event*, void* n) { ++*static_cast<std::atomic<int>*>(n); }, &calls);
  while (calls == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  other.reset();
  const int then = calls;
  EXPECT_FALSE(wait(start(engine(), kStory).get()).text.empty());
  EXPECT_EQ(calls, then);
}

TEST_F(CApi, TimesOut) {
  const auto generation = start(engine(), kLong);
  const sluice_event* event = nullptr;
  sluice_status status = SLUICE_OK;
  while (status == SLUICE_OK) status = sluice_generation_next(generation.get(), 0, &event);
  EXPECT_EQ(status, SLUICE_TIMEOUT);
}

TEST_F(CApi, ServesManyThreads) {
  const std::string expected = wait(start(engine(), kStory).get()).text;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        const auto generation = start(engine(), t % 2 == 0 ? kStory : kLong);
        if (t % 2 == 0) {
          EXPECT_EQ(wait(generation.get()).text, expected);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CApi, RefusesUseAfterFork) {
  const pid_t child = ::fork();
  if (child == 0) {
    sluice_generation* generation = nullptr;
    const sluice_status status = sluice_generation_start(engine(), kStory, nullptr, nullptr, &generation);
    sluice_engine_close(engine());
    ::_exit(status == SLUICE_FORKED ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(wait(start(engine(), kStory).get()).text.empty());
}

TEST(CApiClose, EndsGenerations) {
  auto engine = open(kModel);
  const auto generation = start(engine.get(), kLong);
  engine.reset();
  EXPECT_EQ(wait(generation.get()).finish, "abort");
  sluice_generation_cancel(generation.get());
}

TEST(CApiEmbed, GivesVectors) {
  const auto engine = open(kModel, {{"task", "embed"}, {"matryoshka", "true"}});
  const char* texts[] = {"a cat", "a dog"};
  sluice_vectors vectors{};
  ASSERT_EQ(sluice_embed(engine.get(), texts, nullptr, 2, R"({"dimensions": 8})", &vectors), SLUICE_OK)
      << sluice_last_error();
  EXPECT_EQ(vectors.rows, 2u);
  EXPECT_EQ(vectors.width, 8u);
  EXPECT_GT(vectors.prompt_tokens, 0);
  double length = 0;
  for (size_t i = 0; i < vectors.width; ++i) length += vectors.data[8 + i] * vectors.data[8 + i];
  EXPECT_NEAR(length, 1.0, 1e-4);
  sluice_free(vectors.data);
  EXPECT_EQ(sluice_embed(engine.get(), texts, nullptr, 2, R"({"dimension": 8})", &vectors), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_embed(engine.get(), texts, nullptr, 0, nullptr, &vectors), SLUICE_INVALID_ARGUMENT);
  sluice_generation* generation = nullptr;
  EXPECT_EQ(sluice_generation_start(engine.get(), kStory, nullptr, nullptr, &generation), SLUICE_INVALID_ARGUMENT);
}

TEST_F(CApi, RefusesVectorsOfAModelThatGenerates) {
  const char* text = "a";
  sluice_vectors vectors{};
  EXPECT_EQ(sluice_embed(engine(), &text, nullptr, 1, nullptr, &vectors), SLUICE_INVALID_ARGUMENT);
  EXPECT_THAT(sluice_last_error(), HasSubstr("generate"));
}

TEST_F(CApi, RefusesNull) {
  char* text = nullptr;
  EXPECT_EQ(sluice_engine_info(nullptr, &text), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error_field(), "engine");
  EXPECT_EQ(sluice_engine_info(engine(), nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_generation_start(engine(), nullptr, nullptr, nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_generation_next(nullptr, 0, nullptr), SLUICE_INVALID_ARGUMENT);
  sluice_engine_close(nullptr);
  sluice_generation_cancel(nullptr);
  sluice_generation_free(nullptr);
  sluice_free(nullptr);
}

}  // namespace
