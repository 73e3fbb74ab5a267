// SLUICE_WIDE marks loops over many elements that belong to no backend. The compiler builds a second version of such a
// function for processors with AVX2, and the program selects one at startup. Both versions compute the same bits,
// because no multiplication is contracted with an addition (-ffp-contract=off).
// It applies to GCC only. Clang before 18 gives such functions names that other files cannot link against. Clang builds
// are for fuzzing, where the plain loop is enough. With ThreadSanitizer, the program would crash: the selection runs
// before the sanitizer has started.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define SLUICE_WIDE [[gnu::target_clones("avx2", "default")]]
#else
#define SLUICE_WIDE
#endif
