// Example: embeds the engine in a program, loads a model and streams the answer to a prompt.
//   build/release/bin/example_stream models/minnow-6m "What is 2 + 2?"
#include <cstdio>
#include <future>

#include "sluice/engine.h"

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]), 2;
  try {
    const auto engine = sluice::Engine::load({.model = argv[1]});
    sluice::ChatRequest chat{.chat = sluice::ChatPrompt::user(argv[2])};
    chat.request.sampling.temperature = 0;
    chat.request.sampling.max_tokens = 64;
    std::promise<void> done;
    engine->submit_chat(chat, [&done](const sluice::Event& event) {
      std::fputs(sluice::event_text(event).c_str(), stdout);
      std::fflush(stdout);
      if (event.last) done.set_value();
    });
    done.get_future().wait();
    std::puts("");
  } catch (const sluice::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
