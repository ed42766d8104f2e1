/* generation.c - the loop: start, prompt chunks, rounds, finish, in the order a generation happens. */
#include "core/io/clock.h"
#include "core/io/error.h"
#include "core/numbers/arithmetic.h"
#include "core/session/session.h"

/* Entries of the cache that hold for the new prompt as well: exact only where the prefill chunk is in the
 * law's class. */
static int32_t count_shared_prefix(const specc_session *s, const int32_t *ids, int32_t n) {
  int32_t most = s->length < n - 1 ? s->length : n - 1, shared = 0;
  if (!s->model->prefill_in_class) return 0;
  while (shared < most && s->tokens[shared] == ids[shared]) shared++;
  return shared;
}

static int start(specc_session *s, const specc_request *r, const int32_t *ids, int32_t n) {
  /* A drafter that failed was left out: its cache may hold anything. */
  bool drafter_failed = s->stats.reasons & SPECC_R_DRAFT_ERROR;
  int code = session_read_request(s, r, ids, n);
  if (code) return code;
  control_begin(&s->control, s->model);
  int32_t keep = count_shared_prefix(s, ids, n);
  s->length = keep;
  memmove(s->tokens, ids, (size_t)n * sizeof *ids);
  s->n_tokens = s->n_prompt = n;
  atomic_store(&s->cancel, 0);
  s->phase = s->length < n - 1 ? PHASE_PREFILL : PHASE_DECODE;
  if (s->draft && s->model->drafter.commit(s->draft, drafter_failed ? 0 : keep)) {
    s->stats.reasons |= SPECC_R_DRAFT_ERROR;
    s->stats.enabled = 0;
    s->k = 0;
  }
  return SPECC_OK;
}

int specc_session_start(specc_session *s, const specc_request *r, const int32_t *ids, int32_t n) {
  if (!s) return specc_error(SPECC_E_ARGUMENT, "no session was given");
  int code = session_enter(s);
  if (code) return code;
  s->phase = PHASE_IDLE;
  code = start(s, r, ids, n);
  session_leave(s);
  return code;
}

/* One chunk of prompt[:-1]. The chunk's width is always the same; rows behind the prompt are padding. */
static int prefill(specc_session *s) {
  const specc_model *m = s->model;
  int32_t rows = m->chunk, left = s->n_prompt - 1 - s->length, real = left < rows ? left : rows;
  double begin = specc_now();
  for (int32_t i = 0; i < rows; i++) {
    int32_t at = s->length + i;
    s->io.input_ids[i] = s->tokens[i < real ? at : s->length + real - 1];
    s->io.position[i] = at < m->context ? at : m->context - 1;
  }
  s->io.logit_rows[0] = 0;
  *s->io.past_len = s->length;
  int code = m->target.run(s->cache, rows, 1);
  if (code) return code;
  session_keep_hidden(s, real);
  s->length += real;
  s->stats.prefill_calls++;
  s->stats.prefill_seconds += specc_now() - begin;
  if (s->length == s->n_prompt - 1) s->phase = PHASE_DECODE;
  return SPECC_OK;
}

static int finish(specc_session *s, specc_event *e, int finished) {
  s->phase = PHASE_DONE;
  s->stats.finished = finished;
  e->finished = finished;
  return SPECC_OK;
}

/* Propose, verify, commit. */
static int decode(specc_session *s, specc_event *e) {
  double begin = specc_now();
  int32_t before = s->n_tokens;
  if (s->request.max_new_tokens <= s->n_tokens - s->n_prompt) return finish(s, e, SPECC_FINISH_LENGTH);
  int code = session_propose(s);
  if (code) return code;
  if (is_cancelled(s)) return finish(s, e, SPECC_FINISH_CANCELLED);
  if ((code = session_verify(s))) return code;
  e->proposed = s->proposal.n;
  e->accepted = s->n_emitted - 1;
  e->drafted = s->drafted;
  int finished = session_commit(s);
  e->n_tokens = s->n_tokens - before;
  e->tokens = s->tokens + before;
  s->stats.seconds += specc_now() - begin;
  return finished ? finish(s, e, finished) : SPECC_OK;
}

static int step(specc_session *s, specc_event *e) {
  int code = SPECC_OK;
  memset(e, 0, sizeof *e);
  e->text = "";
  e->tokens = e->drafted = s->drafted;
  if (s->phase == PHASE_IDLE || s->phase == PHASE_DONE)
    return specc_error(SPECC_E_ARGUMENT, "the session has nothing under way; call specc_session_start first");
  if (is_cancelled(s)) {
    finish(s, e, SPECC_FINISH_CANCELLED);
  } else if (s->phase == PHASE_PREFILL) {
    e->prefill = 1;
    code = prefill(s);
  } else {
    code = decode(s, e);
  }
  if (code) {
    s->phase = PHASE_IDLE;
    return code;
  }
  if (s->model->bytes) e->text = text_show(&s->text, e->finished, &e->n_text);
  return SPECC_OK;
}

int specc_session_step(specc_session *s, specc_event *e) {
  if (!s || !e) return specc_error(SPECC_E_ARGUMENT, "specc_session_step needs a session and an event");
  int code = session_enter(s);
  if (code) return code;
  uint64_t mode = enter_arithmetic();
  code = step(s, e);
  leave_arithmetic(mode);
  session_leave(s);
  return code;
}

int specc_session_run(specc_session *s, int (*on_event)(void *user, const specc_event *event), void *user) {
  specc_event e;
  do {
    int code = specc_session_step(s, &e);
    if (code) return code;
    if (on_event && on_event(user, &e)) specc_session_cancel(s);
  } while (!e.finished);
  return SPECC_OK;
}
