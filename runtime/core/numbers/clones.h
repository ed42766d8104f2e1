/* clones.h - hot loops get one clone per instruction set; without contraction every clone gives the same
 * bits. */
#ifndef SPECC_CLONES_H
#define SPECC_CLONES_H
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SPECC_SANITIZE)
  #define SPECC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
  #define SPECC_CLONES
#endif
#endif
