// The last error of each thread; see c_status.h.
#include "binding/c_status.h"

namespace sluice::binding {
namespace {

struct LastError {
  std::string message, field;
};
thread_local LastError last_error;

sluice_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidRequest:
      return SLUICE_INVALID_ARGUMENT;
    case ErrorCode::kNotFound:
      return SLUICE_NOT_FOUND;
    case ErrorCode::kOverloaded:
      return SLUICE_OVERLOADED;
    case ErrorCode::kUnsupportedModel:
      return SLUICE_UNSUPPORTED_MODEL;
    case ErrorCode::kCorruptFile:
      return SLUICE_CORRUPT_FILE;
    case ErrorCode::kOutOfMemory:
      return SLUICE_OUT_OF_MEMORY;
    case ErrorCode::kInternal:
      return SLUICE_INTERNAL;
  }
  return SLUICE_INTERNAL;
}

}  // namespace

sluice_status fail(sluice_status status, const char* message, const char* field) noexcept {
  try {
    last_error.message = message;
    last_error.field = field;
  } catch (const std::exception&) {  // no memory for the message
    last_error.message.clear();
    last_error.field.clear();
  }
  return status;
}

sluice_status fail(const Error& error) noexcept {
  return fail(status_of(error.code), error.what(), error.param.c_str());
}

void expect_pointers(std::initializer_list<Pointer> pointers) {
  for (const auto& [value, name] : pointers) {
    if (value != nullptr) continue;
    throw Error(ErrorCode::kInvalidRequest, std::string(name) + " must not be NULL", name, "invalid_value");
  }
}

}  // namespace sluice::binding

const char* sluice_last_error(void) { return sluice::binding::last_error.message.c_str(); }
const char* sluice_last_error_field(void) { return sluice::binding::last_error.field.c_str(); }
