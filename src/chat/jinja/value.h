// The values that a template computes with: Python's types. Reference-counted without atomics, confined to one
// rendering and charged to its Heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::jinja {

class Heap;

// Kinds up to kFloat are stored in the Value itself, the others as objects.
enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBig,
  kFloat,
  kUndefined,
  kString,
  kList,
  kTuple,
  kDict,
  kView,
  kRange,
  kIterator,
  kNamespace,
  kLoop,
  kCycler,
  kJoiner,
  kFunction,
  kMacro,
};

struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() = default;

  Heap* heap = nullptr;
  Object* next_dead = nullptr;  // link in Heap's list of objects to delete
  size_t bytes = 0;             // charged to the heap
  uint32_t refs = 0;
};

void release(Object* object);  // drops one reference

template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) ++object_->refs;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_) release(object_);
  }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

struct Str;
struct Seq;
struct DictObject;
class Dict;

class Value {
 public:
  Value() = default;  // None
  Value(const Value& other) : kind_(other.kind_), as_(other.as_) {
    if (is_object()) ++as_.object->refs;
  }
  Value(Value&& other) noexcept : kind_(std::exchange(other.kind_, Kind::kNone)), as_(other.as_) {}
  Value& operator=(Value other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(as_, other.as_);
    return *this;
  }
  ~Value() {
    if (is_object()) release(as_.object);
  }

  template <class T>
  Value(Kind kind, const Ref<T>& object) : kind_(kind) {
    as_.object = object.get();
    ++as_.object->refs;
  }
  static Value boolean(bool v) { return Value(Kind::kBool, Plain{.integer = v}); }
  static Value integer(int64_t v) { return Value(Kind::kInt, Plain{.integer = v}); }
  static Value big(uint64_t v) { return Value(Kind::kBig, Plain{.integer = static_cast<int64_t>(v)}); }
  static Value real(double v) { return Value(Kind::kFloat, Plain{.real = v}); }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_object() const { return kind_ >= Kind::kUndefined; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool || kind_ == Kind::kBig; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_safe() const;  // a string marked as HTML (Markup)

  bool as_bool() const { return as_.integer != 0; }
  // Value of kBool, kInt and kBig.
  __int128 wide() const {
    return kind_ == Kind::kBig ? static_cast<__int128>(static_cast<uint64_t>(as_.integer)) : as_.integer;
  }
  // Exact for all numbers.
  long double exact() const { return kind_ == Kind::kFloat ? as_.real : static_cast<long double>(wide()); }
  double as_float() const { return kind_ == Kind::kFloat ? as_.real : static_cast<double>(wide()); }

  // The object that the value refers to; the caller knows its kind.
  template <class T>
  T& as() const {
    return *static_cast<T*>(as_.object);
  }
  const Object* address() const { return is_object() ? as_.object : nullptr; }
  std::string_view text() const;            // kString only
  const std::vector<Value>& items() const;  // kList and kTuple only
  const Dict& dict() const;                 // kDict only

 private:
  union Plain {
    int64_t integer;
    double real;
    Object* object;
  };
  Value(Kind kind, Plain plain) : kind_(kind), as_(plain) {}

  Kind kind_ = Kind::kNone;
  Plain as_{.integer = 0};
};

// Insertion-ordered map with constant-time lookup by any hashable value. Small maps are scanned instead.
class Dict {
 public:
  using Item = std::pair<Value, Value>;

  const std::vector<Item>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  // Keys must be hashable. To look up a key that a template made, call hashable() of ops.h first, which spends the
  // fuel.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
  void clear();
  void reserve(size_t n) { items_.reserve(n); }

 private:
  static constexpr size_t kScan = 8;  // maps of up to this many items have no index

  template <class Key>
  const Value* lookup(const Key& key) const;
  void reindex();

  std::vector<Item> items_;
  std::vector<uint32_t> index_;  // open addressing; holds item position + 1; size is a power of two
};

// Equality and hash of dictionary keys: 1, 1.0 and True are one key.
bool same_key(const Value& a, const Value& b);
uint64_t hash_value(const Value& value);
uint64_t hash_text(std::string_view text);

// An object that changes after construction and so can be part of a reference cycle; Heap clears these at the end.
struct Mutable : Object {
  ~Mutable() override;
  virtual void clear() = 0;
  Mutable* previous = nullptr;
  Mutable* next = nullptr;
};

struct UndefinedInfo : Object {
  explicit UndefinedInfo(std::string message) : message(std::move(message)) {}
  std::string message;  // error message if it is used
};

struct Str : Object {
  Str(std::string text, bool safe) : text(std::move(text)), safe(safe) {}
  const std::string text;
  const bool safe;
  mutable int64_t length = -1;          // in code points; -1: not counted yet
  mutable std::vector<uint32_t> marks;  // byte offset of every kMarkStep-th code point; filled on demand
};

struct Seq : Object {
  Seq(std::vector<Value> items, bool group) : items(std::move(items)), group(group) {}
  const std::vector<Value> items;
  const bool group;  // a pair made by groupby; has the attributes grouper and list
};

struct DictObject : Object {
  explicit DictObject(Dict dict) : dict(std::move(dict)) {}
  const Dict dict;
};

// dict.keys(), .values(), .items()
struct View : Object {
  enum Part { kKeys, kValues, kItems };
  View(Value of, Part part) : of(std::move(of)), part(part) {}
  const Value of;
  const Part part;
};

struct Range : Object {
  Range(int64_t start, int64_t stop, int64_t step);
  int64_t at(int64_t i) const { return start + i * step; }
  const int64_t start, stop, step;
  int64_t length;
};

// A generator: yields each value once. `advance` returns false at the end.
struct Iterator : Mutable {
  explicit Iterator(std::function<bool(Value&)> advance) : advance(std::move(advance)) {}
  void clear() override { advance = nullptr; }
  std::function<bool(Value&)> advance;
  bool running = false;
};

struct Namespace : Mutable {
  explicit Namespace(Dict attributes) : attributes(std::move(attributes)) {}
  void clear() override { attributes.clear(); }
  Dict attributes;
};

struct Cycler : Object {
  explicit Cycler(std::vector<Value> items) : items(std::move(items)) {}
  const std::vector<Value> items;
  size_t position = 0;
};

struct Joiner : Object {
  explicit Joiner(Value separator) : separator(std::move(separator)) {}
  const Value separator;
  bool used = false;
};

struct Builtin;

// A global function, or a method with the value it belongs to.
struct Function : Object {
  Function(const Builtin& builtin, Value self) : builtin(builtin), self(std::move(self)) {}
  const Builtin& builtin;
  const Value self;
};

// Owns the memory accounting of one rendering.
class Heap {
 public:
  Heap() = default;
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  ~Heap() { collect(); }

  // Throws Error if the limit would be exceeded.
  void charge(size_t bytes);
  void give_back(size_t bytes) { used_ -= bytes; }
  // Throws like charge, but charges nothing. Call it before building a large temporary.
  void expect(size_t bytes) const;
  size_t available() const { return limit_ - used_; }
  // Allows `bytes` more than are in use now.
  void limit_growth(size_t bytes) { limit_ = used_ + bytes; }

  // `extra`: bytes that the object owns outside itself.
  template <class T, class... A>
  Ref<T> make(size_t extra, A&&... arguments) {
    const size_t bytes = sizeof(T) + extra + kAllocationOverhead;
    charge(bytes);
    T* object = new T(std::forward<A>(arguments)...);
    object->heap = this;
    object->bytes = bytes;
    if constexpr (std::is_base_of_v<Mutable, T>) link(*object);
    return Ref<T>(object);
  }

  void destroy(Object* object);  // called only by release()
  void unlink(Mutable& object);
  void collect();  // clears every mutable object that is alive

 private:
  static constexpr size_t kAllocationOverhead = 16;
  void link(Mutable& object);

  size_t limit_ = SIZE_MAX;
  size_t used_ = 0;
  Object* dead_ = nullptr;
  bool draining_ = false;
  Mutable* mutables_ = nullptr;
};

inline void release(Object* object) {
  if (--object->refs == 0) object->heap->destroy(object);
}
inline std::string_view Value::text() const { return as<Str>().text; }
inline bool Value::is_safe() const { return is(Kind::kString) && as<Str>().safe; }
inline const std::vector<Value>& Value::items() const { return as<Seq>().items; }
inline const Dict& Value::dict() const { return as<DictObject>().dict; }

}  // namespace sluice::jinja
