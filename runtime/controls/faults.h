/* faults.h - switches one fault of faults.cmake on in libspecc_controls.so; libspecc.so has none of this. */
#ifndef SPECC_FAULTS_H
#define SPECC_FAULTS_H
#include "fault_list.h"
#include "specc_extend.h"
#include <stdatomic.h>

#define SPECC_FAULT_ENUM(name) SPECC_FAULT_##name,
enum specc_fault_id { SPECC_FAULT_none, SPECC_FAULTS(SPECC_FAULT_ENUM) SPECC_FAULT_count };

extern _Atomic int specc_fault_active;
#define SPECC_FAULT(name)                                                                                    \
  (atomic_load_explicit(&specc_fault_active, memory_order_relaxed) == SPECC_FAULT_##name)
#define SPECC_ANY_FAULT (atomic_load(&specc_fault_active) != SPECC_FAULT_none)

/* Puts the fault `name` in force for the whole process, "none" ends it. 0; -1 for no such fault. */
SPECC_API int specc_fault_set(const char *name);
/* Name of fault `index`, 0 being "none"; NULL past the end. */
SPECC_API const char *specc_fault_name(int index);

/* specc_draft_pick, after which q is exchanged for one that the token was not drawn from: without logit bias
 * and filters, or at twice the temperature. */
int pick_with_unfiltered_q(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, int32_t *token);
int pick_with_warmer_q(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, int32_t *token);
#endif
