// Fuzzes Jinja with untrusted templates: parses and renders them under small limits.
#include "base/check.h"
#include "chat/jinja/jinja.h"
#include "chat/jinja/text.h"
#include "sluice/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  static const Json variables = {
      {"messages", {{{"role", "user"}, {"content", "Grüße, 世界 😀"}}, {{"role", "assistant"}, {"content", nullptr}}}},
      {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", {{"n", 1.5}}}}}}}},
      {"s", "a,b <c> %s {}"},
      {"n", -3},
      {"l", {3, 1, 2}},
      {"t", true},
      {"big", UINT64_MAX}};
  jinja::RenderOptions options;
  options.now = {};
  options.limits = {.fuel = 20'000, .depth = 200, .output_bytes = 1 << 16, .memory_bytes = 1 << 20};
  try {
    const jinja::Template parsed(std::string_view(reinterpret_cast<const char*>(data), size));
    const std::string first = parsed.render(variables, options);
    CHECK(first.size() <= options.limits.output_bytes, "{} bytes", first.size());
    CHECK(jinja::text::is_valid(first), "not UTF-8");
    CHECK(first == parsed.render(variables, options), "two renderings differ");
  } catch (const Error& e) {
    CHECK(e.what()[0] != '\0' || !e.param.empty(), "an error without message");
    CHECK(jinja::text::is_valid(e.what()), "a message that is not UTF-8");
  }
  return 0;
}
