/* float_math.h - exp in single precision as stated steps, for loops that a compiler may vectorise. */
#ifndef SPECC_FLOAT_MATH_H
#define SPECC_FLOAT_MATH_H
#include <stdint.h>
#include <string.h>

/* x <= 0: x = n ln2 + r, Taylor to r^7, scaled by 2^n; 0 below -87; NaN stays NaN. Within 2 units in the last
 * place. */
static inline float exp_float(float x) {
  const float shift = 12582912.0f; /* 1.5 * 2^23 */
  float y = x > -87.0f ? x : -87.0f, t = __builtin_fmaf(y, 1.44269504f, shift), n = t - shift;
  float r = __builtin_fmaf(n, -0.693145751953125f, y);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.98412698e-4f;
  p = __builtin_fmaf(p, r, 1.38888889e-3f);
  p = __builtin_fmaf(p, r, 8.33333333e-3f);
  p = __builtin_fmaf(p, r, 4.16666667e-2f);
  p = __builtin_fmaf(p, r, 1.66666667e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p, r, 1.0f);
  p = __builtin_fmaf(p, r, 1.0f);
  uint32_t bits, shiftbits;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&shiftbits, &t, sizeof shiftbits);
  bits += shiftbits << 23;
  memcpy(&p, &bits, sizeof p);
  float low = x == x ? 0.0f : x;
  return x > -87.0f ? p : low;
}
#endif
