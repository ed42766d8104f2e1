/* session.h - the state of one generation: every buffer laid out by specc_session_create, integers that move
 * after that. */
#ifndef SPECC_SESSION_H
#define SPECC_SESSION_H
#include "core/internal.h"
#include "core/numbers/sampling.h"
#include "core/session/control.h"

enum phase { PHASE_IDLE, PHASE_PREFILL, PHASE_DECODE, PHASE_DONE };

/* What goes out as text: bytes of the output, how much of them was shown, and the stop strings. text.c */
typedef struct text_state {
  uint8_t *bytes; /* [capacity] of the output so far */
  size_t n, shown, capacity;
  char *shown_text; /* [3 * capacity + 4] what one event shows; invalid bytes become U+FFFD */
  char stop[16][257];
  int32_t stop_length[16], n_stop, longest;
  int strip; /* the output's first space is dropped */
} text_state;

struct specc_sampler {
  const struct specc_session *session;
};

struct specc_session {
  specc_model *model;
  void *cache, *draft; /* of the target; of the drafter */
  specc_io io;
  atomic_flag busy;
  _Atomic int cancel;
  enum phase phase;

  specc_request request; /* options.bias_* point to the copies below; stop is in text */
  noise noise;
  int32_t *bias_ids;   /* [n_ids] */
  double *bias_values; /* [n_ids] */
  int32_t k;           /* tokens to propose, 0: off */
  control control;     /* what proposals cost and brought in this generation */

  int32_t *tokens; /* [context + K + 2] prompt, output, and behind n_tokens the round's proposal */
  int32_t n_tokens, n_prompt;
  int32_t length; /* target cache entries that count */

  specc_sampler sampler;
  specc_proposal proposal;
  workspace work;
  double *p;     /* [n_ids] the row being judged */
  double *q;     /* [k_max][n_ids] for drafters */
  float *hidden; /* [context][drafter.hidden] the target's hidden states of the cache's entries; NULL if
                    nobody reads them */
  int32_t emitted[SPECC_MAX_K + 2], n_emitted; /* of the round, before the commit cuts it */
  int32_t drafted[SPECC_MAX_K];
  text_state text;
  specc_stats stats;
  int32_t traced, n_decisions;
  specc_decision decisions[SPECC_MAX_K + 2]; /* of the last round, where traced */
};

void text_begin(text_state *t, const specc_request *r, int strip);
/* Appends token bytes. Returns 1 when a stop string is complete; the text then ends before it. */
int text_append(text_state *t, const uint8_t *bytes, size_t n);
/* Whole UTF-8 that may be shown now; finished: everything left. Valid until the next call. */
const char *text_show(text_state *t, int finished, int32_t *n);

int session_request(struct specc_session *s, const specc_request *r, const int32_t *ids,
    int32_t n); /* request.c: checks and copies */
row session_row(const struct specc_session *s, const float *logits, int32_t n_logits, int32_t depth);
int session_propose(struct specc_session *s); /* round.c: fills proposal; never fails the session */
int session_verify(struct specc_session *s);  /* one target call and its judgement: emitted[] */
int session_commit(struct specc_session *s);  /* commit.c: token by token; returns enum specc_finish */
void session_trace(
    struct specc_session *s, int32_t slot, int stands); /* trace.c: keeps what was just judged */
bool session_cancelled(const struct specc_session *s);
void session_keep_hidden(
    struct specc_session *s, int32_t rows); /* of the call just made, its row 0 at `length` */
#endif
