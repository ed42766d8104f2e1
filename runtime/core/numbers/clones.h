/* clones.h - hot loops get one clone per instruction set; without contraction every clone gives the same
 * bits.
 *
 * GCC dispatches on the levels x86-64-v3 and v4 from version 12 on. Older ones (Ubuntu 22.04 and JetPack 6
 * bring 11) get the features instead: "fma" rather than "avx2", so that the fused steps are instructions. */
#ifndef SPECC_CLONES_H
#define SPECC_CLONES_H
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SPECC_SANITIZE)
  #if __GNUC__ >= 12
    #define SPECC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
  #else
    #define SPECC_CLONES __attribute__((target_clones("avx512f", "fma", "default")))
  #endif
#else
  #define SPECC_CLONES
#endif
#endif
