/* engine.h - the engines of a bundle. */
#ifndef SPECC_BUNDLE_ENGINE_H
#define SPECC_BUNDLE_ENGINE_H
#include "core/manifest/manifest.h"
#include "specc_extend.h"

/* Opens engines.NAME with the backend that the manifest names. The caller releases it. */
int open_engine(const manifest *m, const char *name, specc_backend *backend);
/* Releases an engine that nobody took over; one of zeros is left alone. */
void release_engine(specc_backend *engine);
#endif
