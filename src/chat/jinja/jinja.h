// Jinja templates with the semantics of jinja2 as Hugging Face transformers configures it for chat templates:
// sandboxed, immutable, trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception,
// strftime_now and the generation tag. Templates can reach only the variables they are given: no files, no host
// objects.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"

namespace sluice::jinja {

// Limits of one rendering; exceeding one ends it with an Error. With the defaults a hostile template ends within 100
// ms.
struct Limits {
  // Steps: one per evaluated node and item; more for calls, new values and work on long strings. Templates that scan
  // all messages for each message take up to three million for 400 messages; others take a tenth of that.
  uint64_t fuel = 4'000'000;
  int depth = 1'000;                // nested evaluations: expressions, statements, macro calls, printed values
  size_t output_bytes = 4u << 20;   // size of the result
  size_t memory_bytes = 32u << 20;  // template values alive at the same time
};

struct RenderOptions {
  Limits limits;
  std::chrono::system_clock::time_point now = std::chrono::system_clock::now();  // for strftime_now, in local time
};

struct Program;

// A parsed template. Immutable: any number of threads may render it at the same time.
class Template {
 public:
  // Throws Error(kInvalidRequest) that names the line: for a syntax error, nesting deeper than 100 levels, a source of
  // more than 1 MiB, or a tag that needs other files (import, include, extends, block).
  explicit Template(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // `variables` is an object. Throws Error(kInvalidRequest): for raise_exception with the template's own message, for
  // invalid operations and exceeded limits with "chat template, line N: ...".
  std::string render(const Json& variables, const RenderOptions& options = {}) const;

 private:
  std::unique_ptr<const Program> program_;
};

}  // namespace sluice::jinja
