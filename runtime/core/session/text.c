/* text.c - bytes of the output to whole UTF-8, stop strings, and what may be shown when. */
#include "core/session/text.h"
#include <string.h>

void text_begin(text_state *t, const specc_request *r, int strip) {
  t->n = t->shown = 0;
  t->strip = strip;
  t->n_stop = r->n_stop;
  t->longest = 0;
  for (int32_t i = 0; i < r->n_stop; i++) {
    t->stop_length[i] = (int32_t)strlen(r->stop[i]);
    memcpy(t->stop[i], r->stop[i], (size_t)t->stop_length[i] + 1);
    if (t->stop_length[i] > t->longest) t->longest = t->stop_length[i];
  }
}

/* First place at or after `from` where a stop string stands, or n. */
static size_t find_stop(const text_state *t, size_t from) {
  for (size_t at = from; at < t->n; at++)
    for (int32_t i = 0; i < t->n_stop; i++) {
      size_t length = (size_t)t->stop_length[i];
      if (at + length <= t->n && !memcmp(t->bytes + at, t->stop[i], length)) return at;
    }
  return t->n;
}

int text_append(text_state *t, const uint8_t *bytes, size_t n) {
  size_t old = t->n, back = (size_t)(t->longest > 0 ? t->longest - 1 : 0);
  if (t->strip && n) {
    t->strip = 0;
    if (*bytes == ' ') {
      bytes++;
      n--;
    }
  }
  if (n > t->capacity - t->n) n = t->capacity - t->n;
  memcpy(t->bytes + t->n, bytes, n);
  t->n += n;
  if (!t->n_stop) return 0;
  size_t at = find_stop(t, old > back ? old - back : 0);
  if (at == t->n) return 0;
  t->n = at;
  return 1;
}

/* Bytes at the end that a stop string may still claim. */
static size_t count_held_back(const text_state *t) {
  size_t most = (size_t)(t->longest > 0 ? t->longest - 1 : 0);
  for (size_t n = most < t->n ? most : t->n; n > 0; n--)
    for (int32_t i = 0; i < t->n_stop; i++)
      if (n < (size_t)t->stop_length[i] && !memcmp(t->bytes + t->n - n, t->stop[i], n)) return n;
  return 0;
}

/* Length of the UTF-8 sequence at b (1 to 4), negative: that many bytes are invalid, 0: it may still become
 * whole. Unicode 15, table 3-7; invalid bytes are counted as maximal subparts, as the Rust and Python
 * decoders do. */
static int measure_sequence(const uint8_t *b, size_t n) {
  static const struct {
    uint8_t first, last, low, high;
    int length;
  } forms[] = {{0x00, 0x7f, 0, 0, 1}, {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
      {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
      {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};
  for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
    if (b[0] < forms[f].first || b[0] > forms[f].last) continue;
    for (int i = 1; i < forms[f].length; i++) {
      if ((size_t)i >= n) return 0;
      uint8_t low = i == 1 ? forms[f].low : 0x80, high = i == 1 ? forms[f].high : 0xbf;
      if (b[i] < low || b[i] > high) return -i;
    }
    return forms[f].length;
  }
  return -1;
}

const char *text_show(text_state *t, int finished, int32_t *n) {
  size_t end = t->n - (finished ? 0 : count_held_back(t)), out = 0;
  while (t->shown < end) {
    size_t left = end - t->shown;
    int length = measure_sequence(t->bytes + t->shown, left);
    if (length == 0 && !finished) break;
    size_t used = length > 0 ? (size_t)length : length < 0 ? (size_t)-length : left;
    if (length > 0)
      memcpy(t->shown_text + out, t->bytes + t->shown, used);
    else
      memcpy(t->shown_text + out, "\xef\xbf\xbd", 3);
    out += length > 0 ? used : 3;
    t->shown += used;
  }
  t->shown_text[out] = 0;
  *n = (int32_t)out;
  return t->shown_text;
}
