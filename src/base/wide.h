// Loops over many elements that belong to no backend: the compiler makes a function with SLUICE_WIDE once more for
// processors with AVX2, and the program takes the one that fits when it starts. What both compute is the same to the
// bit, since no multiplication is contracted with an addition (-ffp-contract=off).
// GCC only: clang before 18 names such functions so that no other file finds them (every caller in another file fails
// to link), and a build with clang is one for fuzzing, where the plain loop does.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
#define SLUICE_WIDE [[gnu::target_clones("avx2", "default")]]
#else
#define SLUICE_WIDE
#endif
