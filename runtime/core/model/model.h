/* model.h - an open model: engines, drafter, ids, and what the certificate in force means for the loop. */
#ifndef SPECC_MODEL_H
#define SPECC_MODEL_H
#include "specc_extend.h"

struct specc_model {
  specc_backend target;
  specc_drafter drafter; /* name NULL: none */
  int32_t n_ids, context, k_max, chunk, threads, strip_leading_space;
  int32_t n_eos, *eos;
  uint8_t *bytes;    /* id to text; NULL: no text */
  uint32_t *offsets; /* [n_ids + 1] */
  int32_t max_token_bytes;
  int32_t
      opener; /* the process that created it; its forked children may only free it and read what it says */
  /* SPECC_R_LINT or SPECC_R_VOCABULARY_MISMATCH that the build found, kept whatever a certificate says */
  uint32_t lint;
  specc_certificate certificate;
  char digest[65], engine_sha256[65];
  char device[256], fingerprint[65]; /* of the GPU or the CPU that computes: what certificates are bound to */
  /* what the certificate means for the loop, set by specc_model_set_certificate */
  uint32_t reasons; /* 0: speculation may be on */
  int32_t law_width;
  int32_t prefill_in_class; /* 1: the cache is an exact function of the ids, prefixes may be kept */
  int32_t verify_width[SPECC_MAX_K + 1]; /* smallest usable width for k tokens; 0: none */
};

/* SPECC_OK, or SPECC_E_UNSUPPORTED in a forked child of the process that opened the model. */
int model_check_process(const specc_model *m);
#endif
