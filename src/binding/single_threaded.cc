// Lets libyaml-cpp.a into a shared library. Debian compiles the archive for programs, so that it reads this variable of
// the C library directly, which a shared library cannot. It gets one of its own: always "there are several threads".

extern "C" {
extern char __libc_single_threaded;  // NOLINT(bugprone-reserved-identifier): the C library's name
[[gnu::visibility("hidden")]] char __libc_single_threaded = 0;
}
