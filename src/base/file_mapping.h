// Guards the mapping of a file against the file getting shorter. Access beyond a file's end raises SIGBUS, which would
// end the process. The handler puts zeros in place of the lost pages and marks the mapping, so that whoever uses the
// file can report an error instead of results that zeros influenced.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

namespace sluice {

class FileMapping {
 public:
  FileMapping() = default;
  // Watches an existing mapping, which must be made of whole pages from `bytes.data()` on. Unmaps it when destroyed.
  // `protection` is that of mmap. The first one of a process installs the handler. SIGBUS elsewhere has its former
  // effect.
  FileMapping(std::span<std::byte> bytes, int protection, std::string path);
  ~FileMapping();
  FileMapping(FileMapping&& other) noexcept;
  FileMapping& operator=(FileMapping&& other) noexcept;

  std::byte* data() const { return bytes_.data(); }
  std::span<std::byte> bytes() const { return bytes_; }
  void set_protection(int protection);  // call it with mprotect
  bool shrank() const;                  // pages of the file were lost
  // Throws Error(kCorruptFile) that names the file if it shrank. What was computed from it before must not be used.
  void check() const;

 private:
  void reset() noexcept;

  std::span<std::byte> bytes_;
  std::string path_;
  int slot_ = -1;  // in the handler's table; -1: not watched
};

// True once any watched file of the process shrank or was reported. Its mapping may be gone by now. Costs one load.
bool any_file_damaged();
void report_file_damage();  // for damage found in another way

}  // namespace sluice
