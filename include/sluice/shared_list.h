// An immutable list whose copies share one allocation.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace sluice {

// Holds request fields that may be large, because a request is copied for each of its prompts. Copies cost one
// reference count. Reading is thread-safe; assignment replaces the list of this copy only.
template <class T>
class SharedList {
 public:
  using value_type = T;
  using const_iterator = typename std::vector<T>::const_iterator;
  using iterator = const_iterator;

  SharedList() = default;
  SharedList(std::initializer_list<T> items) : SharedList(std::vector<T>(items)) {}
  SharedList(std::vector<T> items) {  // NOLINT(google-explicit-constructor): a vector is such a list
    if (!items.empty()) items_ = std::make_shared<const std::vector<T>>(std::move(items));
  }

  const std::vector<T>& items() const {
    static const std::vector<T> none;
    return items_ ? *items_ : none;
  }
  operator const std::vector<T>&() const { return items(); }  // NOLINT(google-explicit-constructor)

  bool empty() const { return items_ == nullptr; }
  size_t size() const { return items().size(); }
  const_iterator begin() const { return items().begin(); }
  const_iterator end() const { return items().end(); }
  const T& operator[](size_t i) const { return items()[i]; }

  // Equal for copies of one list; null when empty. Valid as long as a copy lives.
  const void* identity() const { return items_.get(); }
  friend bool operator==(const SharedList& a, const SharedList& b) {
    return a.items_ == b.items_ || a.items() == b.items();
  }

 private:
  std::shared_ptr<const std::vector<T>> items_;  // null when empty
};

}  // namespace sluice
