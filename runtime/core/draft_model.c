/* draft_model.c - a draft graph with a cache of its own: feeds what is missing, then draws and feeds token by token.
 * One rollback rule: commit lowers the length. After full acceptance the last proposed token was never fed; the next
 * proposal feeds it together with the current one. */
#include "session.h"

typedef struct draft_state {
  const specc_backend *engine;
  void *cache;
  specc_io io;
  int32_t length;                  /* cache entries that count */
} draft_state;

static int draft_open(void *self, void **out) {
  const specc_backend *engine = self;
  draft_state *d = calloc(1, sizeof *d);
  if (!d) return specc_error(SPECC_E_MEMORY, "no memory for a draft cache");
  d->engine = engine;
  int code = engine->open(engine->self, &d->cache, &d->io);
  if (code) { free(d); return code; }
  *out = d;
  return SPECC_OK;
}

static void draft_close(void *state) {
  draft_state *d = state;
  d->engine->close(d->cache);
  free(d);
}

static int draft_commit(void *state, int32_t n_keep) {
  draft_state *d = state;
  if (n_keep < d->length || SPECC_FAULT(draft_cache_behind)) d->length = n_keep;
  return SPECC_OK;
}

static int32_t width_for(const specc_backend *e, int32_t rows) {
  for (int32_t i = 0; i < e->n_widths; i++)
    if (e->widths[i] >= rows) return e->widths[i];
  return e->widths[e->n_widths - 1];
}

/* Feeds `real` tokens at the end of the cache in one call; *last is the logits of the last one. */
static int feed(draft_state *d, const int32_t *tokens, int32_t real, const float **last) {
  int32_t rows = width_for(d->engine, real), widest = d->engine->widths[d->engine->n_widths - 1];
  for (int32_t i = 0; i < rows; i++) {
    d->io.input_ids[i] = tokens[i < real ? i : real - 1];
    d->io.position[i] = d->length + (i < real ? i : real - 1);
    d->io.logit_rows[i] = i;
  }
  if (!last) d->io.logit_rows[0] = 0;
  *d->io.past_len = d->length;
  int code = d->engine->run(d->cache, rows, !last && rows == widest ? 1 : rows);
  if (code) return code;
  d->length += real;
  if (last) *last = d->io.logits + (size_t)(real - 1) * (size_t)d->engine->vocab;
  return SPECC_OK;
}

/* Feeds committed tokens up to and with the current one; *logits decide the first node. */
static int catch_up(draft_state *d, const specc_draft_context *c, specc_proposal *out, const float **logits) {
  int32_t widest = d->engine->widths[d->engine->n_widths - 1];
  while (c->n_tokens - d->length > widest) {
    if (session_cancelled(c->sampler->session)) return SPECC_OK;
    int code = feed(d, c->tokens + d->length, widest, NULL);
    if (code) return code;
    out->calls++;
  }
  out->calls++;
  return feed(d, c->tokens + d->length, c->n_tokens - d->length, logits);
}

static int draft_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  draft_state *d = state;
  const float *logits = NULL;
  int32_t widest = d->engine->widths[d->engine->n_widths - 1];
  out->n = 0;
  out->length = d->length;
  if (c->n_tokens + c->k + widest > d->engine->capacity) return SPECC_OK;     /* a shorter draft context: plain from here */
  int code = catch_up(d, c, out, &logits);
  for (int32_t i = 0; !code && logits && i < c->k && !session_cancelled(c->sampler->session); i++) {
    out->q[i] = c->q[i];
    out->parent[i] = i - 1;
    if ((code = specc_draft_draw(c->sampler, logits, d->engine->vocab, i, c->q[i], &out->token[i]))) break;
    if (SPECC_FAULT(drop_low_q) && out->q[i][out->token[i]] < 0.3) break;
    out->n = i + 1;
    if (i + 1 == c->k) break;
    code = feed(d, &out->token[i], 1, &logits);
    out->calls++;
  }
  return code;
}

static void draft_release(void *self) {
  specc_backend *engine = self;
  if (engine->release) engine->release(engine->self);
  free(engine);
}

int specc_model_drafter(const specc_backend *engine, specc_drafter *drafter) {
  if (!engine || !drafter || !engine->open || !engine->run || !engine->close || engine->n_widths < 1 || engine->n_widths > SPECC_MAX_WIDTHS)
    return specc_error(SPECC_E_ARGUMENT, "a model drafter needs an engine with open, run, close and 1 to 24 widths");
  specc_backend *own = malloc(sizeof *own);
  if (!own) return specc_error(SPECC_E_MEMORY, "no memory for a drafter");
  *own = *engine;
  *drafter = (specc_drafter){.name = "model", .self = own, .open = draft_open, .propose = draft_propose, .commit = draft_commit,
                             .close = draft_close, .release = draft_release};
  return SPECC_OK;
}
