// Reads folders with the C library.
#include "base/folder.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <string_view>

namespace sluice {

std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& unreadable) {
  unreadable.clear();
  struct Close {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  std::vector<std::string> names;
  errno = 0;
  if (const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str())); open != nullptr) {
    while (const dirent* entry = ::readdir(open.get())) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
  }
  if (errno == ENOMEM) throw std::bad_alloc();
  if (errno != 0) {
    unreadable.assign(errno, std::generic_category());
    return {};
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace sluice
