/* sha256.c - SHA-256 (FIPS 180-4), with the processor's own instructions where it has them. */
#include "core/io/sha256.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
  #include <cpuid.h>
  #include <immintrin.h>
  #define SPECC_SHA_NI 1
#endif

typedef void (*compress_fn)(uint32_t state[8], const uint8_t *data, size_t blocks);

static const uint32_t round_constant[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
    0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
    0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3,
    0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354,
    0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3,
    0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
    0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/* ------------------------------------------------------------------ plain C */
static uint32_t rotate(uint32_t x, int n) {
  return (x >> n) | (x << (32 - n));
}

static uint32_t big_endian(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void expand(uint32_t w[64], const uint8_t *block) {
  for (int i = 0; i < 16; i++) w[i] = big_endian(block + 4 * i);
  for (int i = 16; i < 64; i++) {
    uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
    uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
}

static void compress_plain(uint32_t state[8], const uint8_t *data, size_t blocks) {
  for (; blocks; blocks--, data += 64) {
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    expand(w, data);
    for (int i = 0; i < 64; i++) {
      uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25),
               s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + round_constant[i] + w[i];
      uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
  }
}

/* ------------------------------------------------------------------ x86 SHA extensions */
#ifdef SPECC_SHA_NI
/* The instructions want the state as two vectors, ABEF and CDGH, high word first. */
__attribute__((target("sha,sse4.1"))) static void compress_sha_ni(
    uint32_t state[8], const uint8_t *data, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xB1);
  __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1B);
  __m128i abef = _mm_alignr_epi8(abcd, efgh, 8), cdgh = _mm_blend_epi16(efgh, abcd, 0xF0);
  for (; blocks; blocks--, data += 64) {
    __m128i abef_before = abef, cdgh_before = cdgh, w[4];
    for (int i = 0; i < 4; i++)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(data + 16 * i)), swap);
  #pragma GCC unroll 16
    for (int i = 0; i < 16;
        i++) { /* four rounds; w[i % 4] then becomes the words that are due in 16 rounds */
      __m128i now = w[i & 3], k = _mm_loadu_si128((const __m128i *)(const void *)(round_constant + 4 * i));
      __m128i sum = _mm_add_epi32(now, k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
      if (i >= 12) continue;
      __m128i last = w[(i + 3) & 3], seventh = _mm_alignr_epi8(last, w[(i + 2) & 3], 4);
      __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), seventh);
      w[i & 3] = _mm_sha256msg2_epu32(partial, last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha_ni(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & (1u << 29));
}
#endif

static compress_fn choose(void) {
#ifdef SPECC_SHA_NI
  if (has_sha_ni()) return compress_sha_ni;
#endif
  return compress_plain;
}

static void compress(uint32_t state[8], const uint8_t *data, size_t blocks) {
  static _Atomic(compress_fn) chosen; /* every thread that finds it empty chooses the same */
  compress_fn fn = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (!fn) atomic_store_explicit(&chosen, fn = choose(), memory_order_relaxed);
  fn(state, data, blocks);
}

/* ------------------------------------------------------------------ stream */
void specc_sha256_begin(specc_sha256 *h) {
  static const uint32_t initial[8] = {
      0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memset(h, 0, sizeof *h);
  memcpy(h->state, initial, sizeof initial);
}

void specc_sha256_add(specc_sha256 *h, const void *data, size_t n) {
  const uint8_t *p = data;
  size_t held = h->length % 64;
  h->length += n;
  if (held && n) {
    size_t take = n < 64 - held ? n : 64 - held;
    memcpy(h->block + held, p, take);
    p += take, n -= take;
    if (held + take < 64) return;
    compress(h->state, h->block, 1);
  }
  if (n / 64) compress(h->state, p, n / 64);
  if (n % 64) memcpy(h->block, p + n / 64 * 64, n % 64);
}

void specc_sha256_end(specc_sha256 *h, char hex[65]) {
  uint64_t bits = h->length * 8;
  size_t held = h->length % 64, pad = held < 56 ? 56 - held : 120 - held;
  uint8_t tail[128] = {0x80};
  for (int i = 0; i < 8; i++) tail[pad + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  specc_sha256_add(h, tail, pad + 8);
  for (int i = 0; i < 64; i++) hex[i] = "0123456789abcdef"[h->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
  hex[64] = 0;
}
