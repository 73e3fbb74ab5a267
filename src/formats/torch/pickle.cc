// Interprets pickles with the pickle stack machine, but without the opcodes that run code.
#include "formats/torch/pickle.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "sluice/error.h"

namespace sluice {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxBytes = 32u << 20;
constexpr size_t kMaxValues = 2'000'000;
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

// All opcodes with their names, for error messages (CPython's pickle.py).
struct Opcode {
  char code;
  std::string_view name;
};
constexpr auto kOpcodes = std::to_array<Opcode>({{'(', "MARK"},
                                                 {'.', "STOP"},
                                                 {'0', "POP"},
                                                 {'1', "POP_MARK"},
                                                 {'2', "DUP"},
                                                 {'F', "FLOAT"},
                                                 {'I', "INT"},
                                                 {'J', "BININT"},
                                                 {'K', "BININT1"},
                                                 {'L', "LONG"},
                                                 {'M', "BININT2"},
                                                 {'N', "NONE"},
                                                 {'P', "PERSID"},
                                                 {'Q', "BINPERSID"},
                                                 {'R', "REDUCE"},
                                                 {'S', "STRING"},
                                                 {'T', "BINSTRING"},
                                                 {'U', "SHORT_BINSTRING"},
                                                 {'V', "UNICODE"},
                                                 {'X', "BINUNICODE"},
                                                 {'a', "APPEND"},
                                                 {'b', "BUILD"},
                                                 {'c', "GLOBAL"},
                                                 {'d', "DICT"},
                                                 {'}', "EMPTY_DICT"},
                                                 {'e', "APPENDS"},
                                                 {'g', "GET"},
                                                 {'h', "BINGET"},
                                                 {'i', "INST"},
                                                 {'j', "LONG_BINGET"},
                                                 {'l', "LIST"},
                                                 {']', "EMPTY_LIST"},
                                                 {'o', "OBJ"},
                                                 {'p', "PUT"},
                                                 {'q', "BINPUT"},
                                                 {'r', "LONG_BINPUT"},
                                                 {'s', "SETITEM"},
                                                 {'t', "TUPLE"},
                                                 {')', "EMPTY_TUPLE"},
                                                 {'u', "SETITEMS"},
                                                 {'G', "BINFLOAT"},
                                                 {'\x80', "PROTO"},
                                                 {'\x81', "NEWOBJ"},
                                                 {'\x82', "EXT1"},
                                                 {'\x83', "EXT2"},
                                                 {'\x84', "EXT4"},
                                                 {'\x85', "TUPLE1"},
                                                 {'\x86', "TUPLE2"},
                                                 {'\x87', "TUPLE3"},
                                                 {'\x88', "NEWTRUE"},
                                                 {'\x89', "NEWFALSE"},
                                                 {'\x8a', "LONG1"},
                                                 {'\x8b', "LONG4"},
                                                 {'B', "BINBYTES"},
                                                 {'C', "SHORT_BINBYTES"},
                                                 {'\x8c', "SHORT_BINUNICODE"},
                                                 {'\x8d', "BINUNICODE8"},
                                                 {'\x8e', "BINBYTES8"},
                                                 {'\x8f', "EMPTY_SET"},
                                                 {'\x90', "ADDITEMS"},
                                                 {'\x91', "FROZENSET"},
                                                 {'\x92', "NEWOBJ_EX"},
                                                 {'\x93', "STACK_GLOBAL"},
                                                 {'\x94', "MEMOIZE"},
                                                 {'\x95', "FRAME"},
                                                 {'\x96', "BYTEARRAY8"},
                                                 {'\x97', "NEXT_BUFFER"},
                                                 {'\x98', "READONLY_BUFFER"}});

std::string opcode_name(char code) {
  const auto found = std::ranges::find(kOpcodes, code, &Opcode::code);
  return found == kOpcodes.end() ? fmt::format("0x{:02x}", static_cast<unsigned char>(code)) : std::string(found->name);
}

class Machine {
 public:
  Machine(std::span<const std::byte> bytes, std::span<const std::string_view> globals, const std::string& name,
          std::deque<PickleValue>& values)
      : text_(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
        globals_(globals),
        name_(name),
        values_(values) {}

  const PickleValue* run() {
    if (text_.size() > kMaxBytes) fail(fmt::format("{} bytes (at most {} are allowed)", text_.size(), kMaxBytes));
    if (text_.size() < 2 || text_[0] != '\x80') {
      fail("does not begin with PROTO (expected a pickle of protocol 2 to 5)");
    }
    do {
      begin_ = at_;
      opcode_ = take(1)[0];
    } while (step());
    PickleValue* root = pop();
    if (!stack_.empty() || !marks_.empty()) fail("unused values at the end");
    if (at_ != text_.size()) fail(fmt::format("{} unexpected bytes after the end", text_.size() - at_));
    return root;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    const std::string where = at_ == 0 ? "" : fmt::format("opcode {} at byte {}: ", opcode_name(opcode_), begin_);
    throw Error(ErrorCode::kCorruptFile, fmt::format("{}: pickle: {}{}", name_, where, what));
  }

  // Runs one opcode. Returns false after the last one.
  bool step() {
    switch (opcode_) {
      case '\x80':  // PROTO
        if (const uint8_t protocol = number<uint8_t>(); protocol < 2 || protocol > 5) {
          fail(fmt::format("protocol {} is not supported (expected 2 to 5)", protocol));
        }
        break;
      case '\x95':  // FRAME
        if (number<uint64_t>() > text_.size() - at_) fail("frame exceeds the end of the file");
        break;
      case '.':
        return false;
      case '(':
        if (marks_.size() == kMaxValues) fail("too many marks");
        marks_.push_back(stack_.size());
        break;
      case '0':
        pop();
        break;
      case '1':
        take_marked();
        break;
      default:
        if (!scalar() && !container() && !memo() && !reference()) fail("this opcode is not allowed");
    }
    return true;
  }

  bool scalar() {
    switch (opcode_) {
      case 'N':
        push(Kind::kNone);
        break;
      case '\x88':
      case '\x89':
        push(Kind::kBool)->integer = opcode_ == '\x88';
        break;
      case 'J':
        push_integer(number<int32_t>());
        break;
      case 'K':
        push_integer(number<uint8_t>());
        break;
      case 'M':
        push_integer(number<uint16_t>());
        break;
      case '\x8a':
        push_integer(long_integer(number<uint8_t>()));
        break;
      case 'G':
        push(Kind::kReal)->real = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
        break;
      case '\x8c':
        push_text(number<uint8_t>());
        break;
      case 'X':
        push_text(number<uint32_t>());
        break;
      case '\x8d':
        push_text(number<uint64_t>());
        break;
      default:
        return false;
    }
    return true;
  }

  bool container() {
    switch (opcode_) {
      case ')':
        push(Kind::kTuple);
        break;
      case ']':
        push(Kind::kList);
        break;
      case '}':
        push(Kind::kDict);
        break;
      case 't':
      case 'l': {
        auto items = take_marked();
        push(opcode_ == 't' ? Kind::kTuple : Kind::kList)->items = std::move(items);
        break;
      }
      case 'd': {
        auto items = take_marked();
        if (items.size() % 2 != 0) fail("key without a value");
        push(Kind::kDict)->items = std::move(items);
        break;
      }
      case '\x85':
      case '\x86':
      case '\x87': {
        std::vector<const PickleValue*> items(static_cast<unsigned char>(opcode_) - 0x84);
        for (size_t i = items.size(); i-- > 0;) items[i] = pop();
        push(Kind::kTuple)->items = std::move(items);
        break;
      }
      case 'a': {
        const PickleValue* item = pop();
        extend(Kind::kList, {item});
        break;
      }
      case 'e':
        extend(Kind::kList, take_marked());
        break;
      case 's': {
        const PickleValue* value = pop();
        const PickleValue* key = pop();
        extend(Kind::kDict, {key, value});
        break;
      }
      case 'u': {
        auto items = take_marked();
        if (items.size() % 2 != 0) fail("key without a value");
        extend(Kind::kDict, items);
        break;
      }
      default:
        return false;
    }
    return true;
  }

  bool memo() {
    switch (opcode_) {
      case 'q':
        remember(number<uint8_t>());
        break;
      case 'r':
        remember(number<uint32_t>());
        break;
      case '\x94':
        remember(memo_.size());
        break;
      case 'h':
        recall(number<uint8_t>());
        break;
      case 'j':
        recall(number<uint32_t>());
        break;
      default:
        return false;
    }
    return true;
  }

  bool reference() {
    switch (opcode_) {
      case 'c': {
        const std::string_view module = line();
        push_global(module, line());
        break;
      }
      case '\x93': {
        const PickleValue* name = pop();
        const PickleValue* module = pop();
        if (!name->is(Kind::kText) || !module->is(Kind::kText)) fail("module and name must be strings");
        push_global(module->text, name->text);
        break;
      }
      case 'R':
        call();
        break;
      case 'b': {
        // torch attaches attributes to a state dict (_metadata) that do not describe the weights.
        const PickleValue* state = pop();
        if (!top()->ordered || !state->is(Kind::kDict)) {
          fail(fmt::format("sets a state on {} (allowed only on an OrderedDict)", top()->kind_name()));
        }
        break;
      }
      case 'Q': {
        const PickleValue* id = pop();
        push(Kind::kPersistent)->items = {id};
        break;
      }
      default:
        return false;
    }
    return true;
  }

  void call() {
    const PickleValue* arguments = pop();
    const PickleValue* callee = pop();
    if (!callee->is(Kind::kGlobal)) fail(fmt::format("calls {}", callee->kind_name()));
    if (!arguments->is(Kind::kTuple)) fail(fmt::format("calls '{}' with {}", callee->text, arguments->kind_name()));
    if (callee->text == kOrderedDict) {
      if (!arguments->items.empty()) fail(fmt::format("calls '{}' with arguments", kOrderedDict));
      push(Kind::kDict)->ordered = true;
    } else {
      push(Kind::kCall)->items = {callee, arguments};
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    const auto same = [&](std::string_view known) {
      return known.size() == module.size() + 1 + name.size() && known.starts_with(module) &&
             known[module.size()] == '.' && known.ends_with(name);
    };
    if (same(kOrderedDict)) {
      push(Kind::kGlobal)->text = kOrderedDict;
      return;
    }
    const auto known = std::ranges::find_if(globals_, same);
    if (known == globals_.end()) {
      fail(fmt::format("refers to '{}.{}', which is not allowed", module.substr(0, 100), name.substr(0, 100)));
    }
    push(Kind::kGlobal)->text = *known;
  }

  int64_t long_integer(size_t size) {
    if (size > sizeof(int64_t)) fail(fmt::format("integer of {} bytes is too large", size));
    const std::string_view bytes = take(size);
    uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return static_cast<int64_t>(value);
  }

  std::string_view take(uint64_t count) {
    if (count > text_.size() - at_) fail("unexpected end of file");
    const std::string_view taken = text_.substr(at_, count);
    at_ += count;
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view line() {
    const size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) fail("unexpected end of file");
    const std::string_view found = take(end - at_);
    ++at_;
    return found;
  }

  PickleValue* push(Kind kind) {
    if (values_.size() == kMaxValues) fail(fmt::format("more than {} values", kMaxValues));
    PickleValue& value = values_.emplace_back();
    value.kind = kind;
    stack_.push_back(&value);
    return &value;
  }
  void push_integer(int64_t value) { push(Kind::kInt)->integer = value; }
  void push_text(uint64_t size) {
    const std::string_view text = take(size);
    push(Kind::kText)->text = text;
  }

  // Returns the position of the last mark in the stack, 0 when there is no mark.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleValue* top() const {
    if (stack_.size() == floor()) fail("the stack is empty");
    return stack_.back();
  }
  PickleValue* pop() {
    PickleValue* value = top();
    stack_.pop_back();
    return value;
  }
  std::vector<const PickleValue*> take_marked() {
    if (marks_.empty()) fail("there is no mark");
    const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  void extend(Kind kind, const std::vector<const PickleValue*>& items) {
    PickleValue* container = top();
    if (container->kind != kind) fail(fmt::format("adds to {}", container->kind_name()));
    extended_ += items.size();
    if (extended_ > 2 * kMaxValues) fail("containers are too large");
    container->items.insert(container->items.end(), items.begin(), items.end());
  }

  void remember(size_t index) {
    if (index >= kMaxValues) fail(fmt::format("memo {} is out of range", index));
    if (index >= memo_.size()) memo_.resize(index + 1);
    memo_[index] = top();
  }
  void recall(size_t index) {
    if (index >= memo_.size() || memo_[index] == nullptr) fail(fmt::format("memo {} was never set", index));
    if (stack_.size() == 2 * kMaxValues) fail("the stack is too large");
    stack_.push_back(memo_[index]);
  }

  const std::string_view text_;
  const std::span<const std::string_view> globals_;
  const std::string& name_;
  std::deque<PickleValue>& values_;
  std::vector<PickleValue*> stack_, memo_;
  std::vector<size_t> marks_;  // stack sizes
  size_t at_ = 0, begin_ = 0;  // next byte, and start of the current opcode
  size_t extended_ = 0;        // items added to containers
  char opcode_ = 0;
};

}  // namespace

std::string_view PickleValue::kind_name() const {
  constexpr std::array<std::string_view, 11> kNames = {"None",   "a boolean",     "an integer", "a float",
                                                       "a text", "a tuple",       "a list",     "a dictionary",
                                                       "a name", "a called name", "a storage"};
  return kNames[static_cast<size_t>(kind)];
}

Pickle::Pickle(std::span<const std::byte> bytes, std::span<const std::string_view> globals, const std::string& name) {
  root_ = Machine(bytes, globals, name, values_).run();
}

}  // namespace sluice
