// What endpoints keep from one request to the next. It lives as long as the server's API.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace sluice::server {

// One object of each type that was asked for, default-constructed by the first request for it. Thread-safe; so must be
// the objects.
class SharedState {
 public:
  template <class T>
  std::shared_ptr<T> of() {
    const std::lock_guard lock(mutex_);
    for (auto& [tag, object] : objects_) {
      if (tag == &kTag<T>) return std::static_pointer_cast<T>(object);
    }
    objects_.emplace_back(&kTag<T>, std::make_shared<T>());
    return std::static_pointer_cast<T>(objects_.back().second);
  }

  // Makes this the object of its type. Called before anybody asks for one.
  template <class T>
  void provide(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    objects_.emplace_back(&kTag<T>, std::move(object));
  }

 private:
  template <class T>
  static constexpr char kTag = 0;  // its address stands for the type

  std::mutex mutex_;
  std::vector<std::pair<const void*, std::shared_ptr<void>>> objects_;
};

}  // namespace sluice::server
