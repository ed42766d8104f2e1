/* internal.h - what the pieces of libspecc share and a program does not see. */
#ifndef SPECC_INTERNAL_H
#define SPECC_INTERNAL_H
#include "specc.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* One sentence for this thread, printf style; returns code, so that `return specc_error(...)` reads well. */
int specc_error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Hot loops get one clone per instruction set; without contraction every clone gives the same bits. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(SPECC_SANITIZE)
  #define SPECC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
  #define SPECC_CLONES
#endif

struct specc_model {
  specc_backend target;
  specc_drafter drafter; /* name NULL: none */
  int32_t n_ids, context, k_max, chunk, threads, strip_leading_space;
  int32_t n_eos, *eos;
  uint8_t *bytes;    /* id to text; NULL: no text */
  uint32_t *offsets; /* [n_ids + 1] */
  int32_t max_token_bytes;
  uint32_t lint; /* SPECC_R_LINT or SPECC_R_VOCABULARY_MISMATCH that the build found, kept whatever a
                    certificate says */
  specc_certificate certificate;
  char digest[65], engine_sha256[65];
  char device[256], fingerprint[65]; /* of the GPU or the CPU that computes: what certificates are bound to */
  /* what the certificate means for the loop, set by specc_model_certify */
  uint32_t reasons; /* 0: speculation may be on */
  int32_t law_width;
  int32_t prefill_in_class; /* 1: the cache is an exact function of the ids, prefixes may be kept */
  int32_t verify_width[SPECC_MAX_K + 1]; /* smallest usable width for k tokens; 0: none */
};

/* bundle.c: SHA-256 and the manifest; certificate files */
typedef struct specc_sha256 {
  uint32_t state[8];
  uint64_t length;
  uint8_t block[64];
} specc_sha256;
void specc_sha256_begin(specc_sha256 *h);
void specc_sha256_add(specc_sha256 *h, const void *data, size_t n);
void specc_sha256_end(specc_sha256 *h, char hex[65]);
/* Finds a certificate for this model and device in folder; leaves *certificate alone if there is none. */
int specc_certificate_find(
    const struct specc_model *model, const char *folder, specc_certificate *certificate);

double specc_now(void); /* seconds, monotonic; for statistics only, never for a decision */
#endif
