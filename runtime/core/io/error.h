/* error.h - the last error of a thread: one code and one sentence. */
#ifndef SPECC_ERROR_H
#define SPECC_ERROR_H
#include "specc.h"

/* Keeps one sentence for this thread, printf style; returns code, so that `return specc_error(...)` reads
 * well. */
int specc_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
#endif
