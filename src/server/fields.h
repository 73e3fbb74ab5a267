// The values of a request's fields, grouped in structs. An endpoint reads its own groups; groups that several endpoints
// share are declared once.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/json.h"

namespace sluice::server {

// One object of each type that was asked for. A group starts out default-constructed.
class Fields {
 public:
  template <class Group>
  Group& of() {
    for (auto& [tag, group] : groups_) {
      if (tag == &kTag<Group>) return *static_cast<Group*>(group.get());
    }
    groups_.emplace_back(&kTag<Group>, std::make_shared<Group>());
    return *static_cast<Group*>(groups_.back().second.get());
  }

 private:
  template <class Group>
  static constexpr char kTag = 0;  // its address stands for the type

  std::vector<std::pair<const void*, std::shared_ptr<void>>> groups_;
};

namespace fields_detail {
template <class Member>
struct MemberOf;
template <class Group, class Value>
struct MemberOf<Value Group::*> {
  using GroupType = Group;
  using ValueType = Value;
};
template <class Value>
struct Plain {
  using Type = Value;
};
template <class Value>
struct Plain<std::optional<Value>> {
  using Type = Value;
};
}  // namespace fields_detail

// Parameter::set for a field that is stored as it is: `.set = assign<&ChatFields::top_logprobs>`. A member of type
// const Json* refers to the value inside the request's body, which outlives the fields: large values are not copied.
template <auto Member>
void assign(Fields& fields, const Json& value) {
  using Traits = fields_detail::MemberOf<decltype(Member)>;
  using Value = typename fields_detail::Plain<typename Traits::ValueType>::Type;
  if constexpr (std::is_same_v<Value, const Json*>) {
    fields.of<typename Traits::GroupType>().*Member = &value;
  } else if constexpr (std::is_same_v<Value, Json>) {
    fields.of<typename Traits::GroupType>().*Member = value;
  } else {
    fields.of<typename Traits::GroupType>().*Member = value.get<Value>();
  }
}

}  // namespace sluice::server
