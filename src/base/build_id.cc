// Reads the build ID from the object that holds this function. It is the ELF note NT_GNU_BUILD_ID in a program segment
// (elf.h, dl_iterate_phdr(3)).
#include "base/build_id.h"

#include <elf.h>
#include <fmt/core.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <string_view>

namespace sluice {
namespace {

constexpr size_t kNoteAlignment = 4;

size_t aligned(size_t bytes) { return (bytes + kNoteAlignment - 1) / kNoteAlignment * kNoteAlignment; }

// The bytes of the ID; empty: the notes have none.
std::string_view find_build_id(std::string_view notes) {
  while (notes.size() > sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof note);
    const size_t name = sizeof note, id = name + aligned(note.n_namesz), end = id + aligned(note.n_descsz);
    if (end > notes.size()) break;
    if (note.n_type == NT_GNU_BUILD_ID && notes.substr(name, note.n_namesz) == std::string_view("GNU", 4)) {
      return notes.substr(id, note.n_descsz);
    }
    notes.remove_prefix(end);
  }
  return {};
}

struct Search {
  uintptr_t code = 0;  // an address inside the object to find
  std::string_view found{};
};

// Allocates nothing: an exception cannot pass through dl_iterate_phdr.
int visit_object(dl_phdr_info* object, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  std::string_view id;
  bool ours = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_LOAD) ours |= search.code >= begin && search.code - begin < segment.p_memsz;
    if (segment.p_type == PT_NOTE && id.empty()) {
      id = find_build_id({reinterpret_cast<const char*>(begin), segment.p_memsz});
    }
  }
  if (ours) search.found = id;
  return ours ? 1 : 0;
}

}  // namespace

std::string build_id() {
  Search search{.code = reinterpret_cast<uintptr_t>(&visit_object)};
  dl_iterate_phdr(visit_object, &search);
  std::string text;
  for (const char byte : search.found) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

}  // namespace sluice
