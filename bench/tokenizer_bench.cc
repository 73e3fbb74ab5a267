// tokenizer_bench TOKENIZER_JSON TEXT_FILE [--runs N] [--ids FILE]
// Measures the time to load, and the speed of encode, decode and streaming in MB of text per second of one thread's CPU
// time (median of N runs). Also measures encoding on all CPUs in wall-clock seconds. --ids writes the ids, one per
// line. bench/tokenizer_peer.py runs it beside Hugging Face tokenizers.
#include <fmt/core.h>
#include <time.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

#include "program.h"
#include "sluice/error.h"
#include "tokenizer/tokenizer.h"

namespace sluice::bench {
namespace {

double median_seconds(int runs, const std::function<void()>& work, clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  const auto now = [clock] {
    timespec time;
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    work();
    seconds.push_back(now() - start);
  }
  std::ranges::nth_element(seconds, seconds.begin() + runs / 2);
  return seconds[runs / 2];
}

struct Arguments {
  std::string tokenizer, text, ids;
  int runs = 5;
};

void run(const Arguments& a) {
  std::unique_ptr<Tokenizer> tokenizer;
  const double load = median_seconds(3, [&] { tokenizer = Tokenizer::from_file(a.tokenizer); });
  std::ifstream file(a.text, std::ios::binary);
  std::ostringstream stream;
  stream << file.rdbuf();
  const std::string text = std::move(stream).str();
  std::vector<TokenId> ids;
  const double encode = median_seconds(a.runs, [&] { ids = tokenizer->encode(text, true, {.most = 1}); });
  const auto passing = [&](int threads) {
    return median_seconds(
        a.runs, [&] { tokenizer->encode(text, true, {.most = threads}); }, CLOCK_MONOTONIC);
  };
  const double one = passing(1), all = passing(0);
  const double decode = median_seconds(a.runs, [&] { tokenizer->decode(ids, false); });
  const double streaming = median_seconds(a.runs, [&] {
    StreamDecoder decoder(*tokenizer, false);
    for (const TokenId id : ids) decoder.push(id);
    decoder.finish();
  });
  if (!a.ids.empty()) {
    std::ofstream out(a.ids);
    for (const TokenId id : ids) out << id << "\n";
  }
  const double megabytes = 1e-6 * static_cast<double>(text.size());
  fmt::print("{}, {} ids, loaded in {:.0f} ms\n", tokenizer->kind(), tokenizer->vocab_size(), 1e3 * load);
  fmt::print("{:.2f} MB, {} tokens: encode {:.1f} MB/s, decode {:.1f} MB/s, streamed {:.1f} MB/s ({:.0f} ns a token)\n",
             megabytes, ids.size(), megabytes / encode, megabytes / decode, megabytes / streaming,
             1e9 * streaming / static_cast<double>(std::max<size_t>(ids.size(), 1)));
  fmt::print("encode in wall-clock time: {:.1f} MB/s with one thread, {:.1f} with one thread per CPU\n",
             megabytes / one, megabytes / all);
}

}  // namespace
}  // namespace sluice::bench

int main(int argc, char** argv) {
  sluice::bench::Arguments arguments;
  CLI::App app("Speed of a tokenizer");
  app.add_option("tokenizer", arguments.tokenizer)->required();
  app.add_option("text", arguments.text)->required();
  app.add_option("--runs", arguments.runs)->check(CLI::PositiveNumber);
  app.add_option("--ids", arguments.ids);
  return sluice::bench::run_program(app, argc, argv, [&] { sluice::bench::run(arguments); });
}
