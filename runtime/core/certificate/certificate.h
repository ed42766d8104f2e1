/* certificate.h - what certificate files are bound to, and what their writer and their reader share. */
#ifndef SPECC_CERTIFICATE_H
#define SPECC_CERTIFICATE_H
#include "core/model/model.h"

#define CERTIFICATE_FORMAT 2 /* 1 had no seal and is not believed: an edited file could claim it */
#define SEAL_DIGITS 64

extern const char *const certificate_kinds[3]; /* by enum specc_certificate_kind */

/* What a certificate is bound to. */
typedef struct identity {
  const char *digest, *engine_sha256, *backend, *backend_version;
  char device[256], fingerprint[65];
  int32_t threads;
} identity;

identity identify_model(const struct specc_model *model);
/* SHA-256 of the text with the 64 digits at `at` read as zeros: of everything that the certificate says and
 * is bound to. It finds mistakes and edits; whoever can compute a hash can seal anew, so it is no signature.
 */
void certificate_seal(const char *text, size_t n, size_t at, char hex[65]);
/* Finds a certificate for this model and device in folder; leaves *certificate alone if there is none.
 * Returns 1 where one was found. */
int specc_certificate_find(
    const struct specc_model *model, const char *folder, specc_certificate *certificate);
#endif
