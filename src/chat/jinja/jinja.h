// Jinja templates with the semantics of jinja2 as Hugging Face transformers sets it up for chat templates: sandboxed,
// immutable, trim_blocks, lstrip_blocks, loop controls, tojson without HTML escapes, raise_exception, strftime_now and
// the generation tag. Templates cannot reach anything but the variables given: no files, no host objects.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"

namespace sluice::jinja {

// Bounds of one rendering; passing one ends it with an Error. With the defaults a hostile template ends within 100 ms.
struct Limits {
  // Steps: one for each evaluated node and item, more for calls, new values and work on long strings. Templates that
  // scan all messages for each message take up to three million for 400 messages, others a tenth of that.
  uint64_t fuel = 4'000'000;
  int depth = 1'000;                // nested evaluations: expressions, statements, macro calls, values printed
  size_t output_bytes = 4u << 20;   // of the result
  size_t memory_bytes = 32u << 20;  // of the values alive at a time that the template made
};

struct RenderOptions {
  Limits limits;
  std::chrono::system_clock::time_point now = std::chrono::system_clock::now();  // of strftime_now, in local time
};

struct Program;

// A parsed template. Immutable: any number of threads may render it at a time.
class Template {
 public:
  // Throws Error(kInvalidRequest) that names the line: a syntax error, nesting deeper than 100 levels, a source of more
  // than 1 MiB, or a part of the language that needs other files (import, include, extends, block).
  explicit Template(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // `variables` is an object. Throws Error(kInvalidRequest): raise_exception with the template's own message, otherwise
  // "chat template, line N: ..." for operations that Python refuses and for the limits.
  std::string render(const Json& variables, const RenderOptions& options = {}) const;

 private:
  std::unique_ptr<const Program> program_;
};

}  // namespace sluice::jinja
