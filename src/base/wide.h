// Loops over many elements that belong to no backend: the compiler makes a function with SLUICE_WIDE once more for
// processors with AVX2, and the program takes the one that fits when it starts. What both compute is the same to the
// bit, since no multiplication is contracted with an addition (-ffp-contract=off).
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__)
#define SLUICE_WIDE [[gnu::target_clones("avx2", "default")]]
#else
#define SLUICE_WIDE
#endif
