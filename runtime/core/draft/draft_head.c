/* draft_head.c - trained heads over the target's hidden states: a feature head with a cache of its own, and
 * parallel heads.
 *
 * Slot s of a feature head's cache holds the pair (token s + 1, hidden state of position s). Only pairs with
 * the target's own hidden states stay: drafting goes on from them with the head's features and is forgotten
 * after the round. One rollback rule: commit lowers the length, and the next round feeds what the target has
 * computed since, one row for each committed token. */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include "core/manifest/engine.h"
#include <stdlib.h>
#include <string.h>

typedef struct head {
  specc_backend *engine;
  const specc_draft_map *map;
  double stop;
  int32_t hidden;
} head;

typedef struct head_state {
  const head *h;
  void *cache;
  specc_io io;
  int32_t length;                /* feature: slots with the target's own hidden states */
  int32_t round;                 /* n_tokens of the round that the rest belongs to, 0 for none */
  int32_t fed;                   /* feature: drafted tokens fed after those slots */
  const float *logits, *feature; /* of the last row fed */
} head_state;

static int head_open(void *self, void **out) {
  head_state *d = calloc(1, sizeof *d);
  if (!d) return specc_error(SPECC_E_MEMORY, "no memory for a draft head");
  d->h = self;
  int code = d->h->engine->open(d->h->engine->self, &d->cache, &d->io);
  if (!code && !d->io.hidden_in) {
    d->h->engine->close(d->cache);
    code = specc_error(SPECC_E_DRAFT, "the head's engine reads no hidden states; export the head again");
  }
  if (code) return free(d), code;
  *out = d;
  return SPECC_OK;
}

static void head_close(void *state) {
  head_state *d = state;
  d->h->engine->close(d->cache);
  free(d);
}

/* Slot s needs token s + 1, so n_keep tokens hold n_keep - 1 slots. */
static int head_commit(void *state, int32_t n_keep) {
  head_state *d = state;
  int32_t keep = n_keep > 0 ? n_keep - 1 : 0;
  if (keep < d->length) d->length = keep;
  d->round = 0;
  return SPECC_OK;
}

/* ------------------------------------------------------------------ feature heads */
/* One call over `real` pairs behind `slot`; hidden [real][hidden]. */
static int feed_pairs(head_state *d, int32_t slot, const int32_t *tokens, const float *hidden, int32_t real) {
  const specc_backend *e = d->h->engine;
  int32_t rows = find_width(e, real);
  size_t n = (size_t)d->h->hidden;
  for (int32_t i = 0; i < rows; i++) {
    int32_t from = i < real ? i : real - 1;
    d->io.input_ids[i] = tokens[from];
    d->io.position[i] = slot + from;
    d->io.logit_rows[i] = i;
    memmove(d->io.hidden_in + (size_t)i * n, hidden + (size_t)from * n, n * sizeof *hidden);
  }
  bool one = rows == e->widths[e->n_widths - 1] && rows > 1;
  if (one) d->io.logit_rows[0] = real - 1;
  *d->io.past_len = slot;
  int code = e->run(d->cache, rows, one ? 1 : rows);
  d->logits = d->io.logits + (one ? 0 : (size_t)(real - 1) * (size_t)e->vocab);
  d->feature = d->io.hidden + (size_t)(real - 1) * n;
  return code;
}

/* Feeds the pairs that the target has computed since, up to the current token's. */
static int feed_new_pairs(head_state *d, const specc_draft_context *c, specc_proposal *out) {
  int32_t widest = d->h->engine->widths[d->h->engine->n_widths - 1], end = c->n_tokens - 1;
  d->fed = 0;
  if (d->length == end) d->length--; /* the last pair again: its logits and feature are wanted */
  while (d->length < end) {
    if (sampler_is_cancelled(c->sampler)) return SPECC_OK;
    int32_t real = end - d->length < widest ? end - d->length : widest;
    int code = feed_pairs(
        d, d->length, c->tokens + d->length + 1, c->hidden + (size_t)d->length * (size_t)d->h->hidden, real);
    if (code) return code;
    d->length += real;
    out->calls++;
  }
  d->round = c->n_tokens;
  return SPECC_OK;
}

/* Feeds drafted tokens, whoever proposed them, each with the feature of the row before. */
static int feed_drafted(head_state *d, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  int code = SPECC_OK;
  for (; !code && d->fed < depth && !sampler_is_cancelled(c->sampler); d->fed++, out->calls++)
    code = feed_pairs(d, d->length + d->fed, c->tokens + c->n_tokens + d->fed, d->feature, 1);
  return code;
}

static int feature_next(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  head_state *d = state;
  const specc_backend *e = d->h->engine;
  if (out->length < 0) out->length = d->length;
  if (!c->hidden || c->n_tokens < 2 || c->n_tokens + c->k + e->widths[e->n_widths - 1] > e->capacity)
    return SPECC_OK;
  int32_t calls = d->round == c->n_tokens ? depth - d->fed : depth + 1;
  if (!specc_draft_pays(c->sampler, depth, SOURCE_HEAD_UNSEEN + (depth < 7 ? depth : 7), calls))
    return SPECC_OK;
  int code = d->round == c->n_tokens ? SPECC_OK : feed_new_pairs(d, c, out);
  if (!code && d->round == c->n_tokens) code = feed_drafted(d, c, depth, out);
  if (code || d->round != c->n_tokens || d->fed < depth) return code;
  return append_sampled(c, depth, d->logits, e->vocab, d->h->map, d->h->stop, out);
}

static int feature_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(feature_next, state, c, out);
}

/* ------------------------------------------------------------------ parallel heads */
/* One call a round, over the hidden state that gave the current token. */
static int run_heads(head_state *d, const specc_draft_context *c, specc_proposal *out) {
  const specc_backend *e = d->h->engine;
  size_t n = (size_t)d->h->hidden;
  memcpy(d->io.hidden_in, c->hidden + (size_t)(c->n_tokens - 2) * n, n * sizeof *c->hidden);
  d->round = c->n_tokens;
  out->calls++;
  return e->run(d->cache, e->widths[0], e->widths[0]);
}

static int medusa_next(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  head_state *d = state;
  const specc_backend *e = d->h->engine;
  if (!c->hidden || c->n_tokens < 2 || depth >= e->widths[0]) return SPECC_OK;
  if (d->round != c->n_tokens) {
    if (!specc_draft_pays(c->sampler, depth, SOURCE_HEAD_UNSEEN + (depth < 7 ? depth : 7), 1))
      return SPECC_OK;
    int code = run_heads(d, c, out);
    if (code) return code;
  }
  return append_sampled(
      c, depth, d->io.logits + (size_t)depth * (size_t)e->vocab, e->vocab, d->h->map, d->h->stop, out);
}

static int medusa_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(medusa_next, state, c, out);
}

/* ------------------------------------------------------------------ what a program calls */
static void head_release(void *self) {
  head *h = self;
  free_engine(h->engine);
  specc_draft_map_free((specc_draft_map *)h->map);
  free(h);
}

static int create_head(const specc_head_options *o, const char *name, bool feature, specc_drafter *drafter) {
  if (!o || !drafter || o->hidden < 1 || !(o->stop >= 0 && o->stop < 1))
    return specc_error(
        SPECC_E_ARGUMENT, "a %s drafter needs the number of hidden columns and a stop in [0, 1)", name);
  if (o->engine && o->map && o->map->n != o->engine->vocab)
    return specc_error(SPECC_E_FORMAT,
        "the %s head has %d logits and its map %d columns; export the head again", name, o->engine->vocab,
        o->map->n);
  if (o->engine && feature && o->engine->hidden != o->hidden)
    return specc_error(SPECC_E_FORMAT,
        "the feature head gives features of %d numbers for a target with %d; use a head that was trained for "
        "it",
        o->engine->hidden, o->hidden);
  specc_backend *engine_copy = copy_engine(o->engine, name);
  head *h = engine_copy ? malloc(sizeof *h) : NULL;
  if (!h)
    return free(engine_copy),
           engine_copy ? specc_error(SPECC_E_MEMORY, "no memory for a drafter") : SPECC_E_ARGUMENT;
  *h = (head){engine_copy, o->map, o->stop, o->hidden};
  *drafter = (specc_drafter){.name = name,
      .self = h,
      .open = head_open,
      .propose = feature ? feature_propose : medusa_propose,
      .commit = head_commit,
      .close = head_close,
      .release = head_release,
      .next = feature ? feature_next : medusa_next,
      .hidden = o->hidden};
  return SPECC_OK;
}

int specc_feature_drafter(const specc_head_options *options, specc_drafter *drafter) {
  return create_head(options, "feature", true, drafter);
}
int specc_medusa_drafter(const specc_head_options *options, specc_drafter *drafter) {
  return create_head(options, "medusa", false, drafter);
}

/* ------------------------------------------------------------------ from a bundle */
/* A trained head: its engine, and the ids behind its columns where it has a reduced vocabulary. */
static int read_head(const manifest *m, const json *draft, specc_head_options *o) {
  const json *engine, *stop = json_get(draft, "stop");
  const char *ids = json_string(draft, "ids");
  specc_draft_map *map = NULL;
  char path[PATH_BYTES];
  int code = manifest_engine(m, "draft", &engine);
  if (!code) code = manifest_int(m, engine, "engines.draft", "hidden_in", 1, 1 << 20, &o->hidden);
  if (!code && stop && (stop->kind != JSON_NUMBER || !(stop->number >= 0 && stop->number < 1)))
    code = manifest_refuse(m, "draft", "stop", "a number in [0, 1)");
  o->stop = stop && !code ? stop->number : 0;
  if (!code && ids) code = manifest_file(m, ids, path);
  if (!code && ids) code = specc_draft_map_read(path, m->n_ids, &map);
  o->map = map;
  return code;
}

static int open_head(const draft_source *source, bool feature, specc_drafter *drafter) {
  const manifest *m = source->manifest;
  specc_head_options o = {0};
  specc_backend engine;
  int code = read_head(m, source->entry, &o);
  if (!code) code = open_engine(m, "draft", &engine);
  if (code) return specc_draft_map_free((specc_draft_map *)o.map), code;
  o.engine = &engine;
  if (!o.map && engine.vocab < m->n_ids)
    code = manifest_refuse(m, "draft", "ids", "the map that a head with fewer logits than ids needs");
  if (!code) code = feature ? specc_feature_drafter(&o, drafter) : specc_medusa_drafter(&o, drafter);
  if (!code) return code;
  specc_draft_map_free((specc_draft_map *)o.map);
  release_engine(&engine);
  return code;
}

int open_feature_draft(const draft_source *source, specc_drafter *drafter) {
  return open_head(source, true, drafter);
}

int open_medusa_draft(const draft_source *source, specc_drafter *drafter) {
  return open_head(source, false, drafter);
}
