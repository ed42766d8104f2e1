/* drafting.h - what our drafters share: a chain asked for node by node. */
#ifndef SPECC_DRAFTING_H
#define SPECC_DRAFTING_H
#include "internal.h"

typedef int (*draft_next)(void *state, const specc_draft_context *c, int32_t depth, specc_proposal *out);

/* Asks for node after node until k are there or none comes. */
int draft_chain(draft_next next, void *state, const specc_draft_context *c, specc_proposal *out);
/* Appends node `depth` with a one-hot q. */
int draft_one_hot(const specc_draft_context *c, int32_t depth, int32_t token, specc_proposal *out);
#endif
