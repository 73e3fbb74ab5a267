// Tests downloads from a local fake hub: what is fetched, what resumes, and what is refused.
#include "hub/download.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "base/log.h"
#include "hub/fake_hub.h"
#include "sluice/error.h"
#include "support/temp_folder.h"

namespace sluice::download_test {
namespace {

namespace fs = std::filesystem;
using namespace testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}

std::string large(size_t size) {
  std::string out(size, '\0');
  uint32_t x = 1;
  for (char& c : out) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
  return out;
}

class DownloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::set_level(log::Level::kError);
    for (const char* name :
         {"HF_HUB_CACHE", "HF_HOME", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT",
          "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "SSL_CERT_FILE", "SSL_CERT_DIR"}) {
      const char* value = std::getenv(name);
      saved_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
    ::setenv("HF_HOME", folder_.path().c_str(), 1);
    repository_.files = {{"config.json", "{}"},
                         {"tokenizer.json", "{\"a\": 1}"},
                         {"README.md", "# x"},
                         {"model.safetensors", large(300'000)},
                         {"original/consolidated.00.pth", "x"},
                         {"tf_model.h5", "x"}};
  }
  void TearDown() override {
    log::set_level(log::Level::kInfo);
    for (const auto& [name, value] : saved_) value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
  }

  // Serves the repository. `first` is asked first and may answer instead.
  void serve(std::function<std::optional<Answer>(const Request&)> first = {}) {
    server_ = std::make_unique<FakeServer>([this, first](const Request& request) {
      if (first) {
        if (auto answer = first(request)) return *answer;
      }
      return repository_(request);
    });
    ::setenv("HF_ENDPOINT", server_->url().c_str(), 1);
  }
  // Returns the Range headers of the requests for the weights in order. Requests for other files may come before or
  // after.
  std::vector<std::string> ranges() {
    std::vector<std::string> all;
    for (const Request& r : server_->requests()) {
      if (r.method == "GET" && r.target.ends_with("model.safetensors")) all.push_back(r.header("range"));
    }
    return all;
  }
  fs::path download(const std::string& name = "org/name") { return download_model(*HubName::parse(name), options_); }
  // In a thread of its own: where libstdc++ is linked statically, AddressSanitizer of clang 14 keeps marks on a stack
  // that an exception has unwound, and reports its next use.
  std::string error_of(const std::string& name = "org/name") {
    std::string message = "no error";
    std::thread([&] {
      try {
        download(name);
      } catch (const Error& e) {
        code_ = e.code;
        message = e.what();
      }
    }).join();
    return message;
  }
  fs::path root() const { return folder_.path() / "hub" / "models--org--name"; }
  fs::path blob(const std::string& file) const {
    const std::string& content = repository_.files.at(file);
    return root() / "blobs" / (content.size() > 100 ? sha256(content) : git_sha1(content));
  }
  int count(const std::string& method, const std::string& part) const {
    int n = 0;
    for (const Request& r : server_->requests()) n += r.method == method && r.target.find(part) != std::string::npos;
    return n;
  }

  TempFolder folder_;
  FakeRepository repository_;
  DownloadOptions options_;
  std::unique_ptr<FakeServer> server_;
  ErrorCode code_{};

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

TEST_F(DownloadTest, IntoTheCacheThatOthersShare) {
  serve();
  DownloadProgress last;
  options_.progress = [&](const DownloadProgress& p) { last = p; };
  const fs::path snapshot = download();
  EXPECT_EQ(snapshot, root() / "snapshots" / kCommit);
  EXPECT_EQ(read(root() / "refs" / "main"), kCommit);
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_EQ(read(snapshot / file), repository_.files.at(file));
    EXPECT_TRUE(fs::is_symlink(snapshot / file));
    EXPECT_EQ(fs::read_symlink(snapshot / file), fs::path("../../blobs") / blob(file).filename());
  }
  EXPECT_FALSE(fs::exists(snapshot / "README.md")) << "only needed files are downloaded";
  EXPECT_FALSE(fs::exists(snapshot / "tf_model.h5"));
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_EQ(last.done_files, 3);
  ASSERT_EQ(last.each.size(), 3u);
  for (const FileProgress& file : last.each) {
    EXPECT_EQ(file.done, file.size) << file.name;
    EXPECT_EQ(file.checksum, blob(file.name).filename()) << file.name;
  }
  EXPECT_EQ(resolve_model_path("org/name"), snapshot);
  EXPECT_EQ(model_name(snapshot), "org/name");

  const int before = count("GET", "model.safetensors");
  download();
  EXPECT_EQ(count("GET", "model.safetensors"), before) << "existing files are not downloaded again";
}

// A bit flip changes neither the name nor the size of a file in the cache.
TEST_F(DownloadTest, VerifyReplacesDamagedFiles) {
  serve();
  const fs::path snapshot = download();
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::string damaged = repository_.files.at(file);
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    std::ofstream(blob(file), std::ios::binary) << damaged;
  }
  download();
  EXPECT_NE(read(snapshot / "model.safetensors"), repository_.files.at("model.safetensors")) << "not asked to verify";
  options_.verify = true;
  download();
  const int before = count("GET", "model.safetensors");
  for (const char* file : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EXPECT_EQ(read(snapshot / file), repository_.files.at(file));
  }
  download();
  EXPECT_EQ(count("GET", "model.safetensors"), before) << "intact files are not downloaded again";
}

TEST_F(DownloadTest, FetchesWhatIsNotLocal) {
  serve();
  EXPECT_EQ(fetch_model("org/name", options_), root() / "snapshots" / kCommit);
  const size_t requests = server_->requests().size();
  EXPECT_EQ(fetch_model("org/name", options_), root() / "snapshots" / kCommit);
  EXPECT_EQ(server_->requests().size(), requests) << "the cache answers without the hub";
  EXPECT_EQ(fetch_model(folder_.path().string(), options_), folder_.path());
  EXPECT_THROW(fetch_model("/no/such/folder", options_), Error);
  EXPECT_EQ(server_->requests().size(), requests);
}

TEST_F(DownloadTest, OfflineIsRefused) {
  serve();
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  EXPECT_THAT(error_of(), HasSubstr("HF_HUB_OFFLINE"));
  EXPECT_THROW(fetch_model("org/name", options_), Error);
  EXPECT_THAT(server_->requests(), IsEmpty());
}

TEST_F(DownloadTest, Revisions) {
  serve();
  download("org/name:refs/pr/1");
  EXPECT_EQ(read(root() / "refs" / "refs" / "pr" / "1"), kCommit);
}

TEST_F(DownloadTest, GoesOnAfterACut) {
  std::atomic<int> cuts{0};
  serve([&](const Request& request) -> std::optional<Answer> {
    if (request.method != "GET" || !request.target.ends_with("model.safetensors") || cuts >= 3) return std::nullopt;
    Answer answer = repository_(request);
    answer.cut_after = 70'000;
    ++cuts;
    return answer;
  });
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);
  EXPECT_THAT(ranges(), ElementsAre("", "bytes=70000-", "bytes=140000-", "bytes=210000-"));
}

TEST_F(DownloadTest, GoesOnWhereAnotherProcessStopped) {
  serve();
  const std::string& content = repository_.files["model.safetensors"];
  fs::create_directories(root() / "blobs");
  std::ofstream(blob("model.safetensors").string() + ".incomplete", std::ios::binary) << content.substr(0, 100'000);
  EXPECT_EQ(read(download() / "model.safetensors"), content);
  EXPECT_THAT(ranges(), ElementsAre("bytes=100000-"));
}

TEST_F(DownloadTest, ServersWithoutRangesStartAgain) {
  serve([&](const Request& request) -> std::optional<Answer> {
    Request whole = request;
    whole.headers.erase("range");
    return repository_(whole);
  });
  fs::create_directories(root() / "blobs");
  std::ofstream(blob("model.safetensors").string() + ".incomplete") << "wrong begin";
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);
}

TEST_F(DownloadTest, AWrongChecksumIsThrownAway) {
  std::string wrong = repository_.files["model.safetensors"];
  wrong[150'000] ^= 1;
  std::atomic<bool> broken{true};
  serve([&](const Request& request) -> std::optional<Answer> {
    if (request.method != "GET" || !request.target.ends_with("model.safetensors") || !broken) return std::nullopt;
    return FakeRepository::with_range(request, {.body = wrong});
  });
  EXPECT_THAT(error_of(), AllOf(HasSubstr("model.safetensors: expected checksum"), HasSubstr(sha256(wrong))));
  EXPECT_FALSE(fs::exists(blob("model.safetensors")));
  EXPECT_FALSE(fs::exists(root() / "refs" / "main")) << "an incomplete download leaves no ref";
  EXPECT_FALSE(fs::exists(root() / "snapshots" / kCommit / "config.json"));
  broken = false;
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);
}

TEST_F(DownloadTest, MoreThanWasPromisedIsCutOff) {
  serve([&](const Request& request) -> std::optional<Answer> {
    if (request.method != "GET" || !request.target.ends_with("model.safetensors")) return std::nullopt;
    return Answer{.body = repository_.files["model.safetensors"] + "more"};
  });
  EXPECT_THAT(error_of(), HasSubstr("more than the expected 300000 bytes"));
}

TEST_F(DownloadTest, StatusesSayWhatToDo) {
  int status = 0;
  serve([&](const Request&) -> std::optional<Answer> {
    return Answer{.status = status, .headers = {{"X-Error-Message", "because"}}};
  });
  for (const auto& [code, advice] :
       {std::pair(401, "HF_TOKEN"), {403, "request access"}, {404, "not found"}, {400, "400"}}) {
    status = code;
    EXPECT_THAT(error_of(), AllOf(HasSubstr("org/name"), HasSubstr(advice), HasSubstr("because")));
    EXPECT_EQ(code_ == ErrorCode::kNotFound, code != 400);
  }
  EXPECT_THAT(server_->requests().size(), 4u) << "these errors are not retried";
}

TEST_F(DownloadTest, RetryAfterIsWaitedFor) {
  std::atomic<int> refusals{0};
  serve([&](const Request& request) -> std::optional<Answer> {
    if (!request.target.ends_with("config.json") || refusals++ > 0) return std::nullopt;
    return Answer{.status = 429, .headers = {{"Retry-After", "1"}}};
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(read(download() / "config.json"), "{}");
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST_F(DownloadTest, TheTokenStaysWithTheHub) {
  ::setenv("HF_TOKEN", "hf_secret", 1);
  FakeServer elsewhere([&](const Request& request) {
    return FakeRepository::with_range(request, {.body = repository_.files["model.safetensors"]});
  });
  repository_.elsewhere = elsewhere.url();
  serve();
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);
  for (const Request& r : server_->requests()) EXPECT_EQ(r.header("authorization"), "Bearer hf_secret") << r.target;
  ASSERT_FALSE(elsewhere.requests().empty());
  for (const Request& r : elsewhere.requests()) EXPECT_EQ(r.header("authorization"), "") << r.target;
}

TEST_F(DownloadTest, TheTokenOfTheLoginIsUsed) {
  folder_.write("token", "hf_login\n");
  serve();
  download();
  EXPECT_EQ(server_->requests().front().header("authorization"), "Bearer hf_login");
}

TEST_F(DownloadTest, RenamedRepositoriesAndLoops) {
  serve([&](const Request& request) -> std::optional<Answer> {
    if (request.target.starts_with("/api/models/old/name/")) {
      return Answer{.status = 307, .headers = {{"Location", "/api/models/org/name/revision/main"}}};
    }
    if (request.target.starts_with("/old/name/")) {
      return Answer{.status = 307, .headers = {{"Location", "/org/name/" + request.target.substr(10)}}};
    }
    if (request.target.starts_with("/api/models/loop/"))
      return Answer{.status = 302, .headers = {{"Location", request.target}}};
    return std::nullopt;
  });
  EXPECT_EQ(read(download("old/name") / "config.json"), "{}");
  EXPECT_THAT(error_of("loop/name"), HasSubstr("redirects"));
}

TEST_F(DownloadTest, HostileNames) {
  serve();
  const fs::path outside = folder_.path() / "outside";
  for (const char* name :
       {"../../../../outside/config.json", "/etc/cron.d/x", "a/../../x", "a//b", "./config.json", "a\\\\b", "a\\nb",
        "a\\u0000b", "", "additional_chat_templates/../../../../outside/x.jinja"}) {
    repository_.files = {{name, "x"}, {"model.safetensors", "x"}};
    EXPECT_THAT(error_of(), HasSubstr("not a valid file name")) << name;
  }
  EXPECT_FALSE(fs::exists(outside));
}

TEST_F(DownloadTest, LinksAreNotFollowed) {
  repository_.files["additional_chat_templates/tool_use.jinja"] = "{{ x }}";
  const fs::path outside = folder_.path() / "outside";
  fs::create_directories(outside);
  folder_.write("precious", "mine");
  fs::create_directories(root() / "snapshots" / kCommit);
  fs::create_symlink(outside, root() / "snapshots" / kCommit / "additional_chat_templates");
  fs::create_symlink(folder_.path() / "precious", root() / "snapshots" / kCommit / "config.json");
  serve();
  EXPECT_THAT(error_of(), HasSubstr("is a symbolic link, expected a folder"));
  EXPECT_TRUE(fs::is_empty(outside));
  fs::remove(root() / "snapshots" / kCommit / "additional_chat_templates");
  EXPECT_EQ(read(download() / "config.json"), "{}");
  EXPECT_EQ(read(folder_.path() / "precious"), "mine") << "a link in the way is replaced, not written through";

  fs::remove_all(root());
  fs::create_directories(root() / "blobs");
  fs::create_symlink(folder_.path() / "precious", blob("model.safetensors").string() + ".incomplete");
  EXPECT_THAT(error_of(), HasSubstr(".incomplete"));
  EXPECT_EQ(read(folder_.path() / "precious"), "mine");
}

// Simulates a full disk with the limit on file size.
TEST_F(DownloadTest, AFullDisk) {
  serve();
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 100'000, .rlim_max = before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(message, AllOf(HasSubstr(".incomplete"), HasSubstr("large")));
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);
  EXPECT_EQ(server_->requests().back().header("range"), "bytes=100000-") << "the received bytes were kept";
}

TEST_F(DownloadTest, AnswersThatAreNone) {
  std::string body;
  serve([&](const Request& request) -> std::optional<Answer> {
    return request.target.starts_with("/api/") ? std::optional(Answer{.body = body}) : std::nullopt;
  });
  for (const char* bad :
       {"", "<html>", "[]", "{}", R"({"sha": "main", "siblings": []})", R"({"sha": "../../..", "siblings": []})",
        R"({"sha": "cccccccccccccccccccccccccccccccccccccccc"})",
        R"({"sha": "cccccccccccccccccccccccccccccccccccccccc", "siblings": [{"rfilename": 1}]})"}) {
    body = bad;
    EXPECT_THAT(error_of(), HasSubstr("the hub's answer")) << bad;
  }
  body = std::string(40u << 20, ' ');
  EXPECT_THAT(error_of(), HasSubstr("too long"));
}

TEST_F(DownloadTest, ChecksumsAreAskedFor) {
  serve([&](const Request& request) -> std::optional<Answer> {
    if (!request.target.ends_with("config.json")) return std::nullopt;
    return Answer{.headers = {{"ETag", "\"../../../../evil\""}}, .body = "{}"};
  });
  EXPECT_THAT(error_of(), HasSubstr("sent no valid checksum"));
}

TEST_F(DownloadTest, TheBytesToComeAreToldBefore) {
  serve();
  std::vector<uint64_t> told;
  options_.before = [&](uint64_t bytes) {
    told.push_back(bytes);
    if (told.size() > 2) throw Error(ErrorCode::kInvalidRequest, "too much");
  };
  download();
  download();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0], 300'000 + repository_.files["config.json"].size() + repository_.files["tokenizer.json"].size());
  EXPECT_EQ(told[1], 0u);
  fs::remove_all(root());
  EXPECT_EQ(error_of(), "too much");
  EXPECT_THAT(ranges(), ElementsAre("")) << "nothing of the weights was asked for again";
}

TEST_F(DownloadTest, SeveralAtATimeInAProcess) {
  serve();
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back(
        [&] { good += read(download() / "model.safetensors") == repository_.files.at("model.safetensors"); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 8);
  EXPECT_EQ(std::distance(fs::directory_iterator(root() / "snapshots" / kCommit), {}), 3) << "no temporary files";
}

// Whatever a download waits for, a check ends it soon: an answer, a retry, another process.
TEST_F(DownloadTest, ChecksEndWaits) {
  std::atomic<bool> released{false}, wanted{true};
  const auto wait = [&] {
    while (!released) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  enum class Hold { kAnswer, kRetry, kLock } hold = Hold::kAnswer;
  serve([&](const Request& request) -> std::optional<Answer> {
    if (request.method != "GET" || !request.target.ends_with("model.safetensors")) return std::nullopt;
    if (hold == Hold::kRetry) return Answer{.status = 503, .headers = {{"Retry-After", "30"}}};
    if (hold == Hold::kAnswer) wait();
    return std::nullopt;
  });
  options_.check = [&] {
    if (!wanted) throw Error(ErrorCode::kOverloaded, "given up");
  };
  const fs::path lock = folder_.path() / "hub" / ".locks" / "models--org--name" /
                        (blob("model.safetensors").filename().string() + ".lock");
  for (const Hold now : {Hold::kAnswer, Hold::kRetry, Hold::kLock}) {
    hold = now;
    wanted = true;
    const int held = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);  // of the first round, in the last one
    if (now == Hold::kLock) {
      ASSERT_EQ(::flock(held, LOCK_EX), 0);
    }
    const auto begin = std::chrono::steady_clock::now();
    std::thread leave([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      wanted = false;
    });
    EXPECT_EQ(error_of(), "given up");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
    leave.join();
    if (held >= 0) ::close(held);
  }
  released = true;
  server_.reset();  // its threads use what is above
}

TEST_F(DownloadTest, TlsIsVerified) {
  write_authority(folder_ / "ca.pem", folder_ / "ca.key", "127.0.0.1");
  write_authority(folder_ / "other.pem", folder_ / "other.key", "127.0.0.2");
  const auto handler = [this](const Request& request) { return repository_(request); };
  FakeServer server(handler, folder_ / "ca.pem", folder_ / "ca.key");
  FakeServer misnamed(handler, folder_ / "other.pem", folder_ / "other.key");
  ::setenv("HF_ENDPOINT", server.url().c_str(), 1);
  ::setenv("SSL_CERT_FILE", (folder_ / "other.pem").c_str(), 1);
  EXPECT_THAT(error_of(), HasSubstr("certificate is not valid"));
  EXPECT_THAT(server.requests(), IsEmpty());
  ::setenv("HF_ENDPOINT", misnamed.url().c_str(), 1);
  EXPECT_THAT(error_of(), HasSubstr("certificate is not valid")) << "trusted, but for another address";
  ::setenv("SSL_CERT_FILE", (folder_ / "ca.pem").c_str(), 1);
  ::setenv("HF_ENDPOINT", server.url().c_str(), 1);
  EXPECT_EQ(read(download() / "model.safetensors"), repository_.files["model.safetensors"]);

  FakeServer plain(handler);
  repository_.elsewhere = plain.url();
  fs::remove_all(root());
  EXPECT_THAT(error_of(), HasSubstr("from https to http"));
}

TEST(ChooseFiles, WhatAModelNeeds) {
  const auto choose = [](const std::vector<std::string>& all, const std::string& name = "org/name",
                         bool allow_bin = false) {
    return choose_files(all, *HubName::parse(name), {.allow_bin = allow_bin});
  };
  EXPECT_THAT(
      choose({"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
              "model.safetensors.index.json", "model.fp16.safetensors", "consolidated.safetensors", "pytorch_model.bin",
              "onnx/model.onnx", "vae/model.safetensors", "qwen.tiktoken", "x.py"}),
      UnorderedElementsAre("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json", "qwen.tiktoken"));
  const std::vector<std::string> bin = {"config.json", "pytorch_model-00001-of-00001.bin",
                                        "pytorch_model.bin.index.json", "training_args.bin"};
  EXPECT_THAT(choose(bin, "org/name", true), UnorderedElementsAre(bin[0], bin[1], bin[2]));
  EXPECT_THROW(choose(bin), Error);
  const std::vector<std::string> gguf = {"m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-BF16-00001-of-00002.gguf",
                                         "m-BF16-00002-of-00002.gguf", "m.IQ2_XS.gguf"};
  EXPECT_THAT(choose(gguf), ElementsAre("m-Q4_K_M.gguf"));
  EXPECT_THAT(choose(gguf, "org/name:q8_0"), ElementsAre("m-Q8_0.gguf"));
  EXPECT_THAT(choose(gguf, "org/name:IQ2_XS"), ElementsAre("m.IQ2_XS.gguf"));
  EXPECT_THAT(choose(gguf, "org/name:bf16"), ElementsAre(gguf[2], gguf[3]));
  EXPECT_THROW(choose(gguf, "org/name:Q5_K_S"), Error);
  EXPECT_THROW(choose({"README.md"}), Error);
}

}  // namespace
}  // namespace sluice::download_test
