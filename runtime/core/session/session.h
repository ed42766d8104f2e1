/* session.h - the state of one generation: every buffer laid out by specc_session_create, integers that move
 * after that. */
#ifndef SPECC_SESSION_H
#define SPECC_SESSION_H
#include "core/model/model.h"
#include "core/numbers/sampling.h"
#include "core/session/control.h"
#include "core/session/sampler.h"
#include "core/session/text.h"
#include "specc_judge.h"
#include <stdatomic.h>

enum phase { PHASE_IDLE, PHASE_PREFILL, PHASE_DECODE, PHASE_DONE };

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
  double *p; /* [n_ids] the row being judged */
  double *q; /* [k_max][n_ids] for drafters */
  /* [context][drafter.hidden] of the target, for the entries of its cache; NULL if no drafter reads them */
  float *hidden;
  int32_t emitted[SPECC_MAX_K + 2], n_emitted; /* of the round, before the commit cuts it */
  int32_t drafted[SPECC_MAX_K];
  text_state text;
  specc_stats stats;
  int32_t traced, n_decisions;
  specc_decision decisions[SPECC_MAX_K + 2]; /* of the last round, where traced */
};

/* One thread at a time, in the process that opened the model: SPECC_OK from session_enter makes the session
 * this thread's until session_leave. SPECC_E_BUSY; SPECC_E_UNSUPPORTED in a forked child. */
int session_enter(specc_session *s);
void session_leave(specc_session *s);
bool is_cancelled(const specc_session *s);
/* Keeps the hidden states of the call just made, whose row 0 stands at `length`, where a drafter reads them.
 */
void session_keep_hidden(specc_session *s, int32_t rows);
/* The row that decides the token at index n_tokens + depth. */
row session_get_row(const specc_session *s, const float *logits, int32_t n_logits, int32_t depth);

/* request.c: checks a request and its prompt, and copies the request. */
int session_read_request(specc_session *s, const specc_request *r, const int32_t *ids, int32_t n);
/* round.c: fills proposal; a drafter that fails is left out and never fails the session. */
int session_propose(specc_session *s);
/* round.c: one target call and its judgement into emitted[]. */
int session_verify(specc_session *s);
/* commit.c: takes over emitted[] token by token; returns enum specc_finish. */
int session_commit(specc_session *s);
/* trace.c: keeps what was just judged. */
void session_trace(specc_session *s, int32_t slot, int accepted);
#endif
