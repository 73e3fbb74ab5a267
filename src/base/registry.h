// Registers static objects of open sets: model families, kernels, commands. A duplicate name aborts the program at
// startup. Listings are sorted by name. T needs a member `name` that compares with std::string_view.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace sluice {

template <class T>
class Registry {
 public:
  explicit Registry(const T& item) {
    CHECK(find(item.name) == nullptr, "'{}' is registered twice", std::string_view(item.name));
    auto& all = items();
    all.insert(std::upper_bound(all.begin(), all.end(), &item, [](auto* a, auto* b) { return a->name < b->name; }),
               &item);
  }

  static const std::vector<const T*>& all() { return items(); }
  static const T* find(std::string_view name) {
    for (const T* item : items()) {
      if (item->name == name) return item;
    }
    return nullptr;
  }

 private:
  static std::vector<const T*>& items() {
    static std::vector<const T*> items;
    return items;
  }
};

}  // namespace sluice
