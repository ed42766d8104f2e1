/* control.h - does a proposal pay? Counts of what was accepted, costs from the certificate; no clock, no
 * discarded draft. */
#ifndef SPECC_CONTROL_H
#define SPECC_CONTROL_H
#include "core/model/model.h"
#include <stdbool.h>

/* Where a node comes from. Nodes of one source are taken to be accepted alike; first guesses are in
 * control.c. */
enum source {
  SOURCE_UNKNOWN = 0,      /* a drafter that does not ask whether a node pays */
  SOURCE_LOOKUP = 1,       /* + length of the match, 1..15 */
  SOURCE_TABLE = 16,       /* + 4 * (count >= 4) + quarter of count / total */
  SOURCE_HEAD = 32,        /* + eighth of q's largest probability */
  SOURCE_HEAD_UNSEEN = 40, /* + depth up to 7: before the head has run */
  SOURCE_OTHER = 48,       /* 48..63 are for drafters of your own */
  SOURCES = 64
};

typedef struct control {
  bool priced;                     /* the certificate holds costs; without them every node pays */
  double call_ms[SPECC_MAX_K + 1]; /* of the target with n proposed tokens; 0 is plain decoding */
  double draft_ms;                 /* of one call of the draft's engine */
  int32_t k;                       /* most nodes of this round */
  double judged[SOURCES], accepted[SOURCES];
  int32_t source[SPECC_MAX_K]; /* of the nodes of this round */
  int32_t unseen[SPECC_MAX_K]; /* what a head was asked as before it ran, 0: none was */
  double spent_ms, tokens;     /* recent rounds: certified cost, and tokens that they gave */
  int32_t window;              /* rounds counted in them since the last decision */
  int32_t pause, resume_in;    /* length of the next pause, and rounds left of the present one */
} control;

/* Begins a generation: counts and pauses of the last one are forgotten. */
void control_begin(control *c, const struct specc_model *m);
bool control_is_paused(control *c); /* asked once a round */
void control_begin_round(control *c, int32_t k);
int control_weigh_node(control *c, int32_t depth, int32_t source, int32_t calls);
/* Counts a round's nodes up to the first rejection. */
void control_count_round(control *c, const specc_request *r, const specc_proposal *d, int32_t n_accepted);
#endif
