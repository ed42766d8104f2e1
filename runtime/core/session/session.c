/* session.c - the loop: start, prompt chunks, rounds, finish. Reads in the order a generation happens. */
#include "core/session/session.h"
#include "core/numbers/arithmetic.h"

int specc_session_create(specc_model *m, specc_session **out) {
  if (!m || !out)
    return specc_error(SPECC_E_ARGUMENT, "specc_session_create needs a model and a place for the session");
  specc_session *s = calloc(1, sizeof *s);
  *out = NULL;
  if (!s) return specc_error(SPECC_E_MEMORY, "no memory for a session");
  s->model = m;
  s->sampler.session = s;
  atomic_flag_clear(&s->busy);
  size_t n = (size_t)m->n_ids, room = (size_t)m->context + SPECC_MAX_K + 2;
  s->bias_ids = calloc(n, sizeof *s->bias_ids);
  s->bias_values = calloc(n, sizeof *s->bias_values);
  s->tokens = calloc(room, sizeof *s->tokens);
  s->p = calloc(n, sizeof *s->p);
  s->q = m->drafter.name ? calloc(n * (size_t)m->k_max, sizeof *s->q) : s->p;
  size_t features = (size_t)m->drafter.hidden;
  s->hidden = features ? calloc(features * room, sizeof *s->hidden) : NULL;
  s->text.capacity = (size_t)m->max_token_bytes * room;
  s->text.bytes = malloc(s->text.capacity + 1);
  s->text.shown_text = malloc(3 * s->text.capacity + 4);
  int code = specc_error(
      SPECC_E_MEMORY, "no memory for a session over %d ids and %d tokens of context", m->n_ids, m->context);
  if (s->bias_ids && s->bias_values && s->tokens && s->p && s->q && (s->hidden || !features) &&
      s->text.bytes && s->text.shown_text)
    code = workspace_create(&s->work, m->n_ids);
  if (!code) code = m->target.open(m->target.self, &s->cache, &s->io);
  if (!code && m->drafter.name) code = m->drafter.open(m->drafter.self, &s->draft);
  if (code) {
    specc_session_free(s);
    return code;
  }
  *out = s;
  return SPECC_OK;
}

void specc_session_free(specc_session *s) {
  if (!s) return;
  if (s->draft) s->model->drafter.close(s->draft);
  if (s->cache) s->model->target.close(s->cache);
  workspace_free(&s->work);
  if (s->q != s->p) free(s->q);
  free(s->bias_ids);
  free(s->bias_values);
  free(s->tokens);
  free(s->p);
  free(s->hidden);
  free(s->text.bytes);
  free(s->text.shown_text);
  free(s);
}

/* Entries of the cache that hold for the new prompt as well: exact only where the prefill chunk is in the
 * law's class. */
static int32_t shared_prefix(const specc_session *s, const int32_t *ids, int32_t n) {
  int32_t most = s->length < n - 1 ? s->length : n - 1, same = 0;
  if (!s->model->prefill_in_class) return 0;
  while (same < most && s->tokens[same] == ids[same]) same++;
  return same;
}

static int start(specc_session *s, const specc_request *r, const int32_t *ids, int32_t n) {
  bool lost =
      s->stats.reasons & SPECC_R_DRAFT_ERROR; /* the drafter was left out: its cache holds what it likes */
  int code = session_request(s, r, ids, n);
  if (code) return code;
  control_begin(&s->control, s->model);
  int32_t keep = shared_prefix(s, ids, n);
  s->length = keep;
  memmove(s->tokens, ids, (size_t)n * sizeof *ids);
  s->n_tokens = s->n_prompt = n;
  atomic_store(&s->cancel, 0);
  s->phase = s->length < n - 1 ? PHASE_PREFILL : PHASE_DECODE;
  if (s->draft && s->model->drafter.commit(s->draft, lost ? 0 : keep)) {
    s->stats.reasons |= SPECC_R_DRAFT_ERROR;
    s->stats.enabled = 0;
    s->k = 0;
  }
  return SPECC_OK;
}

static bool enter(specc_session *s) {
  return !atomic_flag_test_and_set(&s->busy);
}
static void leave(specc_session *s) {
  atomic_flag_clear(&s->busy);
}
static int busy(void) {
  return specc_error(
      SPECC_E_BUSY, "the session is in use by another thread; give each thread a session of its own");
}

int specc_session_start(specc_session *s, const specc_request *r, const int32_t *ids, int32_t n) {
  if (!s) return specc_error(SPECC_E_ARGUMENT, "no session was given");
  if (!enter(s)) return busy();
  s->phase = PHASE_IDLE;
  int code = start(s, r, ids, n);
  leave(s);
  return code;
}

bool session_cancelled(const specc_session *s) {
  return atomic_load(&s->cancel);
}
void specc_session_cancel(specc_session *s) {
  if (s) atomic_store(&s->cancel, 1);
}

void session_keep_hidden(specc_session *s, int32_t rows) {
  size_t n = (size_t)s->model->drafter.hidden;
  if (n) memcpy(s->hidden + (size_t)s->length * n, s->io.hidden, (size_t)rows * n * sizeof *s->hidden);
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

static int finish(specc_session *s, specc_event *e, int how) {
  s->phase = PHASE_DONE;
  s->stats.finished = how;
  e->finished = how;
  return SPECC_OK;
}

/* Propose, verify, commit. */
static int decode(specc_session *s, specc_event *e) {
  double begin = specc_now();
  int32_t before = s->n_tokens;
  if (s->request.max_new_tokens <= s->n_tokens - s->n_prompt) return finish(s, e, SPECC_FINISH_LENGTH);
  int code = session_propose(s);
  if (code) return code;
  if (session_cancelled(s)) return finish(s, e, SPECC_FINISH_CANCELLED);
  if ((code = session_verify(s))) return code;
  e->proposed = s->proposal.n;
  e->accepted = s->n_emitted - 1;
  e->drafted = s->drafted;
  int how = session_commit(s);
  e->n_tokens = s->n_tokens - before;
  e->tokens = s->tokens + before;
  s->stats.seconds += specc_now() - begin;
  return how ? finish(s, e, how) : SPECC_OK;
}

static int step(specc_session *s, specc_event *e) {
  int code = SPECC_OK;
  memset(e, 0, sizeof *e);
  e->text = "";
  e->tokens = e->drafted = s->drafted;
  if (s->phase == PHASE_IDLE || s->phase == PHASE_DONE)
    return specc_error(SPECC_E_ARGUMENT, "the session has nothing under way; call specc_session_start first");
  if (session_cancelled(s)) {
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
  if (!enter(s)) return busy();
  uint64_t mode = enter_arithmetic();
  int code = step(s, e);
  leave_arithmetic(mode);
  leave(s);
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

const int32_t *specc_session_tokens(const specc_session *s, int32_t *n_prompt, int32_t *n_tokens) {
  if (n_prompt) *n_prompt = s ? s->n_prompt : 0;
  if (n_tokens) *n_tokens = s ? s->n_tokens : 0;
  return s ? s->tokens : NULL;
}

uint64_t specc_session_seed(const specc_session *s) {
  return s ? s->noise.seed : 0;
}

int specc_session_stats(const specc_session *s, specc_stats *stats) {
  if (!s || !stats)
    return specc_error(SPECC_E_ARGUMENT, "specc_session_stats needs a session and a place for the numbers");
  specc_session *held = (specc_session *)s; /* the mark that a thread is inside is not the caller's data */
  if (!enter(held)) return busy();
  *stats = s->stats;
  stats->target_length = s->length;
  leave(held);
  return SPECC_OK;
}
