/* measurement.h - the state of a certificate that is being measured, and the calls that its passes make. */
#ifndef SPECC_MEASUREMENT_H
#define SPECC_MEASUREMENT_H
#include "core/model/model.h"
#include "specc_judge.h"

/* Calls of a width that are timed, widths in turn: some seconds, so that one busy moment decides no price. */
#define TIMES 63

/* What was seen, in rising gravity; the gravest goes into the certificate. */
enum evidence { NO_EVIDENCE, OTHER_WIDTH, OTHER_SLOT, NOT_FINITE, NOT_REPEATED };

typedef struct measurement {
  specc_model *model;
  const specc_certify_options *options;
  specc_certificate *certificate;
  void *cache, *fresh;
  specc_io io, fresh_io;
  int32_t reference;          /* index of the reference width */
  int32_t start, end, window; /* positions of the window under way */
  int32_t shift;              /* which place of the text stands at position 0 */
  uint64_t *hashes;           /* [n_widths][window] hash of each position's row at a width, 0 unknown */
  uint64_t *call_hashes;      /* [widest] hashes of the rows of the call under way */
  uint64_t signature[SPECC_MAX_WIDTHS];
  int32_t broken[SPECC_MAX_WIDTHS]; /* rows of one width that disagree with each other */
  int32_t mixed_broken, segment_broken;
  float *rows; /* [window][vocab] reference rows */
  int64_t done, expected;
  uint32_t counter; /* of random numbers */
  enum evidence evidence;
  double times[SPECC_MAX_WIDTHS][TIMES];
  int32_t n_times[SPECC_MAX_WIDTHS];
} measurement;

/* One call at `past` of `width` rows: the first `real` ones are the text, later ones random ids. On the fresh
 * cache where is_fresh. */
int measurement_call(
    measurement *m, int32_t width, int32_t n_logits, int32_t past, int32_t real, int is_fresh);
/* Fills positions 0..start-1 in prefill chunks. */
int measurement_prefill(measurement *m, int is_fresh);
/* Philox number below `below`. */
uint32_t measurement_random(measurement *m, uint32_t below);
/* No value of row [n] is NaN or +infinity. */
int is_finite_row(const float *row, int32_t n);
#endif
