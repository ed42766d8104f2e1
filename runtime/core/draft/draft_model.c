/* draft_model.c - a draft graph with a cache of its own: feeds the tokens that its cache lacks, then draws
 * the next one. One rollback rule: commit lowers the length. After full acceptance the last proposed token
 * was never fed; the next proposal feeds it together with the current one, as it feeds tokens that another
 * stage proposed. */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include "core/manifest/engine.h"
#include <stdlib.h>

typedef struct draft_state {
  const specc_backend *engine;
  void *cache;
  specc_io io;
  int32_t length; /* cache entries that count */
} draft_state;

static int draft_open(void *self, void **out) {
  const specc_backend *engine = self;
  draft_state *d = calloc(1, sizeof *d);
  if (!d) return specc_error(SPECC_E_MEMORY, "no memory for a draft cache");
  d->engine = engine;
  int code = engine->open(engine->self, &d->cache, &d->io);
  if (code) {
    free(d);
    return code;
  }
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
  if (n_keep < d->length) d->length = n_keep;
  return SPECC_OK;
}

/* Feeds `real` tokens at the end of the cache in one call; *last is the logits of the last one. */
static int feed_tokens(draft_state *d, const int32_t *tokens, int32_t real, const float **last) {
  int32_t rows = find_width(d->engine, real), widest = d->engine->widths[d->engine->n_widths - 1];
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

/* Feeds everything up to and with token n - 1; *logits decide token n. */
static int feed_new_tokens(
    draft_state *d, const specc_draft_context *c, int32_t n, specc_proposal *out, const float **logits) {
  int32_t widest = d->engine->widths[d->engine->n_widths - 1];
  while (n - d->length > widest) {
    if (sampler_is_cancelled(c->sampler)) return SPECC_OK;
    int code = feed_tokens(d, c->tokens + d->length, widest, NULL);
    if (code) return code;
    out->calls++;
  }
  out->calls++;
  return feed_tokens(d, c->tokens + d->length, n - d->length, logits);
}

static int draft_next_node(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  draft_state *d = state;
  const float *logits = NULL;
  int32_t widest = d->engine->widths[d->engine->n_widths - 1];
  if (out->length < 0) out->length = d->length;
  if (c->n_tokens + c->k + widest > d->engine->capacity || sampler_is_cancelled(c->sampler))
    return SPECC_OK; /* a shorter draft context */
  if (!specc_draft_pays(c->sampler, depth, SOURCE_HEAD_UNSEEN + (depth < 7 ? depth : 7), 1)) return SPECC_OK;
  int code = feed_new_tokens(d, c, c->n_tokens + depth, out, &logits);
  return code || !logits ? code : append_sampled(c, depth, logits, d->engine->vocab, NULL, 0, out);
}

static int draft_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(draft_next_node, state, c, out);
}

static void draft_release(void *self) {
  free_engine(self);
}

int specc_model_drafter(const specc_backend *engine, specc_drafter *drafter) {
  if (!drafter) return specc_error(SPECC_E_ARGUMENT, "a model drafter needs a place to stand in");
  specc_backend *engine_copy = copy_engine(engine, "model");
  if (!engine_copy) return engine && engine->open ? SPECC_E_MEMORY : SPECC_E_ARGUMENT;
  *drafter = (specc_drafter){.name = "model",
      .self = engine_copy,
      .open = draft_open,
      .propose = draft_propose,
      .commit = draft_commit,
      .close = draft_close,
      .release = draft_release,
      .next = draft_next_node};
  return SPECC_OK;
}

/* ------------------------------------------------------------------ from a bundle */
int open_model_draft(const draft_source *source, specc_drafter *drafter) {
  specc_backend engine;
  int code = open_engine(source->manifest, "draft", &engine);
  if (code) return code;
  code = specc_model_drafter(&engine, drafter);
  if (code) release_engine(&engine);
  return code;
}
