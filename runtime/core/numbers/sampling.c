/* sampling.c - draws: uniforms, inverse of the running sum, exponential race, and the acceptance rules. */
#include "core/numbers/sampling.h"
#include "core/numbers/clones.h"
#include "core/numbers/row_math.h"
#include "specc_judge.h"

void specc_philox(uint64_t seed, const uint32_t counter[4], uint32_t out[4]) {
  memcpy(out, counter, 4 * sizeof *out);
  philox((uint32_t)seed, (uint32_t)(seed >> 32), out);
}

double specc_exp(double x) {
  if (x != x) return x;
  if (x > 709.0) return INFINITY;
  return x <= 0 ? exp_negative(x) : 1.0 / exp_negative(-x);
}

double specc_log(double x) {
  if (x != x || x < 0) return NAN;
  if (x == 0) return -INFINITY;
  if (x > 1.7976931348623157e308) return x;
  if (x < 2.2250738585072014e-308) return log_positive(x * 18014398509481984.0) - 54 * 0.6931471805599453;
  return log_positive(x);
}

double draw_uniform(noise n, int32_t position, enum purpose purpose) {
  return uniform_at(n.seed, n.sample, position, purpose + 16 * n.stage, 0);
}

int32_t draw_inverse(const double *weight, int32_t n, double u, double *block) {
  int32_t b = 0;
  for (; b + 8 <= n / 64; b += 8) { /* eight sums side by side, each in its own order */
    double sum[8] = {0};
    for (int i = 0; i < 64; i++)
      for (int j = 0; j < 8; j++) sum[j] += weight[(b + j) * 64 + i];
    memcpy(block + b, sum, sizeof sum);
  }
  for (; b < (n + 63) / 64; b++) block[b] = sum_block(weight, n, b);
  return search_blocks(weight, n, u, block);
}

/* Numbers of the race for ids first .. first + 64. */
static void race_numbers_plain(int32_t first, noise n, int32_t position, double *u) {
  for (int i = 0; i < 32; i++)
    race_pair(n.seed, n.sample, position, PURPOSE_RACE, (uint32_t)first / 2 + (uint32_t)i, u + 2 * i);
}

#if defined(__x86_64__) && defined(__GNUC__)
  #define AVX2 __attribute__((target("avx2"), always_inline)) static inline
/* (52 bits + 1/2) / 2^52 from the low halves of four lanes: 32 bits of `high`, the upper 20 of `low`. */
AVX2 __m256d race_uniform(__m256i high, __m256i low) {
  const __m256i half = _mm256_set1_epi64x(0xffffffff);
  __m256i bits = _mm256_or_si256(_mm256_slli_epi64(_mm256_and_si256(high, half), 20),
      _mm256_srli_epi64(_mm256_and_si256(low, half), 12));
  __m256d x = _mm256_castsi256_pd(_mm256_or_si256(bits, _mm256_set1_epi64x(0x4330000000000000)));
  x = _mm256_add_pd(_mm256_sub_pd(x, _mm256_set1_pd(4503599627370496.0)), _mm256_set1_pd(0.5));
  return _mm256_mul_pd(x, _mm256_set1_pd(1.0 / 4503599627370496.0));
}

/* The same numbers, 2 x 4 Philox blocks side by side; the upper 32 bits of a lane are never read. */
__attribute__((target("avx2"))) static void race_numbers_avx2(
    int32_t first, noise n, int32_t position, double *u) {
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i step0 = _mm256_set1_epi64x(0x9E3779B9), step1 = _mm256_set1_epi64x(0xBB67AE85);
  for (int i = 0; i < 32; i += 8) {
    __m256i k0 = _mm256_set1_epi64x((uint32_t)n.seed), k1 = _mm256_set1_epi64x((uint32_t)(n.seed >> 32)),
            c[2][4];
    for (int h = 0; h < 2; h++) {
      c[h][0] = _mm256_set1_epi64x((uint32_t)position), c[h][1] = _mm256_set1_epi64x(PURPOSE_RACE),
      c[h][3] = _mm256_set1_epi64x(n.sample);
      c[h][2] = _mm256_add_epi64(
          _mm256_set1_epi64x((uint32_t)first / 2 + (uint32_t)(i + 4 * h)), _mm256_setr_epi64x(0, 1, 2, 3));
    }
    for (int round = 0; round < 10;
        round++, k0 = _mm256_add_epi64(k0, step0), k1 = _mm256_add_epi64(k1, step1))
      for (int h = 0; h < 2; h++) {
        __m256i a = _mm256_mul_epu32(m0, c[h][0]), b = _mm256_mul_epu32(m1, c[h][2]);
        c[h][0] = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(c[h][1], k0));
        c[h][2] = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(c[h][3], k1));
        c[h][1] = b;
        c[h][3] = a;
      }
    for (int h = 0; h < 2; h++) {
      __m256d even = race_uniform(c[h][0], c[h][1]), odd = race_uniform(c[h][2], c[h][3]);
      /* ids 0 1 4 5, 2 3 6 7 */
      __m256d low = _mm256_unpacklo_pd(even, odd), high = _mm256_unpackhi_pd(even, odd);
      _mm256_storeu_pd(u + 2 * i + 8 * h, _mm256_permute2f128_pd(low, high, 0x20));
      _mm256_storeu_pd(u + 2 * i + 8 * h + 4, _mm256_permute2f128_pd(low, high, 0x31));
    }
  }
}

static void race_numbers(int32_t first, noise n, int32_t position, double *u) {
  if (__builtin_cpu_supports("avx2"))
    race_numbers_avx2(first, n, position, u);
  else
    race_numbers_plain(first, n, position, u);
}
#else
  #define race_numbers race_numbers_plain
#endif

/* Whether any of 64 ids could beat the time `best`. -log u >= 1 - u, so most blocks need no logarithm. */
SPECC_CLONES static int is_race_possible(const double *p, const double *u, double best) {
  int possible = 0;
  for (int i = 0; i < 64; i++) possible |= 1.0 - u[i] < best * p[i] * (1 + 1e-9);
  return possible;
}

SPECC_CLONES static void race_times(const double *p, const double *u, double *time) {
  for (int i = 0; i < 64; i++) time[i] = race_time(u[i], p[i]);
}

SPECC_CLONES static int has_positive(const double *p, int32_t n) {
  int any = 0;
  for (int32_t i = 0; i < n; i++) any |= p[i] > 0;
  return any;
}

typedef struct race {
  noise noise;
  int32_t position, winner;
  double best;
} race;

/* Ids first .. first + 64 join; rates [64] are 0 for ids that take no part. */
static void race_block(race *r, const double *rates, int32_t first) {
  double u[64], time[64];
  race_numbers(first, r->noise, r->position, u);
  if (r->winner >= 0 && !is_race_possible(rates, u, r->best)) return;
  race_times(rates, u, time);
  for (int32_t i = 0; i < 64; i++)
    if (time[i] < r->best) {
      r->best = time[i];
      r->winner = first + i;
    }
}

/* The same race over the ids of a reduced vocabulary: their noise is the ids', not the columns'. */
static void race_mapped(race *r, const double *p, const int32_t *ids, int32_t n) {
  double rates[64];
  for (int32_t c = 0; c < n;) {
    int32_t first = ids[c] / 64 * 64;
    memset(rates, 0, sizeof rates);
    for (; c < n && ids[c] < first + 64; c++) rates[ids[c] - first] = p[c];
    if (has_positive(rates, 64)) race_block(r, rates, first);
  }
}

int32_t draw_race(const double *p, const int32_t *ids, int32_t n, noise noise, int32_t position) {
  race r = {noise, position, -1, INFINITY};
  double tail[64] = {0};
  if (ids) {
    race_mapped(&r, p, ids, n);
    return r.winner;
  }
  for (int32_t first = 0; first < n; first += 64) {
    int32_t m = n - first < 64 ? n - first : 64;
    if (!has_positive(p + first, m)) continue;
    if (m < 64) memcpy(tail, p + first, (size_t)m * sizeof *tail);
    race_block(&r, m < 64 ? tail : p + first, first);
  }
  return r.winner;
}

int32_t draw(const double *p, const int32_t *ids, int32_t n, int rule, noise noise, int32_t position,
    enum purpose purpose, double *block) {
  if (rule == SPECC_RULE_COUPLED) return draw_race(p, ids, n, noise, position);
  int32_t at = draw_inverse(p, n, draw_uniform(noise, position, purpose), block);
  return ids && at >= 0 ? ids[at] : at;
}

/* (p - q)+ into r; returns its sum. Ids outside a map have q = 0, so r is p there. */
SPECC_CLONES static double compute_residual(const double *p, draft_token x, int32_t n, double *r) {
  const double *q = x.q;
  double lanes[16] = {0}, sum = 0;
  if (!q || x.map) memcpy(r, p, (size_t)n * sizeof *r);
  if (!q) {
    r[x.token] = 0;
  } else if (x.map) {
    for (int32_t c = 0; c < x.map->n; c++) {
      int32_t i = x.map->ids[c];
      double d = p[i] - q[c];
      r[i] = d > 0 ? d : 0;
    }
  } else {
    for (int32_t i = 0; i < n; i++) {
      double d = p[i] - q[i];
      r[i] = d > 0 ? d : 0;
    }
  }
  int32_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; j++) lanes[j] += r[i + j];
  for (; i < n; i++) lanes[i & 15] += r[i];
  for (int j = 0; j < 16; j++) sum += lanes[j];
  return sum;
}

int judge(
    workspace *w, const double *p, draft_token x, int rule, noise noise, int32_t position, int32_t *token) {
  if (rule == SPECC_RULE_COUPLED) return (*token = draw_race(p, NULL, w->n_ids, noise, position)) == x.token;
  double u = draw_uniform(noise, position, PURPOSE_ACCEPT);
  double q = !x.q ? 1.0 : x.q[x.map ? x.map->column[x.token] : x.token];
  *token = x.token;
  if (u * q < p[x.token]) return 1;
  if (!(compute_residual(p, x, w->n_ids, w->residual) > 0)) return 1;
  *token = draw_inverse(w->residual, w->n_ids, draw_uniform(noise, position, PURPOSE_TARGET), w->block);
  return 0;
}
