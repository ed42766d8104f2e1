/* replay.h - the passes over one window of positions: every width, every slot, every history of the cache. */
#ifndef SPECC_REPLAY_H
#define SPECC_REPLAY_H
#include "core/certify/measurement.h"

/* Measures the window m->start..m->end-1 into hashes[], broken[] and the counts of the certificate.
 * is_thorough: also after rollbacks of every length. */
int replay_window(measurement *m, int is_thorough);
#endif
