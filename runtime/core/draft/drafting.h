/* drafting.h - what our drafters share: a chain asked for node by node, and draft engines. */
#ifndef SPECC_DRAFTING_H
#define SPECC_DRAFTING_H
#include "core/session/control.h"
#include "core/session/sampler.h"

typedef int (*draft_next)(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out);

/* Asks for node after node until k are there or none comes. */
int propose_chain(draft_next next, void *state, const specc_draft_context *c, specc_proposal *out);
/* Appends node `depth` with the very q that it was drawn from, NULL for one-hot. */
void append_node(
    int32_t depth, int32_t token, const double *q, const specc_draft_map *map, specc_proposal *out);
/* Puts and appends node `depth` with a one-hot q. */
int append_one_hot(const specc_draft_context *c, int32_t depth, int32_t token, specc_proposal *out);
/* Appends node `depth`, drawn from a row of logits, unless q's largest probability is below `stop` or the
 * node does not pay. */
int append_sampled(const specc_draft_context *c, int32_t depth, const float *logits, int32_t n_logits,
    const specc_draft_map *map, double stop, specc_proposal *out);

/* The smallest width of an engine that holds so many rows. */
int32_t find_width(const specc_backend *engine, int32_t rows);
/* Checks and copies an engine for a drafter that will free it; NULL with an error. */
specc_backend *copy_engine(const specc_backend *engine, const char *what);
void free_engine(specc_backend *engine);
/* Releases a drafter that nobody took over; one of zeros is left alone. */
void release_draft(specc_drafter *drafter);
#endif
