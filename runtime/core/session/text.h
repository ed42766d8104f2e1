/* text.h - bytes of the output: what may be shown, and where a stop string ends it. */
#ifndef SPECC_TEXT_H
#define SPECC_TEXT_H
#include "specc.h"

/* What goes out as text: bytes of the output, how much of them was shown, and the stop strings. */
typedef struct text_state {
  uint8_t *bytes; /* [capacity] of the output so far */
  size_t n, shown, capacity;
  char *shown_text; /* [3 * capacity + 4] what one event shows; invalid bytes become U+FFFD */
  char stop[16][257];
  int32_t stop_length[16], n_stop, longest;
  int strip; /* the output's first space is dropped */
} text_state;

void text_begin(text_state *t, const specc_request *r, int strip);
/* Appends token bytes. Returns 1 when a stop string is complete; the text then ends before it. */
int text_append(text_state *t, const uint8_t *bytes, size_t n);
/* Whole UTF-8 that may be shown now; finished: everything left. Valid until the next call. */
const char *text_show(text_state *t, int finished, int32_t *n);
#endif
