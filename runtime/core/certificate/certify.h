/* certify.h - what the passes of the judge of widths share. */
#ifndef SPECC_CERTIFY_H
#define SPECC_CERTIFY_H
#include "core/internal.h"

#define TIMES                                                                                                \
  63 /* calls of a width that are timed, widths in turn: some seconds, so that one busy moment decides no    \
        price */

enum evidence {
  NO_EVIDENCE,
  OTHER_WIDTH,
  OTHER_SLOT,
  NOT_FINITE,
  NOT_REPEATED
}; /* the highest one is told */

typedef struct measure {
  specc_model *model;
  const specc_certify_options *o;
  specc_certificate *c;
  void *cache, *fresh;
  specc_io io, fresh_io;
  int32_t reference;          /* index of the reference width */
  int32_t start, end, window; /* positions of the window under way */
  int32_t shift;              /* which place of the text stands at position 0 */
  uint64_t *own;              /* [n_widths][window] hash of each position's row at a width, 0 unknown */
  uint64_t *first;            /* [widest] hashes of the rows of the call under way */
  uint64_t signature[SPECC_MAX_WIDTHS];
  int32_t broken[SPECC_MAX_WIDTHS]; /* rows of one width that disagree with each other */
  int32_t mixed_broken, segment_broken;
  float *rows; /* [window][vocab] reference rows */
  int64_t done, expected;
  uint32_t counter; /* of random numbers */
  enum evidence evidence;
  double times[SPECC_MAX_WIDTHS][TIMES];
  int32_t n_times[SPECC_MAX_WIDTHS];
} measure;

int certify_call(measure *m, int32_t width, int32_t n_logits, int32_t past, int32_t real, int fresh);
int certify_prefill(measure *m, int fresh); /* positions 0..start-1 in chunks */
int certify_finite(const float *row, int32_t n);
/* certify_apart.c: how far the widths that a session may use are from each other where their bits differ.
 * Fills tv_mean, tv_max, tv_rows, flips and flip_margin. */
int certify_apart(measure *m);
#endif
