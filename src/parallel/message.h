// Messages between ranks, value after value. Lists and texts come after their lengths. Ranks run the same program, so
// numbers have this machine's form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "sluice/error.h"

namespace sluice {

template <class T>
concept MessageList = requires(T list) {
  list.resize(size_t{1});
};

// write(value) appends a value, a text, or a list of values.
struct MessageWriter {
  std::vector<std::byte> message{};

  template <class T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&value, sizeof value);
  }
  template <MessageList T>
  void operator()(const T& list) {
    static_assert(std::is_trivially_copyable_v<typename T::value_type>);
    (*this)(static_cast<uint64_t>(list.size()));
    bytes(list.data(), list.size() * sizeof(typename T::value_type));
  }

 private:
  void bytes(const void* data, size_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    message.insert(message.end(), from, from + count);
  }
};

// read(value) takes what was written in the same order. Throws Error(kInternal) if the message is too short.
struct MessageReader {
  std::span<const std::byte> message;

  template <class T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    std::memcpy(&value, take(1, sizeof value), sizeof value);
  }
  template <MessageList T>
  void operator()(T& list) {
    constexpr size_t kEach = sizeof(typename T::value_type);
    uint64_t count = 0;
    (*this)(count);
    const std::byte* from = take(count, kEach);
    list.resize(count);
    if (count > 0) std::memcpy(list.data(), from, count * kEach);
  }
  // Throws Error(kInternal) if something is left.
  void end() const {
    if (!message.empty()) throw Error(ErrorCode::kInternal, "a message from another rank is too long");
  }

 private:
  const std::byte* take(uint64_t count, size_t each) {
    if (message.size() / each < count) throw Error(ErrorCode::kInternal, "a message from another rank is incomplete");
    const std::byte* at = message.data();
    message = message.subspan(count * each);
    return at;
  }
};

}  // namespace sluice
