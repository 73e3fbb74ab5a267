// tokenizer_bench TOKENIZER_JSON TEXT_FILE: time to load, and speed of encode, decode and streaming in MB of text per
// second of one thread's CPU. Best of several runs.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace sluice::bench {
namespace {

double best_seconds(int runs, const std::function<void()>& work) {
  const auto now = [] {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

void run(const std::string& tokenizer_path, const std::string& text_path) {
  std::unique_ptr<Tokenizer> tokenizer;
  const double load = best_seconds(3, [&] { tokenizer = Tokenizer::from_file(tokenizer_path); });
  std::ifstream file(text_path, std::ios::binary);
  std::ostringstream stream;
  stream << file.rdbuf();
  const std::string text = std::move(stream).str();
  std::vector<TokenId> ids;
  const double encode = best_seconds(5, [&] { ids = tokenizer->encode(text); });
  const double decode = best_seconds(5, [&] { tokenizer->decode(ids, false); });
  const double streaming = best_seconds(5, [&] {
    StreamDecoder decoder(*tokenizer, false);
    for (const TokenId id : ids) decoder.push(id);
    decoder.finish();
  });
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  fmt::print("{}, {} ids, loaded in {:.0f} ms\n", tokenizer->kind(), tokenizer->vocab_size(), 1e3 * load);
  fmt::print("{:.2f} MB, {} tokens: encode {:.1f} MB/s, decode {:.1f} MB/s, streamed {:.1f} MB/s ({:.0f} ns a token)\n",
             megabytes, ids.size(), megabytes / encode, megabytes / decode, megabytes / streaming,
             1e9 * streaming / static_cast<double>(std::max<size_t>(ids.size(), 1)));
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER_JSON TEXT_FILE\n");
    return 2;
  }
  try {
    sluice::bench::run(argv[1], argv[2]);
  } catch (const sluice::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
