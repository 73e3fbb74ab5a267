// Switches stacks and thread-local variables. All fibers share the one thread's static block of the executable, so its
// bytes are exchanged at every switch. C++ exceptions and Asio keep their state per thread there.
#include "simulation/machine/fiber.h"

#include <link.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

// Saves the callee-saved registers of the System V ABI and exchanges the stack pointers.
asm(R"(
.text
.globl sluice_switch_stack
.type sluice_switch_stack, @function
sluice_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  subq $8, %rsp
  stmxcsr (%rsp)
  fnstcw 4(%rsp)
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  ldmxcsr (%rsp)
  fldcw 4(%rsp)
  addq $8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sluice_switch_stack, .-sluice_switch_stack
)");
extern "C" void sluice_switch_stack(void** save, void* load);

namespace sluice::simulation {
namespace {

constexpr size_t kStackBytes = 512 << 10;

// The executable's thread-local variables.
struct Locals {
  std::byte* block = nullptr;  // of the running thread
  size_t size = 0;
  const std::byte* image = nullptr;  // initial bytes; the rest is zero
  size_t image_size = 0;
};

// Not a static object: threads exist before the constructors of static objects run.
const Locals& locals() {
  static Locals found;
  if (found.block != nullptr) return found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {  // the first object is the executable
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_TLS) continue;
          found.block = static_cast<std::byte*>(info->dlpi_tls_data);
          found.size = header.p_memsz;
          found.image = reinterpret_cast<const std::byte*>(info->dlpi_addr + header.p_vaddr);
          found.image_size = header.p_filesz;
        }
        return 1;
      },
      nullptr);
  CHECK(found.block != nullptr, "the program has no thread-local variables");
  return found;
}

}  // namespace

// Reserved memory with a guard page. Stacks of ended fibers are used again.
struct Fiber::Stack {
  Stack() {
    if (!spare().empty()) {
      memory = spare().back();
      spare().pop_back();
      return;
    }
    void* mapped =
        ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(mapped != MAP_FAILED, "no memory for a stack");
    memory = static_cast<std::byte*>(mapped);
    ::mprotect(memory, 4096, PROT_NONE);
  }
  ~Stack() { spare().push_back(memory); }
  static std::vector<std::byte*>& spare() {
    static std::vector<std::byte*> all;
    return all;
  }
  std::byte* memory;
};

Fiber::Fiber(int i) : id(i), name("main"), locals_(locals().size) {}

Fiber::Fiber(int i, std::string n, Body b, void* a)
    : id(i), name(std::move(n)), body(b), argument(a), stack_(std::make_unique<Stack>()), locals_(locals().size) {
  std::memcpy(locals_.data(), locals().image, locals().image_size);
  // What sluice_switch_stack takes off: control words, six registers, the address to return to; above it a return
  // address of zero, where backtraces end.
  constexpr size_t kWords = 9;
  auto* words = reinterpret_cast<uint64_t*>(stack_->memory + kStackBytes) - kWords;
  std::memset(words, 0, kWords * sizeof(uint64_t));
  constexpr uint64_t kControl = uint64_t{0x037f} << 32 | 0x1f80;
  words[0] = kControl;
  words[7] = reinterpret_cast<uint64_t>(&run_fiber);
  top_ = words;
}

Fiber::~Fiber() = default;

void Fiber::resume_from(Fiber& from) {
  std::memcpy(from.locals_.data(), locals().block, locals().size);
  std::memcpy(locals().block, locals_.data(), locals().size);
  from.errno_ = errno;
  errno = errno_;
  sluice_switch_stack(&from.top_, top_);
}

void Fiber::run_exits() {
  while (!exits.empty()) {
    const auto [function, object] = exits.back();
    exits.pop_back();
    function(object);
  }
}

}  // namespace sluice::simulation
