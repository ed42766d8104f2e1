/* arithmetic.h - exp, log, Philox and the floating-point mode: the same bits on every platform.
 *
 * exp: x = n ln2 + r, |r| <= ln2/2, Taylor series to r^13 by Horner, scaled by 2^n. log: x = 2^e m, m in
 * [sqrt(1/2), sqrt 2), s = (m-1)/(m+1), 2 atanh s to s^25. Both are within 2 units in the last place; what
 * matters is that they are sequences of IEEE double operations without contraction, so that no library's
 * rounding decides a token. Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as
 * 1, 2, 3" (2011). */
#ifndef SPECC_ARITHMETIC_H
#define SPECC_ARITHMETIC_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* What the CUDA kernels compile too: nvcc, with --fmad=false, runs the same operations in the same order. */
#ifdef __CUDACC__
  #define SPECC_BOTH static __host__ __device__ inline
#else
  #define SPECC_BOTH static inline
#endif

SPECC_BOTH uint64_t bits_of(double x) {
  uint64_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
SPECC_BOTH double of_bits(uint64_t b) {
  double x;
  memcpy(&x, &b, sizeof x);
  return x;
}

/* exp for x <= 0: below -708 it is 0 (no denormals); -infinity gives 0. */
SPECC_BOTH double exp_negative(double x) {
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: rounds to an integer in the low bits */
  double y = x > -708.0 ? x : -708.0;
  double t = y * 1.4426950408889634 + shift, n = t - shift;
  double r = (y - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  double scaled = of_bits(bits_of(p) + (bits_of(t) << 52));
  return x > -708.0 ? scaled : 0.0;
}

/* log for normal positive x. */
SPECC_BOTH double log_positive(double x) {
  uint64_t b = bits_of(x);
  uint64_t upper = (b - 0x3fe6a09e667f3bcdull) >> 52; /* exponent, with sqrt(1/2) as the lower end of m */
  double m = of_bits(b - (upper << 52));
  double e = of_bits(((upper + 2048) & 4095) | 0x4330000000000000ull) - (4503599627370496.0 + 2048.0);
  double s = (m - 1.0) / (m + 1.0), z = s * s, p = 1.0 / 25.0;
  p = p * z + 1.0 / 23.0;
  p = p * z + 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  p = p * z;
  return e * 0.6931471803691238 + (2.0 * (s + s * p) + e * 1.9082149292705877e-10);
}

SPECC_BOTH void philox(uint32_t k0, uint32_t k1, uint32_t c[4]) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)a;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/* Rounding to nearest, denormals kept, no traps, whatever the host has set; leave_arithmetic restores the
 * host's mode and flags. Threads that are started in between inherit the mode. */
#if defined(__CUDACC__) /* the device has no such modes, and the host side of a kernel sets none */
#elif defined(__x86_64__)
  #include <immintrin.h>
static inline uint64_t enter_arithmetic(void) {
  unsigned old = _mm_getcsr();
  _mm_setcsr((old & ~0xe040u) | 0x1f80u); /* RC, FTZ, DAZ off; every exception masked */
  return old;
}
static inline void leave_arithmetic(uint64_t old) {
  _mm_setcsr((unsigned)old);
}
#elif defined(__aarch64__)
static inline uint64_t enter_arithmetic(void) {
  uint64_t old;
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  /* DN, FZ, RMode, FZ16; the traps; NEP, AH, FIZ */
  __asm__ volatile("msr fpcr, %0" ::"r"(old & ~(uint64_t)0x3c89f07));
  return old;
}
static inline void leave_arithmetic(uint64_t old) {
  __asm__ volatile("msr fpcr, %0" ::"r"(old));
}
#else
  #include <fenv.h>
static inline uint64_t enter_arithmetic(void) {
  int old = fegetround();
  fesetround(FE_TONEAREST);
  return (uint64_t)old;
}
static inline void leave_arithmetic(uint64_t old) {
  fesetround((int)old);
}
#endif
#endif
