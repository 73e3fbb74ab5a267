// Fuzzes parse_json with arbitrary text: the result is an Error, or a value that stays equal when written and parsed
// again.
#include "base/check.h"
#include "base/json.h"
#include "sluice/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  Json value;
  try {
    value = parse_json({reinterpret_cast<const char*>(data), size});
  } catch (const Error& e) {
    CHECK(e.code == ErrorCode::kInvalidRequest && e.what()[0] != '\0');
    return 0;
  }
  const std::string text = dump_json(value);
  const Json again = parse_json(text);
  CHECK(again == value, "{}", text);
  CHECK(dump_json(again) == text, "{}", text);
  return 0;
}
