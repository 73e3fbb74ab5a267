// A file inside the program; cmake/SluiceEmbed.cmake makes tables of them.
#pragma once

#include <cstddef>
#include <string_view>

namespace sluice {

struct EmbeddedFile {
  std::string_view name;
  const char* begin;
  const char* end;
  std::string_view content() const { return {begin, static_cast<size_t>(end - begin)}; }
};

}  // namespace sluice
