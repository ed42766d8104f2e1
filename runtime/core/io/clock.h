/* clock.h - seconds for statistics and for the costs in certificates, never for a decision of the loop. */
#ifndef SPECC_CLOCK_H
#define SPECC_CLOCK_H

double specc_now(void); /* seconds, monotonic */
#endif
