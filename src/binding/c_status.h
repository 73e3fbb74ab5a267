// Errors of the C API: the last one of each thread, and exceptions as statuses.
#pragma once

#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>

#include "sluice/c.h"
#include "sluice/error.h"

namespace sluice::binding {

// Remembers the error for sluice_last_error() and returns the status.
sluice_status fail(sluice_status status, const char* message, const char* field = "") noexcept;
sluice_status fail(const Error& error) noexcept;

// Runs work that returns a status; what it throws becomes one.
template <class Work>
sluice_status guard(const Work& work) noexcept {
  try {
    return work();
  } catch (const Error& e) {
    return fail(e);
  } catch (const std::bad_alloc&) {
    return fail(SLUICE_OUT_OF_MEMORY, "Out of memory.");
  } catch (const std::exception& e) {
    return fail(SLUICE_INTERNAL, e.what());
  }
}

// Throws Error(kInvalidRequest) that names the first of the arguments that is null.
struct Pointer {
  const void* value;
  const char* name;
};
void expect_pointers(std::initializer_list<Pointer> pointers);

// Memory for the caller, to be freed by sluice_free(). Throws std::bad_alloc.
template <class T>
T* allocate(size_t count) {
  void* memory = std::malloc(count > 0 ? count * sizeof(T) : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<T*>(memory);
}
inline char* copy_text(std::string_view text) {
  char* out = allocate<char>(text.size() + 1);
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return out;
}

}  // namespace sluice::binding
