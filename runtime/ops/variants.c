/* variants.c - which instructions this CPU has, and whether the dot that uses them gives the scalar one's
 * bits here. */
#include "core/numbers/arithmetic.h"
#include "ops/kernels.h"
#include "specc_judge.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
  #include <sys/auxv.h>
#endif

extern const kernel_set kernels_avx2, kernels_vnni512, kernels_vnni256, kernels_dotprod;

static bool is_supported(const kernel_set *k) {
  if (k == &kernels_scalar) return true;
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (k == &kernels_avx2) return avx2;
  if (k == &kernels_vnni512)
    return avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vnni");
  #if __GNUC__ >= 12
  if (k == &kernels_vnni256) return avx2 && __builtin_cpu_supports("avxvnni");
  #endif
#endif
#if defined(__aarch64__)
  if (k == &kernels_dotprod) return getauxval(AT_HWCAP) & (1u << 20); /* asimddp */
#endif
  return false;
}

static const kernel_set *const all[] = {
#if defined(__x86_64__) && defined(__GNUC__)
    &kernels_vnni512,
  #if __GNUC__ >= 12
    &kernels_vnni256,
  #endif
    &kernels_avx2,
#endif
#if defined(__aarch64__)
    &kernels_dotprod,
#endif
    &kernels_scalar};
enum { ALL = sizeof all / sizeof *all };

const kernel_set *kernels_find(const char *name) {
  for (int i = 0; i < ALL; i++)
    if (!strcmp(all[i]->name, name)) return is_supported(all[i]) ? all[i] : NULL;
  return NULL;
}

enum { NB = 5, ROWS = 11, MOST_BYTES = NB * 512 + 192 };

/* Random groups, extreme ones among them, against the scalar dot. A variant that differs here is not used. */
static bool has_same_products(const kernel_set *k) {
  uint8_t group[MOST_BYTES] = {0};
  activation a[ROWS * NB], b[ROWS * NB];
  float x[ROWS * NB * BLOCK], want[ROWS * GROUP], got[ROWS * GROUP];
  for (uint32_t trial = 0; trial < 24; trial++) {
    uint32_t c[4] = {trial, 0, 0, 0}, r[4];
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
      c[1] = (uint32_t)i;
      specc_philox(1, c, r);
      x[i] = ((float)(int32_t)r[0] * 0x1p-31f) * (r[1] % 8 ? 1.0f : 1e3f);
    }
    kernels_scalar.quantize(x, ROWS * NB, a);
    k->quantize(x, ROWS * NB, b);
    if (memcmp(a, b, sizeof a)) return false;
    for (int kind = 0; kind < WEIGHT_KINDS; kind++) {
      for (size_t i = 0; i < sizeof group; i++) {
        c[1] = (uint32_t)i;
        c[2] = 1;
        specc_philox(2, c, r);
        group[i] = (uint8_t)(trial % 4 == 1 ? 0xff : trial % 4 == 2 ? 0x80 : r[0]);
      }
      for (int i = 0; i < NB * (kind == WEIGHT_W4M ? 32 : 16); i++) {
        int each = kind == WEIGHT_W4M ? 32 : 16;
        c[1] = (uint32_t)i;
        c[2] = 2;
        specc_philox(3, c, r);
        uint16_t half = (uint16_t)(r[0] & 0xbfff); /* any sign, no infinity */
        memcpy(group + (head_at((enum weight_kind)kind, group, i / each) - group) + 2 * (i % each), &half,
            sizeof half);
      }
      kernels_scalar.dot[kind](group, a, NB, ROWS, NB, want);
      k->dot[kind](group, a, NB, ROWS, NB, got);
      if (memcmp(want, got, sizeof want)) return false;
    }
    kernels_scalar.gate(x, ROWS, want);
    k->gate(x, ROWS, got);
    if (memcmp(want, got, ROWS * GATED * sizeof *want)) return false;
  }
  return true;
}

/* The attention steps over random queries, keys and values. */
static bool has_same_attention(const kernel_set *k) {
  enum { N = 21, D = 24 };
  float q[QUERIES * D], kv[N * D], score[2][QUERIES][N], out[2][QUERIES][D], m[2], l[2];
  for (uint32_t i = 0; i < N * D; i++) {
    uint32_t c[4] = {i, 0, 0, 0}, r[4];
    specc_philox(4, c, r);
    kv[i] = (float)(int32_t)r[0] * 0x1p-30f;
    if (i < QUERIES * D) q[i] = (float)(int32_t)r[1] * 0x1p-30f;
  }
  for (int n = 1; n <= QUERIES; n++) {
    for (int v = 0; v < 2; v++) {
      const kernel_set *use = v ? k : &kernels_scalar;
      const float *queries[QUERIES], *weights[QUERIES];
      float *scores[QUERIES], *outs[QUERIES];
      for (int i = 0; i < n; i++) {
        queries[i] = q + i * D;
        weights[i] = scores[i] = score[v][i];
        outs[i] = memset(out[v][i], 0, sizeof out[v][i]);
      }
      use->scores(queries, n, kv, N, D, scores);
      m[v] = use->weigh(score[v][0], N, &l[v]);
      use->blend(weights, n, kv, N, D, outs);
    }
    for (int i = 0; i < n; i++)
      if (memcmp(score[0][i], score[1][i], sizeof score[0][i]) ||
          memcmp(out[0][i], out[1][i], sizeof out[0][i]))
        return false;
    if (m[0] != m[1] || l[0] != l[1]) return false;
  }
  return true;
}

static const kernel_set *best = &kernels_scalar;
static void choose(void) {
  const char *wanted = getenv("SPECC_KERNELS");
  if (wanted && *wanted) { /* for tests and for comparing: one this CPU lacks is the scalar one */
    const kernel_set *k = kernels_find(wanted);
    best = k ? k : &kernels_scalar;
    return;
  }
  uint64_t mode = enter_arithmetic();
  for (int i = ALL - 1; i >= 0; i--)
    if (is_supported(all[i]) && has_same_products(all[i]) && has_same_attention(all[i])) best = all[i];
  leave_arithmetic(mode);
}

const kernel_set *kernels_best(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, choose);
  return best;
}

const char *specc_kernels(void) {
  return kernels_best()->name;
}
