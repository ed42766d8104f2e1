/* drafting.c - what our drafters share: a chain asked for node by node, and draft engines. */
#include "core/draft/drafting.h"
#include "core/io/error.h"
#include <stdlib.h>

int propose_chain(draft_next next, void *state, const specc_draft_context *c, specc_proposal *out) {
  int code = SPECC_OK;
  out->n = 0;
  for (int32_t depth = 0; !code && depth < c->k && out->n == depth; depth++)
    code = next(state, c, depth, out);
  return code;
}

void append_node(
    int32_t depth, int32_t token, const double *q, const specc_draft_map *map, specc_proposal *out) {
  out->parent[depth] = depth - 1;
  out->token[depth] = token;
  out->q[depth] = q;
  out->map[depth] = map;
  out->n = depth + 1;
}

int append_one_hot(const specc_draft_context *c, int32_t depth, int32_t token, specc_proposal *out) {
  int code = specc_draft_put(c->sampler, depth, token);
  if (!code) append_node(depth, token, NULL, NULL, out);
  return code;
}

int append_sampled(const specc_draft_context *c, int32_t depth, const float *logits, int32_t n_logits,
    const specc_draft_map *map, double stop, specc_proposal *out) {
  double *q = c->q[depth], top = 0;
  int32_t token;
  int code = specc_draft_shape(c->sampler, logits, n_logits, map, depth, q, &top);
  if (code) return code;
  int32_t eighth = top < 1 ? (int32_t)(8 * top) : 7;
  if (top < stop || !specc_draft_pays(c->sampler, depth, SOURCE_HEAD + eighth, 0)) return SPECC_OK;
  code = specc_draft_pick(c->sampler, map, depth, q, &token);
  if (code) return code;
  append_node(depth, token, q, map, out);
  return SPECC_OK;
}

int32_t find_width(const specc_backend *e, int32_t rows) {
  for (int32_t i = 0; i < e->n_widths; i++)
    if (e->widths[i] >= rows) return e->widths[i];
  return e->widths[e->n_widths - 1];
}

specc_backend *copy_engine(const specc_backend *engine, const char *what) {
  if (!engine || !engine->open || !engine->run || !engine->close || engine->n_widths < 1 ||
      engine->n_widths > SPECC_MAX_WIDTHS) {
    specc_error(
        SPECC_E_ARGUMENT, "a %s drafter needs an engine with open, run, close and 1 to 24 widths", what);
    return NULL;
  }
  specc_backend *copy = malloc(sizeof *copy);
  if (copy)
    *copy = *engine;
  else
    specc_error(SPECC_E_MEMORY, "no memory for a drafter");
  return copy;
}

void free_engine(specc_backend *engine) {
  if (engine && engine->release) engine->release(engine->self);
  free(engine);
}

void release_draft(specc_drafter *drafter) {
  if (drafter->name && drafter->release) drafter->release(drafter->self);
}
