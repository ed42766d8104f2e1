/* sampler.h - what a session gives its drafter beside specc.h's specc_draft_ functions. */
#ifndef SPECC_SAMPLER_H
#define SPECC_SAMPLER_H
#include "core/numbers/sampling.h"
#include <stdbool.h>

struct specc_sampler {
  struct specc_session *session;
};

/* True once the generation is to end: a drafter then makes no further engine call. */
bool sampler_is_cancelled(const specc_sampler *sampler);
/* Scratch for rows of the target's ids, free between the calls of the sampler. */
workspace *sampler_get_workspace(const specc_sampler *sampler);
#endif
