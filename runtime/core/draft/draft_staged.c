/* draft_staged.c - a chain of drafters: at each depth they are asked in order, and the first that answers
 * proposes the node. What a stage decides rests on committed and drawn tokens and on the q it would draw from
 * next, so each node is judged by the very q that it was drawn from, and the law of the whole is the law of
 * its nodes. */
#include "core/draft/drafting.h"
#include "core/draft/kinds.h"
#include "core/io/error.h"
#include <stdlib.h>
#include <string.h>

#define MAX_STAGES 8

typedef struct staged {
  int32_t n;
  specc_drafter stages[MAX_STAGES];
} staged;
typedef struct staged_state {
  const staged *s;
  void *states[MAX_STAGES];
} staged_state;

static void staged_close(void *state) {
  staged_state *d = state;
  for (int32_t i = 0; i < d->s->n; i++)
    if (d->states[i]) d->s->stages[i].close(d->states[i]);
  free(d);
}

static int staged_open(void *self, void **out) {
  staged_state *d = calloc(1, sizeof *d);
  int code = d ? SPECC_OK : specc_error(SPECC_E_MEMORY, "no memory for a chain of drafters");
  if (code) return code;
  d->s = self;
  for (int32_t i = 0; !code && i < d->s->n; i++)
    code = d->s->stages[i].open(d->s->stages[i].self, &d->states[i]);
  if (code) return staged_close(d), code;
  *out = d;
  return SPECC_OK;
}

static int staged_next(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out) {
  staged_state *d = state;
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < d->s->n && out->n == depth; i++)
    code = d->s->stages[i].next(d->states[i], c, depth, out);
  return code;
}

static int staged_propose(void *state, const specc_draft_context *c, specc_proposal *out) {
  return propose_chain(staged_next, state, c, out);
}

static int staged_commit(void *state, int32_t n_keep) {
  staged_state *d = state;
  int code = SPECC_OK;
  for (int32_t i = 0; !code && i < d->s->n; i++) code = d->s->stages[i].commit(d->states[i], n_keep);
  return code;
}

static void staged_release(void *self) {
  staged *s = self;
  for (int32_t i = 0; i < s->n; i++)
    if (s->stages[i].release) s->stages[i].release(s->stages[i].self);
  free(s);
}

int specc_staged_drafter(const specc_drafter *stages, int32_t n, specc_drafter *drafter) {
  int32_t hidden = 0;
  if (!stages || !drafter || n < 1 || n > MAX_STAGES)
    return specc_error(SPECC_E_ARGUMENT, "a chain has 1 to %d drafters; %d were given", MAX_STAGES, n);
  for (int32_t i = 0; i < n; i++) {
    const specc_drafter *stage = &stages[i];
    if (!stage->next || !stage->open || !stage->commit || !stage->close)
      return specc_error(SPECC_E_ARGUMENT,
          "the drafter %s cannot join a chain: it proposes whole chains only",
          stage->name ? stage->name : "of no name");
    if (stage->hidden && hidden && stage->hidden != hidden)
      return specc_error(SPECC_E_ARGUMENT,
          "the stages read hidden states of %d and of %d numbers; use heads of one target", hidden,
          stage->hidden);
    hidden = stage->hidden ? stage->hidden : hidden;
  }
  staged *s = calloc(1, sizeof *s);
  if (!s) return specc_error(SPECC_E_MEMORY, "no memory for a chain of drafters");
  s->n = n;
  memcpy(s->stages, stages, (size_t)n * sizeof *stages);
  *drafter = (specc_drafter){.name = "staged",
      .self = s,
      .open = staged_open,
      .propose = staged_propose,
      .commit = staged_commit,
      .close = staged_close,
      .release = staged_release,
      .next = staged_next,
      .hidden = hidden};
  return SPECC_OK;
}

/* ------------------------------------------------------------------ from a bundle */
int open_staged_draft(const draft_source *source, specc_drafter *drafter) {
  const manifest *m = source->manifest;
  const json *draft = source->entry;
  const json *list = json_array(draft, "stages");
  specc_drafter stages[MAX_STAGES] = {0};
  int32_t n = 0;
  if (!list || list->n < 1 || list->n > MAX_STAGES)
    return manifest_refuse(m, "draft", "stages", "a list of 1 to 8 drafters");
  int code = SPECC_OK;
  for (const json *stage = list->first; !code && stage; stage = stage->next) {
    const char *kind = json_string(stage, "kind");
    if (kind && strcmp(kind, "staged")) code = source->open_part(m, stage, &stages[n]);
    if (!code && !stages[n].name)
      code = manifest_refuse(m, "draft.stages", "kind", "a drafter that can be a stage");
    n += !code;
  }
  if (!code) code = specc_staged_drafter(stages, n, drafter);
  for (int32_t i = 0; code && i < n; i++) release_draft(&stages[i]);
  return code;
}
