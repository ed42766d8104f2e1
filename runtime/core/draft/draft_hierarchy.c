/* draft_hierarchy.c - a small draft speeds up a middle model, which drafts for the target.
 *
 * Why this is exact. Let q be the middle model's distribution. Each node is the outcome of one speculative
 * step of the middle model: the small draft's token is accepted with chance min(1, q/r), else one is drawn
 * from (q - r)+, and behind accepted ones from q itself; so given the nodes before it a node follows q,
 * whatever the small draft is. All of them go to the target, the replaced ones too, each with its row q, and
 * the target's rule needs no more than that: x ~ q given the past, and numbers of its own. Hence three
 * duties. (1) Everything that the middle model emits is sent: whether it accepted a token is known only by
 * looking at it, so sending only those sends tokens of another law than q. (2) The inner judgement has its
 * own numbers (`stage` of the noise): the target's would be correlated with the token that they judge. (3)
 * No node is emitted beyond K: the small draft is asked for so few that one more always fits. Under
 * `coupled` a node is the middle model's own race winner.
 *
 * One rollback rule for the middle model's cache: a lower length. */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include "core/manifest/engine.h"
#include <stdlib.h>

typedef struct hierarchy {
  specc_backend *middle;
  specc_drafter small;
  int32_t n_ids, k;
} hierarchy;

typedef struct hierarchy_state {
  const hierarchy *h;
  void *cache, *small;
  specc_io io;
  int32_t length;       /* entries of the middle model's cache that count */
  double *r;            /* [SPECC_MAX_K][n_ids] buffers of the small draft's q */
  specc_proposal inner; /* what the small draft proposes, by depth of the outer round */
} hierarchy_state;

static void hierarchy_close(void *state) {
  hierarchy_state *d = state;
  if (d->small) d->h->small.close(d->small);
  if (d->cache) d->h->middle->close(d->cache);
  free(d->r);
  free(d);
}

static int hierarchy_open(void *self, void **out) {
  hierarchy_state *d = calloc(1, sizeof *d);
  if (!d) return specc_error(SPECC_E_MEMORY, "no memory for a hierarchy of drafts");
  d->h = self;
  d->r = calloc((size_t)SPECC_MAX_K * (size_t)d->h->n_ids, sizeof *d->r);
  int code = d->r ? SPECC_OK : specc_error(SPECC_E_MEMORY, "no memory for the rows of a hierarchy of drafts");
  if (!code) code = d->h->middle->open(d->h->middle->self, &d->cache, &d->io);
  if (!code) code = d->h->small.open(d->h->small.self, &d->small);
  if (code) return hierarchy_close(d), code;
  *out = d;
  return SPECC_OK;
}

static int hierarchy_commit(void *state, int32_t n_keep) {
  hierarchy_state *d = state;
  if (n_keep < d->length) d->length = n_keep;
  return d->h->small.commit(d->small, n_keep);
}

/* ------------------------------------------------------------------ the middle model's calls */
/* Feeds `real` tokens at the end of the cache; the logits of the last `wanted` come first, none for 0. */
static int feed_tokens(hierarchy_state *d, const int32_t *tokens, int32_t real, int32_t wanted) {
  const specc_backend *e = d->h->middle;
  int32_t rows = find_width(e, real);
  for (int32_t i = 0; i < rows; i++) {
    d->io.input_ids[i] = tokens[i < real ? i : real - 1];
    d->io.position[i] = d->length + (i < real ? i : real - 1);
    d->io.logit_rows[i] = i;
  }
  *d->io.past_len = d->length;
  int code = e->run(d->cache, rows, wanted || rows < e->widths[e->n_widths - 1] ? rows : 1);
  d->length += real;
  return code;
}

/* Logits [wanted][vocab] that decide the tokens behind each of the last `wanted` of n tokens. */
static int verify_nodes(hierarchy_state *d, const specc_draft_context *c, int32_t n, int32_t wanted,
    specc_proposal *out, const float **logits) {
  const specc_backend *e = d->h->middle;
  int32_t widest = e->widths[e->n_widths - 1];
  for (int32_t older; (older = n - d->length - wanted) > 0 && find_width(e, n - d->length) == widest;) {
    if (sampler_is_cancelled(c->sampler)) return SPECC_OK;
    int code = feed_tokens(d, c->tokens + d->length, older < widest ? older : widest, 0);
    if (code) return code;
    out->calls++;
  }
  int32_t real = n - d->length;
  int code = feed_tokens(d, c->tokens + d->length, real, wanted);
  *logits = d->io.logits + (size_t)(real - wanted) * (size_t)e->vocab;
  out->calls++;
  return code;
}

/* ------------------------------------------------------------------ one inner round */
/* Asks the small draft for at most `most` nodes behind the `n_before` that the middle model has emitted. */
static int propose_small(hierarchy_state *d, const specc_draft_context *c, int32_t n_before, int32_t most) {
  specc_draft_context small_context = *c;
  int code = SPECC_OK;
  for (int32_t i = 0; i < SPECC_MAX_K; i++) small_context.q[i] = d->r + (size_t)i * (size_t)d->h->n_ids;
  d->inner.n = n_before;
  for (int32_t depth = n_before; !code && depth < n_before + most && d->inner.n == depth; depth++)
    code = d->h->small.next(d->small, &small_context, depth, &d->inner);
  return code;
}

/* Node `depth` from the middle model's row: 1 the small draft's token is accepted, 0 another one is emitted,
 * -1 none is proposed; below: an error. */
static int emit_node(hierarchy_state *d, const specc_draft_context *c, int32_t depth, const float *logits,
    specc_proposal *out) {
  workspace *work = sampler_get_workspace(c->sampler);
  noise inner = {c->seed, c->sample, 1};
  double *q = c->q[depth], top = 0;
  int32_t token, at = c->n_tokens + depth, accepted = 0;
  int code = specc_draft_shape(c->sampler, logits, d->h->middle->vocab, NULL, depth, q, &top);
  if (code) return -1 - code;
  if (!specc_draft_pays(c->sampler, depth, SOURCE_HEAD + (top < 1 ? (int32_t)(8 * top) : 7), 0)) return -1;
  if (depth < d->inner.n) {
    draft_token y = {d->inner.token[depth], d->inner.q[depth], d->inner.map[depth]};
    accepted = judge(work, q, y, c->rule, inner, at, &token);
  } else {
    token = draw(q, NULL, c->n_ids, c->rule, inner, at, PURPOSE_TARGET, work->block);
  }
  if (token < 0) return -1 - specc_error(SPECC_E_NUMERICS, "a middle model's row gave no token to draw");
  append_node(depth, token, q, NULL, out);
  code = specc_draft_put(c->sampler, depth, token);
  return code ? -1 - code : accepted;
}

/* One call of the middle model: what the small draft proposed and is accepted, and one token more. *more: K
 * may not be reached yet. */
static int run_inner_round(
    hierarchy_state *d, const specc_draft_context *c, specc_proposal *out, bool *more) {
  int32_t n_before = out->n, room = c->k - n_before - 1;
  const float *logits = NULL;
  *more = specc_draft_pays(c->sampler, n_before, SOURCE_HEAD_UNSEEN + (n_before < 7 ? n_before : 7), 1);
  if (!*more) return SPECC_OK;
  int code = propose_small(d, c, n_before, room < d->h->k ? room : d->h->k);
  if (!code) code = verify_nodes(d, c, c->n_tokens + d->inner.n, d->inner.n - n_before + 1, out, &logits);
  *more = !code && logits;
  for (int32_t accepted = 1; *more && accepted == 1 && out->n <= d->inner.n;) {
    const float *row_logits = logits + (size_t)(out->n - n_before) * (size_t)d->h->middle->vocab;
    accepted = emit_node(d, c, out->n, row_logits, out);
    if (accepted < -1) code = -1 - accepted;
    *more = accepted >= 0;
  }
  /* The last node emitted may differ from what was fed in its place, so its cache entry does not count. */
  int32_t valid = c->n_tokens + (out->n > n_before ? out->n - 1 : n_before);
  if (code) return code;
  if (d->length > valid) d->length = valid;
  return d->h->small.commit(d->small, valid);
}

static int hierarchy_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  hierarchy_state *d = state;
  const specc_backend *e = d->h->middle;
  int code = SPECC_OK;
  out->n = 0;
  out->length = d->length;
  if (c->n_ids != d->h->n_ids)
    return specc_error(
        SPECC_E_DRAFT, "the hierarchy was made for %d ids, the target has %d", d->h->n_ids, c->n_ids);
  if (c->n_tokens + c->k + e->widths[e->n_widths - 1] > e->capacity)
    return SPECC_OK; /* a shorter draft context */
  for (bool more = true; !code && more && out->n < c->k && !sampler_is_cancelled(c->sampler);)
    code = run_inner_round(d, c, out, &more);
  return code;
}

/* ------------------------------------------------------------------ what a program calls */
static void hierarchy_release(void *self) {
  hierarchy *h = self;
  free_engine(h->middle);
  if (h->small.release) h->small.release(h->small.self);
  free(h);
}

int specc_hierarchy_drafter(const specc_hierarchy_options *o, specc_drafter *drafter) {
  if (!o || !drafter || !o->small || o->n_ids < 1 || o->k < 1 || o->k >= SPECC_MAX_K)
    return specc_error(SPECC_E_ARGUMENT,
        "a hierarchy needs a middle model, a small draft, the number of ids, and 1 to %d tokens at a time",
        SPECC_MAX_K - 1);
  const specc_drafter *small = o->small;
  const char *name = small->name ? small->name : "of no name";
  if (!small->next || !small->open || !small->commit || !small->close)
    return specc_error(SPECC_E_ARGUMENT,
        "the drafter %s cannot speed up a middle model: it proposes whole chains only", name);
  if (small->hidden)
    return specc_error(SPECC_E_ARGUMENT,
        "the drafter %s reads the target's hidden states, which a middle model has none of; use lookup, a "
        "table or a model",
        name);
  specc_backend *engine_copy = copy_engine(o->middle, "hierarchy");
  hierarchy *h = engine_copy ? malloc(sizeof *h) : NULL;
  if (!h)
    return free(engine_copy),
           engine_copy ? specc_error(SPECC_E_MEMORY, "no memory for a drafter") : SPECC_E_ARGUMENT;
  *h = (hierarchy){engine_copy, *small, o->n_ids, o->k};
  *drafter = (specc_drafter){.name = "hierarchy",
      .self = h,
      .open = hierarchy_open,
      .propose = hierarchy_propose,
      .commit = hierarchy_commit,
      .close = hierarchy_close,
      .release = hierarchy_release};
  return SPECC_OK;
}

/* ------------------------------------------------------------------ from a bundle */
int open_hierarchy_draft(const draft_source *source, specc_drafter *drafter) {
  const manifest *m = source->manifest;
  const json *draft = source->entry;
  specc_backend middle = {0};
  specc_drafter small = {0};
  specc_hierarchy_options o = {.middle = &middle, .small = &small, .n_ids = m->n_ids};
  const json *inner;
  int code = manifest_object(m, draft, "draft", "draft", &inner);
  if (!code) code = manifest_int(m, draft, "draft", "k", 1, SPECC_MAX_K - 1, &o.k);
  if (!code) code = source->open_part(m, inner, &small);
  if (!code) code = open_engine(m, "draft", &middle);
  if (!code) code = specc_hierarchy_drafter(&o, drafter);
  if (code) release_engine(&middle), release_draft(&small);
  return code;
}
